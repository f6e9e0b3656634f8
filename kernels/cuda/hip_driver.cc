// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/hip_driver.h"

#include <cuda.h>
#include <dlfcn.h>

#include <atomic>
#include <bit>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

extern "C" const unsigned char waybill_hip_kernels_begin[];

namespace waybill::kernels::cuda {
namespace {

// HIP has most of the driver's functions under other names, with the same arguments, structs, flags
// and error numbers.
#define WAYBILL_SAME_IN_HIP(X)                                       \
  X(cuDeviceGet, hipDeviceGet)                                       \
  X(cuDeviceGetCount, hipGetDeviceCount)                             \
  X(cuDeviceGetName, hipDeviceGetName)                               \
  X(cuDeviceGetPCIBusId, hipDeviceGetPCIBusId)                       \
  X(cuDeviceGetUuid, hipDeviceGetUuid)                               \
  X(cuDeviceTotalMem, hipDeviceTotalMem)                             \
  X(cuDriverGetVersion, hipRuntimeGetVersion)                        \
  X(cuEventCreate, hipEventCreateWithFlags)                          \
  X(cuEventDestroy, hipEventDestroy)                                 \
  X(cuEventElapsedTime, hipEventElapsedTime)                         \
  X(cuEventQuery, hipEventQuery)                                     \
  X(cuEventRecord, hipEventRecord)                                   \
  X(cuEventSynchronize, hipEventSynchronize)                         \
  X(cuGetErrorName, hipDrvGetErrorName)                              \
  X(cuGetErrorString, hipDrvGetErrorString)                          \
  X(cuInit, hipInit)                                                 \
  X(cuIpcCloseMemHandle, hipIpcCloseMemHandle)                       \
  X(cuIpcGetMemHandle, hipIpcGetMemHandle)                           \
  X(cuIpcOpenMemHandle, hipIpcOpenMemHandle)                         \
  X(cuMemAddressFree, hipMemAddressFree)                             \
  X(cuMemAddressReserve, hipMemAddressReserve)                       \
  X(cuMemAlloc, hipMalloc)                                           \
  X(cuMemCreate, hipMemCreate)                                       \
  X(cuMemExportToShareableHandle, hipMemExportToShareableHandle)     \
  X(cuMemFree, hipFree)                                              \
  X(cuMemGetAddressRange, hipMemGetAddressRange)                     \
  X(cuMemGetAllocationGranularity, hipMemGetAllocationGranularity)   \
  X(cuMemGetHandleForAddressRange, hipMemGetHandleForAddressRange)   \
  X(cuMemHostRegister, hipHostRegister)                              \
  X(cuMemHostUnregister, hipHostUnregister)                          \
  X(cuMemImportFromShareableHandle, hipMemImportFromShareableHandle) \
  X(cuMemMap, hipMemMap)                                             \
  X(cuMemRelease, hipMemRelease)                                     \
  X(cuMemRetainAllocationHandle, hipMemRetainAllocationHandle)       \
  X(cuMemSetAccess, hipMemSetAccess)                                 \
  X(cuMemUnmap, hipMemUnmap)                                         \
  X(cuMemcpyDtoH, hipMemcpyDtoH)                                     \
  X(cuMemcpyHtoD, hipMemcpyHtoD)                                     \
  X(cuMemsetD8Async, hipMemsetD8Async)                               \
  X(cuStreamAddCallback, hipStreamAddCallback)                       \
  X(cuStreamCreate, hipStreamCreateWithFlags)                        \
  X(cuStreamDestroy, hipStreamDestroy)                               \
  X(cuStreamSynchronize, hipStreamSynchronize)                       \
  X(cuStreamWaitEvent, hipStreamWaitEvent)                           \
  X(cuThreadExchangeStreamCaptureMode, hipThreadExchangeStreamCaptureMode)

// Those that differ; each has a function below in which it is called.
struct HipFunctions {
  CUresult (*hipDeviceGetAttribute)(int* value, int attribute, int device);
  CUresult (*hipGetDevice)(int* device);
  CUresult (*hipMemcpyAsync)(CUdeviceptr to, CUdeviceptr from, size_t size_bytes, int kind,
                             CUstream stream);
  CUresult (*hipModuleGetFunction)(CUfunction* function, CUmodule module, const char* name);
  decltype(&::cuLaunchKernel) hipModuleLaunchKernel;
  CUresult (*hipModuleLoadData)(CUmodule* module, const void* image);
  CUresult (*hipPointerGetAttribute)(void* value, int attribute, CUdeviceptr address);
  CUresult (*hipSetDevice)(int device);
};

// The version from which on dma-bufs and files of memory are as in CUDA: HIP_VERSION of ROCm 7.1.
constexpr int kOldestVersion = 701'00000;
constexpr const char* kLibrary = "libamdhip64.so.7";

// Numbers of <hip/hip_runtime_api.h>, which are not CUDA's.
enum HipAttribute {
  kVirtualMemoryManagement = 89,
  kDmaBuf = 93,
  kRdmaWithVirtualMemory = 94,
  kFlushRegister = 10005,
};
constexpr int kCopyByAddresses = 4;  // hipMemcpyDefault.

// Filled by LoadHip() before any of the functions below is called.
HipFunctions hip{};
decltype(&::cuMemRetainAllocationHandle) retain_handle = nullptr;
decltype(&::cuMemRelease) release_handle = nullptr;

// --- contexts: a device is its own, and the thread's current device stays until it is changed ---

CUcontext ContextOf(int device) {
  return std::bit_cast<CUcontext>(static_cast<uintptr_t>(device) + 1);
}
int DeviceOf(CUcontext context) { return static_cast<int>(std::bit_cast<uintptr_t>(context) - 1); }

std::vector<int>& DevicesBefore() {
  thread_local std::vector<int> devices;
  return devices;
}

CUresult RetainPrimaryContext(CUcontext* context, CUdevice device) {
  *context = ContextOf(device);
  return CUDA_SUCCESS;
}
CUresult ReleasePrimaryContext(CUdevice) { return CUDA_SUCCESS; }

CUresult SetContext(CUcontext context) { return hip.hipSetDevice(DeviceOf(context)); }

CUresult PushContext(CUcontext context) {
  int before = 0;
  CUresult result = hip.hipGetDevice(&before);
  if (result == CUDA_SUCCESS) result = SetContext(context);
  if (result == CUDA_SUCCESS) DevicesBefore().push_back(before);
  return result;
}

CUresult PopContext(CUcontext* context) {
  int popped = 0;
  if (DevicesBefore().empty()) return CUDA_ERROR_INVALID_CONTEXT;
  CUresult result = hip.hipGetDevice(&popped);
  if (result == CUDA_SUCCESS) result = hip.hipSetDevice(DevicesBefore().back());
  DevicesBefore().pop_back();
  *context = ContextOf(popped);
  return result;
}

// --- what a device can do ---

// The register by which the host makes a GPU's inbound writes visible to its kernels: the flush of
// the Host Data Path. Null: it has none.
std::atomic<uint32_t>* FlushRegister(int device) {
  // HIP writes a pointer where it takes an int.
  std::atomic<uint32_t>* address = nullptr;
  const CUresult result =
      hip.hipDeviceGetAttribute(reinterpret_cast<int*>(&address), kFlushRegister, device);
  return result == CUDA_SUCCESS ? address : nullptr;
}

CUresult GetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  *value = 0;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED:
      return hip.hipDeviceGetAttribute(value, kDmaBuf, device);
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS:
      if (FlushRegister(device) != nullptr) *value = CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
      return hip.hipDeviceGetAttribute(value, kRdmaWithVirtualMemory, device);
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
      return hip.hipDeviceGetAttribute(value, kVirtualMemoryManagement, device);
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:  // By amdgpu itself, if the kernel can.
    case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED:
      *value = 1;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult FlushInboundWrites(CUflushGPUDirectRDMAWritesTarget, CUflushGPUDirectRDMAWritesScope) {
  int device = 0;
  if (const CUresult result = hip.hipGetDevice(&device); result != CUDA_SUCCESS) return result;
  std::atomic<uint32_t>* const flush = FlushRegister(device);
  if (flush == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  // It arrives before whatever this thread tells the GPU next.
  flush->store(1, std::memory_order_seq_cst);
  return CUDA_SUCCESS;
}

// --- memory ---

CUresult GetPointerAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID) {
    // 32 bits in HIP.
    uint32_t id = 0;
    const CUresult result =
        hip.hipPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address);
    *static_cast<unsigned long long*>(value) = id;
    return result;
  }
  if (attribute == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE) {
    // HIP does not say. Of memory that is not of hipMemCreate() there is no handle.
    CUmemGenericAllocationHandle handle = 0;
    const CUresult result = retain_handle(&handle, std::bit_cast<void*>(address));
    *static_cast<int*>(value) = result == CUDA_ERROR_INVALID_VALUE ? 1 : 0;
    if (result == CUDA_SUCCESS) release_handle(handle);
    return result == CUDA_ERROR_INVALID_VALUE ? CUDA_SUCCESS : result;
  }
  return hip.hipPointerGetAttribute(value, attribute, address);
}

