#include "kernels/cuda/device.h"

#include <cuda.h>

#include <bit>
#include <cstdint>
#include <utility>

#include "kernels/cuda/driver_functions.h"

namespace waybill::kernels::cuda {
namespace {

Outcome Check(const std::string& what, CUresult result) {
  return result == CUDA_SUCCESS ? Outcome() : Outcome::Failed(Explain(*Driver(), what, result));
}

CUdeviceptr AddressOf(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

// Makes a context the thread's current one, and the one before it afterwards.
class Current {
 public:
  explicit Current(CUcontext context) : result_(Driver()->cuCtxPushCurrent_fn(context)) {}
  ~Current() {
    CUcontext popped = nullptr;
    if (result_ == CUDA_SUCCESS) Driver()->cuCtxPopCurrent_fn(&popped);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

  // The first failure of the two.
  template <typename Call>
  Outcome Do(const std::string& what, const Call& call) const {
    return Check(what, result_ == CUDA_SUCCESS ? call() : result_);
  }

 private:
  const CUresult result_;
};

Outcome OrdinalAt(CUdeviceptr address, int& ordinal) {
  unsigned kind = 0;
  if (Driver()->cuPointerGetAttribute_fn(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) !=
          CUDA_SUCCESS ||
      kind != CU_MEMORYTYPE_DEVICE) {
    return Outcome::Failed(kind == CU_MEMORYTYPE_HOST ? "it is host memory"
                                                      : "the driver does not know it");
  }
  return Check(
      "cuPointerGetAttribute",
      Driver()->cuPointerGetAttribute_fn(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address));
}

void CUDA_CB CallAndDelete(void* then) {
  const std::unique_ptr<std::function<void()>> owned(static_cast<std::function<void()>*>(then));
  (*owned)();
}

}  // namespace

Outcome FindDevice(const void* address, size_t size_bytes, int& ordinal) {
  if (Outcome gpu = FindGpu(); !gpu.ok()) return gpu;
  const CUdeviceptr first = AddressOf(address);
  int of_last = 0;
  Outcome found = OrdinalAt(first, ordinal);
  if (found.ok()) found = OrdinalAt(first + (size_bytes == 0 ? 0 : size_bytes - 1), of_last);
  if (found.ok() && of_last != ordinal) found = Outcome::Failed("it ends on another device");
  return found.ok() ? found : Outcome::Failed("no memory of a GPU: " + found.reason());
}

Outcome Device::Open(int ordinal, std::shared_ptr<Device>& device) {
  if (Outcome gpu = FindGpu(); !gpu.ok()) return gpu;
  const std::string what = "open GPU " + std::to_string(ordinal);
  CUdevice number = 0;
  char name[128] = {};
  CUcontext context = nullptr;
  CUresult result = Driver()->cuDeviceGet_fn(&number, ordinal);
  if (result == CUDA_SUCCESS) result = Driver()->cuDeviceGetName_fn(name, sizeof(name), number);
  if (result == CUDA_SUCCESS) result = Driver()->cuDevicePrimaryCtxRetain_fn(&context, number);
  if (result != CUDA_SUCCESS) return Check(what, result);
  device.reset(new Device(ordinal, number, name, context));
  const Current current(context);
  if (Outcome entered = current.Do(what, [] { return CUDA_SUCCESS; }); !entered.ok()) {
    return entered;
  }
  return PrepareContext();
}

Device::~Device() { Driver()->cuDevicePrimaryCtxRelease_fn(handle_); }

Outcome Device::Allocate(size_t size_bytes, void*& memory) {
  CUdeviceptr address = 0;
  Outcome outcome = Current(context_).Do(
      "allocate " + std::to_string(size_bytes) + " bytes on GPU " + std::to_string(ordinal_),
      [&] { return Driver()->cuMemAlloc_fn(&address, size_bytes); });
  memory = std::bit_cast<void*>(address);
  return outcome;
}

void Device::Free(void* memory) {
  if (memory == nullptr) return;
  (void)Current(context_).Do("free", [&] { return Driver()->cuMemFree_fn(AddressOf(memory)); });
}

Outcome Device::Pin(void* memory, size_t size_bytes) {
  return Current(context_).Do("pin " + std::to_string(size_bytes) + " bytes", [&] {
    return Driver()->cuMemHostRegister_fn(memory, size_bytes, CU_MEMHOSTREGISTER_PORTABLE);
  });
}

void Device::Unpin(void* memory) {
  (void)Current(context_).Do("unpin", [&] { return Driver()->cuMemHostUnregister_fn(memory); });
}

Outcome Device::MakeStream(Stream& stream) {
  return Current(context_).Do("make a stream", [&] {
    return Driver()->cuStreamCreate_fn(&stream, CU_STREAM_NON_BLOCKING);
  });
}

void Device::DestroyStream(Stream stream) {
  if (stream == nullptr) return;
  (void)Current(context_).Do("destroy", [&] { return Driver()->cuStreamDestroy_fn(stream); });
}

Outcome Device::Copy(void* to, const void* from, size_t size_bytes, Stream stream) {
  if (size_bytes == 0) return {};
  return Current(context_).Do("copy", [&] {
    return Driver()->cuMemcpyAsync_fn(AddressOf(to), AddressOf(from), size_bytes, stream);
  });
}

Outcome Device::Clear(void* memory, size_t size_bytes, Stream stream) {
  if (size_bytes == 0) return {};
  return Current(context_).Do("clear", [&] {
    return Driver()->cuMemsetD8Async_fn(AddressOf(memory), 0, size_bytes, stream);
  });
}

Outcome Device::Finish(Stream stream) {
  return Current(context_).Do("finish", [&] { return Driver()->cuStreamSynchronize_fn(stream); });
}

Outcome Device::After(Event event, std::function<void()> then) {
  const Current current(context_);
  Stream stream = nullptr;
  Outcome outcome = current.Do("wait for an event", [&] {
    CUresult result = Driver()->cuStreamCreate_fn(&stream, CU_STREAM_NON_BLOCKING);
    if (result != CUDA_SUCCESS) return result;
    auto owned = std::make_unique<std::function<void()>>(std::move(then));
    result = Driver()->cuStreamWaitEvent_fn(stream, event, CU_EVENT_WAIT_DEFAULT);
    if (result == CUDA_SUCCESS) {
      result = Driver()->cuLaunchHostFunc_fn(stream, CallAndDelete, owned.get());
    }
    if (result == CUDA_SUCCESS) (void)owned.release();
    return result;
  });
  // It goes when what is queued has run.
  if (stream != nullptr) Driver()->cuStreamDestroy_fn(stream);
  return outcome;
}

}  // namespace waybill::kernels::cuda
