// SPDX-License-Identifier: Apache-2.0

// HIP's functions that Waybill calls, over those of the fake driver. What differs from CUDA is
// written here: devices instead of contexts, modules of one device, a register that flushes.

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "testing/fake_cuda/fake_cuda.h"
#include "testing/fake_cuda/gpu.h"

#define FAKE extern "C" __attribute__((visibility("default"))) CUresult

struct CUmod_st {
  int device;
};
struct CUfunc_st {
  int device;
  CUkernel kernel;
};

namespace {

// Written by the host, read by a GPU before it runs something.
std::array<std::atomic<uint32_t>, kFakeGpuCount> flush_registers;

// The thread's device, which is the first one until it is set.
int Device() {
  CUcontext context = nullptr;
  if (cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == nullptr) return 0;
  CUcontext second = nullptr;
  cuDevicePrimaryCtxRetain(&second, 1);
  return context == second ? 1 : 0;
}

CUresult Use(int device) {
  CUcontext context = nullptr;
  if (device < 0 || device >= kFakeGpuCount) return CUDA_ERROR_INVALID_DEVICE;
  const CUresult result = cuDevicePrimaryCtxRetain(&context, device);
  return result == CUDA_SUCCESS ? cuCtxSetCurrent(context) : result;
}

// For calls that need a context in CUDA.
void UseCurrent() { Use(Device()); }

void ReadFlushRegisters() {
  for (int device = 0; device < kFakeGpuCount; ++device) {
    std::atomic<uint32_t>& flush = flush_registers[static_cast<size_t>(device)];
    if (flush.exchange(0) != 0) waybill::FakeMemory::Get().Flush(device);
  }
}

int AttributeOf(CUdevice_attribute attribute, int device) {
  int value = 0;
  cuDeviceGetAttribute(&value, attribute, device);
  return value;
}

}  // namespace