CUresult CopyAsync(CUdeviceptr to, CUdeviceptr from, size_t size_bytes, CUstream stream) {
  return hip.hipMemcpyAsync(to, from, size_bytes, kCopyByAddresses, stream);
}

// --- kernels: a module and its functions are those of one device ---

struct HipKernel {
  std::string name;
  std::map<int, CUfunction> functions;  // By device.
};

class HipImage {
 public:
  void Set(const void* image) { image_ = image; }

  // Loads all kernels into the current device.
  CUresult Load() {
    const std::lock_guard lock(mutex_);
    CUmodule module = nullptr;
    int device = 0;
    return LoadOnDevice(module, device);
  }

  HipKernel* Find(const char* name) {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<HipKernel>& kernel = kernels_[name];
    if (kernel == nullptr) kernel = std::make_unique<HipKernel>(HipKernel{name, {}});
    return kernel.get();
  }

  // The kernel's function on the current device.
  CUresult FunctionOf(HipKernel& kernel, CUfunction& function) {
    const std::lock_guard lock(mutex_);
    CUmodule module = nullptr;
    int device = 0;
    if (const CUresult result = LoadOnDevice(module, device); result != CUDA_SUCCESS) return result;
    const auto [found, is_new] = kernel.functions.try_emplace(device, nullptr);
    CUresult result = CUDA_SUCCESS;
    if (is_new) result = hip.hipModuleGetFunction(&found->second, module, kernel.name.c_str());
    function = found->second;
    if (result != CUDA_SUCCESS) kernel.functions.erase(found);
    return result;
  }

