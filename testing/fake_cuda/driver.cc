// SPDX-License-Identifier: Apache-2.0

// The driver's functions that Waybill calls, over the fake GPUs.

#include <cuda.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "kernels/cuda/host_kernels.h"
#include "testing/fake_cuda/fake_cuda.h"
#include "testing/fake_cuda/gpu.h"

#define FAKE extern "C" __attribute__((visibility("default"))) CUresult

struct CUctx_st {
  int device;
};
struct CUstream_st {
  explicit CUstream_st(int device) : stream(device) {}
  waybill::FakeStream stream;
  std::atomic<bool> is_captured = false;
};
struct CUevent_st {
  explicit CUevent_st(int device) : device(device) {}
  const int device;
  std::shared_ptr<waybill::FakeEvent> event = std::make_shared<waybill::FakeEvent>();
  std::atomic<bool> is_captured = false;
};

namespace {

using waybill::FakeMemory;
using waybill::kernels::cuda::HostKernel;
using waybill::kernels::cuda::HostKernels;

CUctx_st contexts[kFakeGpuCount] = {{0}, {1}};
thread_local std::vector<CUcontext> current;
std::atomic<int64_t> calls_left{-1};  // Below 0: no end.
std::atomic<uint64_t> bytes_to_host{0};
std::atomic<uint64_t> bytes_to_device{0};
std::atomic<uint64_t> device_waits{0};
std::atomic<uint64_t> round_trips{0};
std::atomic<uint64_t> queued{0};
std::atomic<int64_t> streams{0};
std::atomic<int> captured_streams{0};
thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
std::atomic<FakeCudaStep> refused{kFakeCudaNone};
std::mutex attributes_mutex;
// By device and attribute. A program may set them while it is initialised.
std::map<std::pair<int, int>, int>& Attributes() {
  static auto& attributes = *new std::map<std::pair<int, int>, int>;
  return attributes;
}
std::mutex loaded_mutex;
std::set<std::pair<int, const HostKernel*>> loaded;  // By device.
std::mutex events_mutex;
std::set<CUevent> events;  // Those that are not destroyed.

bool IsLive(CUevent event) {
  const std::lock_guard lock(events_mutex);
  return events.contains(event);
}

// Most calls fail on every thread while a stream is captured in the mode "global", which is
// torch's, unless the thread has relaxed its own mode. Calls that only queue work on other streams
// do not.
bool EndsCapture() { return captured_streams > 0 && capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL; }
#define REFUSE_WHILE_CAPTURING \
  if (EndsCapture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED

bool IsLost() { return calls_left == 0; }

bool IsToFail() {
  int64_t left = calls_left;
  while (left > 0 && !calls_left.compare_exchange_weak(left, left - 1)) {
  }
  return left == 0;
}

// The MIG instance that is the process's only GPU, as a test says, or -1.
int MigInstance() {
  static const char* const said = std::getenv("FAKE_CUDA_MIG");
  return said == nullptr ? -1 : std::atoi(said);
}
int VisibleCount() { return MigInstance() < 0 ? kFakeGpuCount : 1; }

int AttributeOf(int device, CUdevice_attribute attribute) {
  const std::lock_guard lock(attributes_mutex);
  const auto found = Attributes().find({device, attribute});
  return found == Attributes().end() ? 0 : found->second;
}

// On Grace, where the GPU is coherent with the host: the driver says that writes are ordered, its
// flush does nothing, and there are two ways to the GPU, between which nothing orders them.
bool IsCoherent(int device) {
  return AttributeOf(device, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES) != 0;
}

bool OrdersWrites(int device) {
  return AttributeOf(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING) >=
             CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER &&
         !IsCoherent(device);
}

std::byte* At(CUdeviceptr address) { return reinterpret_cast<std::byte*>(address); }

bool HasContext() { return !current.empty() && current.back() != nullptr; }

// The null stream is the current context's. Null: there is none.
CUstream_st* StreamOf(CUstream stream) {
  static CUstream_st* const null_streams[kFakeGpuCount] = {new CUstream_st(0), new CUstream_st(1)};
  if (stream != nullptr) return stream;
  return HasContext() ? null_streams[current.back()->device] : nullptr;
}

// In a stream that is captured nothing runs. The stream says on which GPU the work is; another
// GPU's context must not be current.
CUresult QueueBeside(CUstream to, std::function<void()> work) {
  CUstream_st* const stream = StreamOf(to);
  if (stream == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (HasContext() && current.back()->device != stream->stream.device()) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  if (!stream->is_captured) stream->stream.Queue(std::move(work));
  ++queued;
  return CUDA_SUCCESS;
}

// Nothing else runs meanwhile.
CUresult Queue(CUstream to, std::function<void()> work) {
  CUstream_st* const stream = StreamOf(to);
  if (stream == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return QueueBeside(to, [device = stream->stream.device(), work = std::move(work)] {
    FakeMemory::Get().RunAsGpu(device, work);
  });
}

CUresult RunNow(const std::function<void()>& work) {
  REFUSE_WHILE_CAPTURING;
  if (!HasContext()) return CUDA_ERROR_INVALID_CONTEXT;
  ++round_trips;
  FakeMemory::Get().RunAsGpu(current.back()->device, work);
  return CUDA_SUCCESS;
}

// As some calls do: they wait for all that is queued on a GPU, whoever queued it.
void WaitFor(int device) {
  ++device_waits;
  waybill::FakeStream::FinishAll(device);
}

void CopyNow(CUdeviceptr to, CUdeviceptr from, size_t size_bytes) {
  const FakeMemory& memory = FakeMemory::Get();
  const bool from_device = memory.DeviceOf(At(from)) >= 0, to_device = memory.DeviceOf(At(to)) >= 0;
  if (from_device && !to_device) bytes_to_host += size_bytes;
  if (!from_device && to_device) bytes_to_device += size_bytes;
  std::memcpy(At(to), At(from), size_bytes);
}

}  // namespace

// Of CUDA 13.0, or what a test says.
FAKE cuDriverGetVersion(int* version) {
  const char* const said = std::getenv("FAKE_CUDA_DRIVER_VERSION");
  *version = said == nullptr ? 13000 : std::atoi(said);
  return CUDA_SUCCESS;
}
FAKE cuInit(unsigned) { return CUDA_SUCCESS; }
FAKE cuDeviceGetCount(int* count) {
  *count = VisibleCount();
  return CUDA_SUCCESS;
}
FAKE cuDeviceGet(CUdevice* device, int ordinal) {
  if (ordinal < 0 || ordinal >= VisibleCount()) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}
FAKE cuDeviceGetName(char* name, int size, CUdevice) {
  std::strncpy(name, MigInstance() < 0 ? "Fake GPU" : "Fake GPU MIG 1g.16gb",
               static_cast<size_t>(size));
  return CUDA_SUCCESS;
}
FAKE cuDeviceGetPCIBusId(char* text, int size, CUdevice device) {
  // As the driver writes it, in capitals.
  return snprintf(text, static_cast<size_t>(size), "0000:%02X:00.0", 0x3B + device) < size
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}
FAKE cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  if (const char* const said = std::getenv("FAKE_CUDA_UUID"); said != nullptr) {
    std::memcpy(uuid->bytes, said, sizeof(uuid->bytes));
    return CUDA_SUCCESS;
  }
  for (int i = 0; i < 16; ++i) uuid->bytes[i] = static_cast<char>(i == 15 ? device : 0xA0 + i);
  if (MigInstance() >= 0) uuid->bytes[14] = static_cast<char>(MigInstance());
  return CUDA_SUCCESS;
}
FAKE cuDeviceTotalMem(size_t* size_bytes, CUdevice) {
  *size_bytes = size_t{16} << 30;
  return CUDA_SUCCESS;
}
FAKE cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  // The module nvidia-peermem pins pages in a way that MIG does not have.
  const bool lacks_it =
      attribute == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED && MigInstance() >= 0;
  *value = lacks_it ? 0 : AttributeOf(device, attribute);
  return CUDA_SUCCESS;
}
FAKE cuGetErrorName(CUresult result, const char** name) {
  *name = result == CUDA_ERROR_LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED" : "CUDA_ERROR";
  return CUDA_SUCCESS;
}
FAKE cuGetErrorString(CUresult, const char** text) {
  *text = "the fake driver was told to fail, or asked for what it has not";
  return CUDA_SUCCESS;
}

FAKE cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  if (refused == kFakeCudaContext) return CUDA_ERROR_DEVICE_UNAVAILABLE;
  *context = &contexts[device];
  return CUDA_SUCCESS;
}
FAKE cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }
FAKE cuCtxSetCurrent(CUcontext context) {
  if (current.empty()) current.push_back(nullptr);
  current.back() = context;
  return CUDA_SUCCESS;
}
FAKE cuCtxGetCurrent(CUcontext* context) {
  *context = current.empty() ? nullptr : current.back();
  return CUDA_SUCCESS;
}
FAKE cuCtxPushCurrent(CUcontext context) {
  current.push_back(context);
  return CUDA_SUCCESS;
}
FAKE cuCtxPopCurrent(CUcontext* context) {
  if (current.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *context = current.back();
  current.pop_back();
  return CUDA_SUCCESS;
}

FAKE cuMemAlloc(CUdeviceptr* address, size_t size_bytes) {
  REFUSE_WHILE_CAPTURING;
  if (!HasContext()) return CUDA_ERROR_INVALID_CONTEXT;
  if (IsToFail()) return CUDA_ERROR_LAUNCH_FAILED;
  if (size_bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  ++device_waits;
  std::byte* const memory = FakeMemory::Get().Allocate(size_bytes, current.back()->device);
  *address = reinterpret_cast<CUdeviceptr>(memory);
  return memory == nullptr ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
FAKE cuMemFree(CUdeviceptr address) {
  REFUSE_WHILE_CAPTURING;
  if (const int device = FakeMemory::Get().DeviceOf(At(address)); device >= 0) WaitFor(device);
  return FakeMemory::Get().Free(At(address)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
FAKE cuMemGetAddressRange(CUdeviceptr* begin, size_t* size_bytes, CUdeviceptr address) {
  if (!HasContext()) return CUDA_ERROR_INVALID_CONTEXT;
  const FakeMemory::Place place = FakeMemory::Get().Find(At(address));
  if (place.size_bytes == 0) return CUDA_ERROR_NOT_FOUND;
  *begin = reinterpret_cast<CUdeviceptr>(place.begin);
  *size_bytes = place.size_bytes;
  return CUDA_SUCCESS;
}
FAKE cuMemGetHandleForAddressRange(void* handle, CUdeviceptr begin, size_t size_bytes,
                                   CUmemRangeHandleType type, unsigned long long flags) {
  REFUSE_WHILE_CAPTURING;
  const int device = FakeMemory::Get().DeviceOfPages(At(begin));
  if (device < 0 || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!HasContext() || current.back()->device != device) return CUDA_ERROR_INVALID_CONTEXT;
  if (AttributeOf(device, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) == 0) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (IsToFail() || refused == kFakeCudaDmabuf) return CUDA_ERROR_OUT_OF_MEMORY;
  const int fd = FakeMemory::Get().Export(At(begin), size_bytes, OrdersWrites(device));
  *static_cast<int*>(handle) = fd;
  return fd < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
FAKE cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget,
                                CUflushGPUDirectRDMAWritesScope scope) {
  REFUSE_WHILE_CAPTURING;
  if (!HasContext()) return CUDA_ERROR_INVALID_CONTEXT;
  // Other GPUs copy from this one, too.
  if (scope != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES) return CUDA_ERROR_INVALID_VALUE;
  if ((AttributeOf(current.back()->device,
                   CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS) &
       CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST) == 0) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (IsToFail()) return CUDA_ERROR_LAUNCH_FAILED;
  const int device = current.back()->device;
  if (!IsCoherent(device)) FakeMemory::Get().Flush(device);
  return CUDA_SUCCESS;
}
FAKE cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr begin) {
  REFUSE_WHILE_CAPTURING;
  if (!HasContext()) return CUDA_ERROR_INVALID_CONTEXT;
  FakeMemory::Handle found = FakeMemory::Get().HandleOf(At(begin));
  found.instance = MigInstance();
  *handle = std::bit_cast<CUipcMemHandle>(found);
  return found.process == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
FAKE cuIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  REFUSE_WHILE_CAPTURING;
  if (!HasContext()) return CUDA_ERROR_INVALID_CONTEXT;
  const auto of = std::bit_cast<FakeMemory::Handle>(handle);
  if (of.process == getpid()) return CUDA_ERROR_INVALID_CONTEXT;
  if (of.instance != MigInstance()) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
  if (IsToFail() || refused == kFakeCudaOpen) return CUDA_ERROR_OPERATING_SYSTEM;
  std::byte* const mapping = FakeMemory::Get().Open(of, current.back()->device);
  *address = reinterpret_cast<CUdeviceptr>(mapping);
  return mapping == nullptr ? CUDA_ERROR_MAP_FAILED : CUDA_SUCCESS;
}
FAKE cuIpcCloseMemHandle(CUdeviceptr address) {
  REFUSE_WHILE_CAPTURING;
  return FakeMemory::Get().Close(At(address)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
// --- memory of cuMemCreate() ---

FAKE cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*,
                                   CUmemAllocationGranularity_flags) {
  *bytes = FakeMemory::kGranularityBytes;
  return CUDA_SUCCESS;
}
FAKE cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size_bytes,
                 const CUmemAllocationProp* properties, unsigned long long flags) {
  REFUSE_WHILE_CAPTURING;
  if (properties->type != CU_MEM_ALLOCATION_TYPE_PINNED || flags != 0 ||
      properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (properties->location.id < 0 || properties->location.id >= kFakeGpuCount) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  *handle = FakeMemory::Get().Create(size_bytes, {properties->location.id, MigInstance()},
                                     properties->requestedHandleTypes);
  return *handle == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
FAKE cuMemRelease(CUmemGenericAllocationHandle handle) {
  REFUSE_WHILE_CAPTURING;
  return FakeMemory::Get().Release(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
FAKE cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  REFUSE_WHILE_CAPTURING;
  if (refused == kFakeCudaRetain) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = FakeMemory::Get().Retain(static_cast<std::byte*>(address));
  return *handle == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
FAKE cuMemExportToShareableHandle(void* file, CUmemGenericAllocationHandle handle,
                                  CUmemAllocationHandleType type, unsigned long long flags) {
  REFUSE_WHILE_CAPTURING;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (refused == kFakeCudaExport) return CUDA_ERROR_OUT_OF_MEMORY;
  const int fd = FakeMemory::Get().ExportFile(handle, type);
  if (fd < 0) return CUDA_ERROR_INVALID_VALUE;
  *static_cast<int*>(file) = fd;
  return CUDA_SUCCESS;
}
FAKE cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* file,
                                    CUmemAllocationHandleType type) {
  REFUSE_WHILE_CAPTURING;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  if (refused == kFakeCudaImport) return CUDA_ERROR_OUT_OF_MEMORY;
  const int fd = static_cast<int>(reinterpret_cast<intptr_t>(file));
  const std::optional<FakeMemory::Home> home = FakeMemory::HomeOf(fd);
  if (!home) return CUDA_ERROR_INVALID_VALUE;
  if (home->instance != MigInstance()) return CUDA_ERROR_NOT_SUPPORTED;
  *handle = FakeMemory::Get().ImportFile(fd, *home);
  return CUDA_SUCCESS;
}
FAKE cuMemAddressReserve(CUdeviceptr* begin, size_t size_bytes, size_t alignment, CUdeviceptr,
                         unsigned long long flags) {
  REFUSE_WHILE_CAPTURING;
  if (alignment > FakeMemory::kGranularityBytes || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (refused == kFakeCudaReserve) return CUDA_ERROR_OUT_OF_MEMORY;
  std::byte* const reserved = FakeMemory::Get().Reserve(size_bytes);
  *begin = reinterpret_cast<CUdeviceptr>(reserved);
  return reserved == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
FAKE cuMemAddressFree(CUdeviceptr begin, size_t size_bytes) {
  REFUSE_WHILE_CAPTURING;
  return FakeMemory::Get().FreeAddresses(At(begin), size_bytes) ? CUDA_SUCCESS
                                                                : CUDA_ERROR_INVALID_VALUE;
}
FAKE cuMemMap(CUdeviceptr begin, size_t size_bytes, size_t offset,
              CUmemGenericAllocationHandle handle, unsigned long long flags) {
  REFUSE_WHILE_CAPTURING;
  if (offset != 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (refused == kFakeCudaMap) return CUDA_ERROR_OUT_OF_MEMORY;
  return FakeMemory::Get().Map(At(begin), size_bytes, handle) ? CUDA_SUCCESS
                                                              : CUDA_ERROR_INVALID_VALUE;
}
FAKE cuMemUnmap(CUdeviceptr begin, size_t size_bytes) {
  REFUSE_WHILE_CAPTURING;
  return FakeMemory::Get().Unmap(At(begin), size_bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
FAKE cuMemSetAccess(CUdeviceptr begin, size_t size_bytes, const CUmemAccessDesc* access,
                    size_t count) {
  REFUSE_WHILE_CAPTURING;
  if (refused == kFakeCudaAllow) return CUDA_ERROR_INVALID_DEVICE;
  for (size_t i = 0; i < count; ++i) {
    const int device = access[i].location.id;
    if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || device < 0 ||
        device >= kFakeGpuCount) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    if (access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE ||
        !FakeMemory::Get().Allow(At(begin), size_bytes, device)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}

FAKE cuMemHostRegister(void* memory, size_t size_bytes, unsigned) {
  REFUSE_WHILE_CAPTURING;
  if (!HasContext()) return CUDA_ERROR_INVALID_CONTEXT;
  if (IsToFail()) return CUDA_ERROR_LAUNCH_FAILED;
  ++device_waits;
  return FakeMemory::Get().Pin(static_cast<std::byte*>(memory), size_bytes)
             ? CUDA_SUCCESS
             : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}
FAKE cuMemHostUnregister(void* memory) {
  REFUSE_WHILE_CAPTURING;
  if (HasContext()) WaitFor(current.back()->device);
  return FakeMemory::Get().Unpin(static_cast<std::byte*>(memory))
             ? CUDA_SUCCESS
             : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}
FAKE cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  const int device = FakeMemory::Get().DeviceOf(At(address));
  if (device < 0 && !FakeMemory::Get().IsPinned(At(address))) return CUDA_ERROR_INVALID_VALUE;
  if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
    *static_cast<unsigned*>(value) = device < 0 ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    return CUDA_SUCCESS;
  }
  if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID && device >= 0) {
    *static_cast<unsigned long long*>(value) = FakeMemory::Get().Find(At(address)).id;
    return CUDA_SUCCESS;
  }
  // Booleans have the size of an int.
  if (attribute == CU_POINTER_ATTRIBUTE_IS_MANAGED) {
    *static_cast<int*>(value) = FakeMemory::Get().Find(At(address)).managed ? 1 : 0;
    return CUDA_SUCCESS;
  }
  if (attribute == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE) {
    *static_cast<int*>(value) = FakeMemory::Get().Find(At(address)).is_created ? 0 : 1;
    return CUDA_SUCCESS;
  }
  if (attribute == CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES) {
    *static_cast<unsigned long long*>(value) = FakeMemory::Get().Find(At(address)).handle_types;
    return CUDA_SUCCESS;
  }
  if (attribute != CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) return CUDA_ERROR_NOT_SUPPORTED;
  *static_cast<int*>(value) = device < 0 ? 0 : device;  // Host memory is pinned for the first one.
  return CUDA_SUCCESS;
}
FAKE cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size_bytes, CUstream stream) {
  if (IsToFail()) return CUDA_ERROR_LAUNCH_FAILED;
  const CUresult result = Queue(stream, [=] { CopyNow(to, from, size_bytes); });
  // A copy between a GPU and memory of the host that is not pinned returns when it is done.
  const auto is_pageable = [](CUdeviceptr address) {
    return FakeMemory::Get().DeviceOf(At(address)) < 0 && !FakeMemory::Get().IsPinned(At(address));
  };
  CUstream_st* const on = StreamOf(stream);
  if (result == CUDA_SUCCESS && !on->is_captured && (is_pageable(to) || is_pageable(from))) {
    ++round_trips;
    on->stream.Finish();
  }
  return result;
}
FAKE cuMemcpyDtoH(void* to, CUdeviceptr from, size_t size_bytes) {
  return RunNow([=] { CopyNow(reinterpret_cast<CUdeviceptr>(to), from, size_bytes); });
}
FAKE cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t size_bytes) {
  return RunNow([=] { CopyNow(to, reinterpret_cast<CUdeviceptr>(from), size_bytes); });
}
FAKE cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t size_bytes, CUstream stream) {
  if (IsToFail()) return CUDA_ERROR_LAUNCH_FAILED;
  return Queue(stream, [=] { std::memset(At(to), value, size_bytes); });
}

FAKE cuStreamCreate(CUstream* stream, unsigned) {
  REFUSE_WHILE_CAPTURING;
  if (!HasContext()) return CUDA_ERROR_INVALID_CONTEXT;
  if (IsToFail()) return CUDA_ERROR_LAUNCH_FAILED;
  *stream = new CUstream_st(current.back()->device);
  ++streams;
  return CUDA_SUCCESS;
}
FAKE cuStreamDestroy(CUstream stream) {
  REFUSE_WHILE_CAPTURING;
  delete stream;
  --streams;
  return CUDA_SUCCESS;
}
FAKE cuStreamSynchronize(CUstream to) {
  REFUSE_WHILE_CAPTURING;
  CUstream_st* const stream = StreamOf(to);
  if (stream == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (stream->is_captured) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  ++round_trips;
  // Also where it fails: a lost GPU writes nothing later.
  stream->stream.Finish();
  return IsToFail() ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS;
}
FAKE cuStreamWaitEvent(CUstream to, CUevent event, unsigned) {
  if (!IsLive(event)) return CUDA_ERROR_INVALID_HANDLE;
  if (IsToFail()) return CUDA_ERROR_LAUNCH_FAILED;
  // Whoever waits for an event that is captured is captured too.
  if (CUstream_st* const stream = StreamOf(to); stream != nullptr && event->is_captured) {
    stream->is_captured = true;
  }
  return QueueBeside(to, [state = event->event, recording = event->event->recorded()] {
    state->Await(recording);
  });
}
FAKE cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  if (IsToFail()) return CUDA_ERROR_LAUNCH_FAILED;
  // After an error that lasts, the driver calls no functions of the host any more.
  return QueueBeside(stream, [=] {
    if (!IsLost()) function(data);
  });
}

FAKE cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void* data, unsigned flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (IsToFail()) return CUDA_ERROR_LAUNCH_FAILED;
  // Unlike functions of the host it is called after an error too, and told of it.
  return QueueBeside(
      stream, [=] { callback(stream, IsLost() ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS, data); });
}

FAKE cuEventCreate(CUevent* event, unsigned) {
  REFUSE_WHILE_CAPTURING;
  if (!HasContext()) return CUDA_ERROR_INVALID_CONTEXT;
  if (IsToFail()) return CUDA_ERROR_LAUNCH_FAILED;
  *event = new CUevent_st(current.back()->device);
  const std::lock_guard lock(events_mutex);
  events.insert(*event);
  return CUDA_SUCCESS;
}
FAKE cuEventDestroy(CUevent event) {
  REFUSE_WHILE_CAPTURING;
  {
    const std::lock_guard lock(events_mutex);
    if (events.erase(event) == 0) return CUDA_ERROR_INVALID_HANDLE;
  }
  delete event;
  return CUDA_SUCCESS;
}
FAKE cuEventRecord(CUevent event, CUstream to) {
  if (!IsLive(event)) return CUDA_ERROR_INVALID_HANDLE;
  if (IsToFail()) return CUDA_ERROR_LAUNCH_FAILED;
  CUstream_st* const stream = StreamOf(to);
  if (stream == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (stream->stream.device() != event->device) return CUDA_ERROR_INVALID_HANDLE;
  event->is_captured = stream->is_captured.load();
  return QueueBeside(to, [state = event->event, recording = event->event->Record()] {
    state->Complete(recording);
  });
}
FAKE cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  std::swap(*mode, capture_mode);
  return CUDA_SUCCESS;
}
FAKE cuEventQuery(CUevent event) {
  REFUSE_WHILE_CAPTURING;
  if (!IsLive(event)) return CUDA_ERROR_INVALID_HANDLE;
  if (event->is_captured) return CUDA_ERROR_CAPTURED_EVENT;
  if (IsToFail()) return CUDA_ERROR_LAUNCH_FAILED;
  return event->event->IsCompleted() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
FAKE cuEventSynchronize(CUevent event) {
  REFUSE_WHILE_CAPTURING;
  if (!IsLive(event)) return CUDA_ERROR_INVALID_HANDLE;
  if (event->is_captured) return CUDA_ERROR_CAPTURED_EVENT;
  ++round_trips;
  event->event->Await(event->event->recorded());
  return CUDA_SUCCESS;
}
FAKE cuEventElapsedTime(float*, CUevent, CUevent) { return CUDA_ERROR_NOT_SUPPORTED; }

FAKE cuLibraryLoadData(CUlibrary* library, const void*, CUjit_option*, void**, unsigned,
                       CUlibraryOption*, void**, unsigned) {
  REFUSE_WHILE_CAPTURING;
  *library = nullptr;
  return CUDA_SUCCESS;
}
FAKE cuLibraryGetKernelCount(unsigned* count, CUlibrary) {
  *count = static_cast<unsigned>(HostKernels().size());
  return CUDA_SUCCESS;
}
FAKE cuLibraryEnumerateKernels(CUkernel* kernels, unsigned count, CUlibrary) {
  const std::span<const HostKernel> all = HostKernels();
  if (count > all.size()) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) {
    kernels[i] = reinterpret_cast<CUkernel>(const_cast<HostKernel*>(&all[i]));
  }
  return CUDA_SUCCESS;
}
// Names the kernel in the current context, and loads nothing: loading is lazy.
FAKE cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  if (!HasContext()) return CUDA_ERROR_INVALID_CONTEXT;
  *function = reinterpret_cast<CUfunction>(kernel);
  return CUDA_SUCCESS;
}
FAKE cuFuncLoad(CUfunction function) {
  REFUSE_WHILE_CAPTURING;
  if (!HasContext()) return CUDA_ERROR_INVALID_CONTEXT;
  const std::lock_guard lock(loaded_mutex);
  loaded.insert({current.back()->device, reinterpret_cast<const HostKernel*>(function)});
  return CUDA_SUCCESS;
}
FAKE cuLibraryGetKernel(CUkernel* kernel, CUlibrary, const char* name) {
  const HostKernel* const found = waybill::kernels::cuda::FindHostKernel(name);
  *kernel = reinterpret_cast<CUkernel>(const_cast<HostKernel*>(found));
  return found == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}
FAKE cuLaunchKernel(CUfunction function, unsigned blocks, unsigned, unsigned, unsigned threads,
                    unsigned, unsigned, unsigned, CUstream stream, void** parameters, void**) {
  if (IsToFail()) return CUDA_ERROR_LAUNCH_FAILED;
  const auto* const kernel = reinterpret_cast<const HostKernel*>(function);
  const auto* const first = static_cast<const std::byte*>(parameters[0]);
  CUstream_st* const on = StreamOf(stream);
  if (on == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  {
    // The first launch of a kernel loads it, for which the driver may wait for all streams.
    const std::lock_guard lock(loaded_mutex);
    if (loaded.insert({on->stream.device(), kernel}).second) ++device_waits;
  }
  // As aligned as new storage is, which is enough for every argument.
  std::vector<std::byte> arguments(first, first + kernel->argument_bytes);
  return Queue(stream, [=] {
    waybill::kernels::cuda::RunOnHost(*kernel, blocks, threads, arguments.data());
  });
}

extern "C" __attribute__((visibility("default"))) void FakeCudaSetAttribute(int device,
                                                                            int attribute,
                                                                            int value) {
  const std::lock_guard lock(attributes_mutex);
  Attributes()[{device, attribute}] = value;
}
extern "C" __attribute__((visibility("default"))) void FakeCudaSayOfNics(int device,
                                                                         FakeCudaWrites writes,
                                                                         bool exports_dmabuf) {
  FakeCudaSetAttribute(device, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, exports_dmabuf ? 1 : 0);
  const bool is_coherent = writes == kFakeCudaCoherent;
  FakeCudaSetAttribute(device, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
                       is_coherent ? 1 : 0);
  FakeCudaSetAttribute(
      device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING,
      is_coherent || writes == kFakeCudaOrders ? CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES
      : writes == kFakeCudaOrdersForOwner      ? CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER
                                               : CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE);
  const bool has_flush =
      is_coherent || writes == kFakeCudaFlushes || writes == kFakeCudaOrdersForOwner;
  FakeCudaSetAttribute(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS,
                       has_flush ? CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST : 0);
}
extern "C" __attribute__((visibility("default"))) void FakeCudaNicHasRead() {
  for (int device = 0; device < kFakeGpuCount; ++device) {
    const bool has_flush =
        AttributeOf(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS) != 0;
    if (!has_flush || IsCoherent(device)) FakeMemory::Get().Flush(device);
  }
}
extern "C" __attribute__((visibility("default"))) void FakeCudaSayOfFiles(int device,
                                                                          bool has_files) {
  FakeCudaSetAttribute(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                       has_files ? 1 : 0);
}
extern "C" __attribute__((visibility("default"))) void FakeCudaCapture(CUstream_st* stream,
                                                                       bool is_captured) {
  if (stream->is_captured.exchange(is_captured) != is_captured) {
    captured_streams += is_captured ? 1 : -1;
  }
}
extern "C" __attribute__((visibility("default"))) void FakeCudaRemap(void* memory) {
  FakeMemory::Get().Remap(static_cast<std::byte*>(memory));
}
extern "C" __attribute__((visibility("default"))) void FakeCudaMakeManaged(void* memory) {
  FakeMemory::Get().MakeManaged(static_cast<std::byte*>(memory));
}
extern "C" __attribute__((visibility("default"))) int FakeCudaPeerMemory(uint64_t begin,
                                                                         uint64_t size_bytes) {
  const int device = FakeMemory::Get().DeviceOfPages(At(begin));
  return device < 0 ? -1 : FakeMemory::Get().Export(At(begin), size_bytes, OrdersWrites(device));
}
extern "C" __attribute__((visibility("default"))) void FakeCudaRefuse(FakeCudaStep step) {
  refused = step;
}
extern "C" __attribute__((visibility("default"))) void FakeCudaFail(int64_t after) {
  calls_left = after;
}
extern "C" __attribute__((visibility("default"))) void FakeCudaHold(bool is_held) {
  FakeMemory::Get().Hold(is_held);
}
extern "C" __attribute__((visibility("default"))) FakeCudaUse FakeCudaNow() {
  const FakeMemory& memory = FakeMemory::Get();
  return {memory.allocation_count(),
          memory.pin_count(),
          static_cast<uint64_t>(streams.load()),
          bytes_to_host.load(),
          bytes_to_device.load(),
          memory.handle_count(),
          memory.reservation_count(),
          device_waits.load(),
          round_trips.load(),
          queued.load()};
}