// Reports ROCm 7.1, or the version that a test asks for.
FAKE hipRuntimeGetVersion(int* version) {
  const char* const said = std::getenv("FAKE_HIP_VERSION");
  *version = said == nullptr ? 70100000 : std::atoi(said);
  return CUDA_SUCCESS;
}
FAKE hipInit(unsigned flags) { return cuInit(flags); }
FAKE hipGetDeviceCount(int* count) { return cuDeviceGetCount(count); }
FAKE hipDeviceGet(int* device, int ordinal) { return cuDeviceGet(device, ordinal); }
FAKE hipGetDevice(int* device) {
  *device = Device();
  return CUDA_SUCCESS;
}
FAKE hipSetDevice(int device) { return Use(device); }
FAKE hipDeviceGetName(char* name, int size, int device) {
  return cuDeviceGetName(name, size, device);
}
FAKE hipDeviceGetPCIBusId(char* text, int size, int device) {
  return cuDeviceGetPCIBusId(text, size, device);
}
FAKE hipDeviceGetUuid(CUuuid* uuid, int device) { return cuDeviceGetUuid(uuid, device); }
FAKE hipDeviceTotalMem(size_t* size_bytes, int device) {
  return cuDeviceTotalMem(size_bytes, device);
}
FAKE hipDeviceGetAttribute(int* value, int attribute, int device) {
  switch (attribute) {
    case 89:  // hipDeviceAttributeVirtualMemoryManagementSupported
      *value = AttributeOf(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, device);
      return CUDA_SUCCESS;
    case 93:  // hipDeviceAttributeDmaBufSupported
      *value = AttributeOf(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, device);
      return CUDA_SUCCESS;
    case 94:  // hipDeviceAttributeGPUDirectRDMAWithHipVMMSupported
      *value = AttributeOf(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, device);
      return CUDA_SUCCESS;
    case 10005: {  // hipDeviceAttributeHdpMemFlushCntl: an address. No GPU orders writes by itself.
      const bool has_flush =
          AttributeOf(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, device) != 0 ||
          AttributeOf(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, device) != 0;
      const void* const address =
          has_flush ? &flush_registers[static_cast<size_t>(device)] : nullptr;
      std::memcpy(value, &address, sizeof(address));
      return CUDA_SUCCESS;
    }
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}
FAKE hipDrvGetErrorName(CUresult result, const char** name) { return cuGetErrorName(result, name); }
FAKE hipDrvGetErrorString(CUresult result, const char** text) {
  return cuGetErrorString(result, text);
}

FAKE hipMalloc(CUdeviceptr* address, size_t size_bytes) {
  UseCurrent();
  return cuMemAlloc(address, size_bytes);
}
FAKE hipFree(CUdeviceptr address) { return cuMemFree(address); }
FAKE hipMemGetAddressRange(CUdeviceptr* begin, size_t* size_bytes, CUdeviceptr address) {
  UseCurrent();
  return cuMemGetAddressRange(begin, size_bytes, address);
}
FAKE hipMemGetHandleForAddressRange(void* handle, CUdeviceptr begin, size_t size_bytes,
                                    CUmemRangeHandleType type, unsigned long long flags) {
  return cuMemGetHandleForAddressRange(handle, begin, size_bytes, type, flags);
}
FAKE hipPointerGetAttribute(void* value, int attribute, CUdeviceptr address) {
  if (attribute == CU_POINTER_ATTRIBUTE_BUFFER_ID) {
    unsigned long long id = 0;
    const CUresult result =
        cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, address);
    *static_cast<uint32_t*>(value) = static_cast<uint32_t>(id);
    return result;
  }
  if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID ||
      attribute == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return cuPointerGetAttribute(value, static_cast<CUpointer_attribute>(attribute), address);
}
FAKE hipIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr begin) {
  UseCurrent();
  return cuIpcGetMemHandle(handle, begin);
}
FAKE hipIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  UseCurrent();
  return cuIpcOpenMemHandle(address, handle, flags);
}
FAKE hipIpcCloseMemHandle(CUdeviceptr address) { return cuIpcCloseMemHandle(address); }
FAKE hipMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp* properties,
                                    CUmemAllocationGranularity_flags flags) {
  return cuMemGetAllocationGranularity(bytes, properties, flags);
}
FAKE hipMemCreate(CUmemGenericAllocationHandle* handle, size_t size_bytes,
                  const CUmemAllocationProp* properties, unsigned long long flags) {
  return cuMemCreate(handle, size_bytes, properties, flags);
}
FAKE hipMemRelease(CUmemGenericAllocationHandle handle) { return cuMemRelease(handle); }
FAKE hipMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  return cuMemRetainAllocationHandle(handle, address);
}
FAKE hipMemExportToShareableHandle(void* file, CUmemGenericAllocationHandle handle,
                                   CUmemAllocationHandleType type, unsigned long long flags) {
  return cuMemExportToShareableHandle(file, handle, type, flags);
}
FAKE hipMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* file,
                                     CUmemAllocationHandleType type) {
  return cuMemImportFromShareableHandle(handle, file, type);
}
FAKE hipMemAddressReserve(CUdeviceptr* begin, size_t size_bytes, size_t alignment, CUdeviceptr at,
                          unsigned long long flags) {
  return cuMemAddressReserve(begin, size_bytes, alignment, at, flags);
}
FAKE hipMemAddressFree(CUdeviceptr begin, size_t size_bytes) {
  return cuMemAddressFree(begin, size_bytes);
}
FAKE hipMemMap(CUdeviceptr begin, size_t size_bytes, size_t offset,
               CUmemGenericAllocationHandle handle, unsigned long long flags) {
  return cuMemMap(begin, size_bytes, offset, handle, flags);
}
FAKE hipMemUnmap(CUdeviceptr begin, size_t size_bytes) { return cuMemUnmap(begin, size_bytes); }
FAKE hipMemSetAccess(CUdeviceptr begin, size_t size_bytes, const CUmemAccessDesc* access,
                     size_t count) {
  return cuMemSetAccess(begin, size_bytes, access, count);
}
FAKE hipHostRegister(void* memory, size_t size_bytes, unsigned flags) {
  UseCurrent();
  return cuMemHostRegister(memory, size_bytes, flags);
}
FAKE hipHostUnregister(void* memory) { return cuMemHostUnregister(memory); }
FAKE hipMemcpyDtoH(void* to, CUdeviceptr from, size_t size_bytes) {
  UseCurrent();
  ReadFlushRegisters();
  return cuMemcpyDtoH(to, from, size_bytes);
}
FAKE hipMemcpyHtoD(CUdeviceptr to, const void* from, size_t size_bytes) {
  UseCurrent();
  return cuMemcpyHtoD(to, from, size_bytes);
}
FAKE hipMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size_bytes, int kind,
                    CUstream stream) {
  if (kind != 4) return CUDA_ERROR_INVALID_VALUE;  // hipMemcpyDefault
  UseCurrent();
  ReadFlushRegisters();
  return cuMemcpyAsync(to, from, size_bytes, stream);
}
FAKE hipMemsetD8Async(CUdeviceptr to, unsigned char value, size_t size_bytes, CUstream stream) {
  UseCurrent();
  return cuMemsetD8Async(to, value, size_bytes, stream);
}