 private:
  CUresult LoadOnDevice(CUmodule& module, int& device) {
    if (const CUresult result = hip.hipGetDevice(&device); result != CUDA_SUCCESS) return result;
    CUmodule& loaded = modules_[device];
    const CUresult result =
        loaded == nullptr ? hip.hipModuleLoadData(&loaded, image_) : CUDA_SUCCESS;
    module = loaded;
    return result;
  }

  std::mutex mutex_;
  const void* image_ = nullptr;
  std::map<int, CUmodule> modules_;  // By device.
  std::map<std::string, std::unique_ptr<HipKernel>> kernels_;
};

// Never destroyed: kernels may be launched while the process ends.
HipImage& TheImage() {
  static HipImage& image = *new HipImage;
  return image;
}

CUresult LoadLibrary(CUlibrary* library, const void* image, CUjit_option*, void**, unsigned,
                     CUlibraryOption*, void**, unsigned) {
  *library = nullptr;
  TheImage().Set(image);
  return CUDA_SUCCESS;
}

// Whoever asks for the number of kernels loads each of them; here they are loaded together.
CUresult LoadAllKernels(unsigned* count, CUlibrary) {
  *count = 0;
  return TheImage().Load();
}
CUresult EnumerateNoKernels(CUkernel*, unsigned, CUlibrary) { return CUDA_SUCCESS; }
CUresult GetKernelFunction(CUfunction* function, CUkernel kernel) {
  return TheImage().FunctionOf(*reinterpret_cast<HipKernel*>(kernel), *function);
}
CUresult LoadFunction(CUfunction) { return CUDA_SUCCESS; }  // Its module is loaded.

CUresult GetKernel(CUkernel* kernel, CUlibrary, const char* name) {
  *kernel = reinterpret_cast<CUkernel>(TheImage().Find(name));
  return CUDA_SUCCESS;
}

CUresult LaunchKernel(CUfunction kernel, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z,
                      unsigned threads_x, unsigned threads_y, unsigned threads_z,
                      unsigned shared_bytes, CUstream stream, void** parameters, void** extra) {
  CUfunction function = nullptr;
  const CUresult result = TheImage().FunctionOf(*reinterpret_cast<HipKernel*>(kernel), function);
  if (result != CUDA_SUCCESS) return result;
  return hip.hipModuleLaunchKernel(function, blocks_x, blocks_y, blocks_z, threads_x, threads_y,
                                   threads_z, shared_bytes, stream, parameters, extra);
}

// Returns the name of the first function that HIP lacks, or null.
const char* LoadAll(void* library, DriverFunctions& functions) {
#define WAYBILL_LOAD(cu, name)                                                              \
  functions.cu##_fn = reinterpret_cast<decltype(functions.cu##_fn)>(dlsym(library, #name)); \
  if (functions.cu##_fn == nullptr) return #name;
  WAYBILL_SAME_IN_HIP(WAYBILL_LOAD)
#undef WAYBILL_LOAD
#define WAYBILL_LOAD(name)                                                \
  hip.name = reinterpret_cast<decltype(hip.name)>(dlsym(library, #name)); \
  if (hip.name == nullptr) return #name;
  WAYBILL_LOAD(hipDeviceGetAttribute)
  WAYBILL_LOAD(hipGetDevice)
  WAYBILL_LOAD(hipMemcpyAsync)
  WAYBILL_LOAD(hipModuleGetFunction)
  WAYBILL_LOAD(hipModuleLaunchKernel)
  WAYBILL_LOAD(hipModuleLoadData)
  WAYBILL_LOAD(hipPointerGetAttribute)
  WAYBILL_LOAD(hipSetDevice)
#undef WAYBILL_LOAD
  return nullptr;
}

}  // namespace

std::string LoadHip(DriverFunctions& functions, const void*& image) {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return dlerror();
  const auto get_version =
      reinterpret_cast<CUresult (*)(int*)>(dlsym(library, "hipRuntimeGetVersion"));
  int version = 0;
  if (get_version == nullptr || get_version(&version) != CUDA_SUCCESS || version < kOldestVersion) {
    return std::string(kLibrary) + " is of ROCm " + std::to_string(version / 100'00000) + "." +
           std::to_string(version / 100'000 % 100) +
           ", and the oldest that works is 7.1: " + "install a newer one";
  }
  if (const char* const missing = LoadAll(library, functions); missing != nullptr) {
    return std::string(kLibrary) + " has no " + missing + ": its ROCm is older than 7.1";
  }
  image = waybill_hip_kernels_begin;
  retain_handle = functions.cuMemRetainAllocationHandle_fn;
  release_handle = functions.cuMemRelease_fn;
  functions.cuCtxPopCurrent_fn = PopContext;
  functions.cuCtxPushCurrent_fn = PushContext;
  functions.cuCtxSetCurrent_fn = SetContext;
  functions.cuDeviceGetAttribute_fn = GetAttribute;
  functions.cuDevicePrimaryCtxRelease_fn = ReleasePrimaryContext;
  functions.cuDevicePrimaryCtxRetain_fn = RetainPrimaryContext;
  functions.cuFlushGPUDirectRDMAWrites_fn = FlushInboundWrites;
  functions.cuFuncLoad_fn = LoadFunction;
  functions.cuKernelGetFunction_fn = GetKernelFunction;
  functions.cuLaunchKernel_fn = LaunchKernel;
  functions.cuLibraryEnumerateKernels_fn = EnumerateNoKernels;
  functions.cuLibraryGetKernel_fn = GetKernel;
  functions.cuLibraryGetKernelCount_fn = LoadAllKernels;
  functions.cuLibraryLoadData_fn = LoadLibrary;
  functions.cuMemcpyAsync_fn = CopyAsync;
  functions.cuPointerGetAttribute_fn = GetPointerAttribute;
  return "";
}

}  // namespace waybill::kernels::cuda