FAKE hipStreamCreateWithFlags(CUstream* stream, unsigned flags) {
  UseCurrent();
  return cuStreamCreate(stream, flags);
}
FAKE hipStreamDestroy(CUstream stream) { return cuStreamDestroy(stream); }
FAKE hipStreamSynchronize(CUstream stream) {
  UseCurrent();
  return cuStreamSynchronize(stream);
}
FAKE hipStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  UseCurrent();
  return cuStreamWaitEvent(stream, event, flags);
}
FAKE hipStreamAddCallback(CUstream stream, CUstreamCallback callback, void* data, unsigned flags) {
  UseCurrent();
  return cuStreamAddCallback(stream, callback, data, flags);
}
FAKE hipEventCreateWithFlags(CUevent* event, unsigned flags) {
  UseCurrent();
  return cuEventCreate(event, flags);
}
FAKE hipEventDestroy(CUevent event) { return cuEventDestroy(event); }
FAKE hipEventRecord(CUevent event, CUstream stream) {
  UseCurrent();
  return cuEventRecord(event, stream);
}
FAKE hipEventQuery(CUevent event) { return cuEventQuery(event); }
FAKE hipEventSynchronize(CUevent event) { return cuEventSynchronize(event); }
FAKE hipEventElapsedTime(float* ms, CUevent from, CUevent to) {
  return cuEventElapsedTime(ms, from, to);
}
FAKE hipThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return cuThreadExchangeStreamCaptureMode(mode);
}

FAKE hipModuleLoadData(CUmodule* module, const void* image) {
  // The image has to begin as hipcc's bundles of code for several GPUs do.
  if (std::memcmp(image, "__CLANG_OFFLOAD_BUNDLE__", 24) != 0) return CUDA_ERROR_INVALID_IMAGE;
  UseCurrent();
  *module = new CUmod_st{Device()};
  // A module is loaded as a whole.
  unsigned count = 0;
  cuLibraryGetKernelCount(&count, nullptr);
  std::vector<CUkernel> kernels(count);
  cuLibraryEnumerateKernels(kernels.data(), count, nullptr);
  for (CUkernel kernel : kernels) cuFuncLoad(reinterpret_cast<CUfunction>(kernel));
  return CUDA_SUCCESS;
}
FAKE hipModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  if (module->device != Device()) return CUDA_ERROR_INVALID_DEVICE;
  CUkernel kernel = nullptr;
  const CUresult result = cuLibraryGetKernel(&kernel, nullptr, name);
  if (result == CUDA_SUCCESS) *function = new CUfunc_st{module->device, kernel};
  return result;
}
FAKE hipModuleLaunchKernel(CUfunction function, unsigned blocks, unsigned blocks_y,
                           unsigned blocks_z, unsigned threads, unsigned threads_y,
                           unsigned threads_z, unsigned shared_bytes, CUstream stream,
                           void** parameters, void** extra) {
  if (function->device != Device()) return CUDA_ERROR_INVALID_DEVICE;
  UseCurrent();
  ReadFlushRegisters();
  return cuLaunchKernel(reinterpret_cast<CUfunction>(function->kernel), blocks, blocks_y, blocks_z,
                        threads, threads_y, threads_z, shared_bytes, stream, parameters, extra);
}

extern "C" __attribute__((visibility("default"))) bool FakeCudaIsHip() { return true; }
