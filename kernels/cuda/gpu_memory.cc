// SPDX-License-Identifier: Apache-2.0

// The tests' memory on the first GPU, in its primary context.

#include <cuda.h>

#include <cstdint>
#include <string>

#include "kernels/cuda/driver_functions.h"
#include "kernels/cuda/test_memory.h"

namespace waybill::kernels::cuda {
namespace {

class GpuMemory : public TestMemory {
 public:
  std::string Reason() override {
    if (!is_open_) {
      is_open_ = true;
      reason_ = Open();
    }
    return reason_;
  }

  // Null where there is no more: what is launched on it then fails.
  void* Allocate(size_t size_bytes) override {
    CUdeviceptr memory = 0;
    Driver()->cuMemAlloc_fn(&memory, size_bytes);
    return reinterpret_cast<void*>(memory);
  }
  void Free(void* memory) override { Driver()->cuMemFree_fn(AddressOf(memory)); }
  void Write(void* to, const void* from, size_t size_bytes) override {
    Driver()->cuMemcpyHtoD_fn(AddressOf(to), from, size_bytes);
  }
  void Read(void* to, const void* from, size_t size_bytes) override {
    Driver()->cuStreamSynchronize_fn(stream_);
    Driver()->cuMemcpyDtoH_fn(to, AddressOf(from), size_bytes);
  }
  Stream stream() override { return stream_; }

 private:
  static CUdeviceptr AddressOf(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

  std::string Open() {
    if (Outcome outcome = FindGpu(); !outcome.ok()) return outcome.reason();
    const DriverFunctions& driver = *Driver();
    CUdevice device = 0;
    CUcontext context = nullptr;
    CUresult result = driver.cuDeviceGet_fn(&device, 0);
    if (result == CUDA_SUCCESS) result = driver.cuDevicePrimaryCtxRetain_fn(&context, device);
    if (result == CUDA_SUCCESS) result = driver.cuCtxSetCurrent_fn(context);
    // Not one that runs beside the null stream: Write goes there, and may return before all is
    // there.
    if (result == CUDA_SUCCESS) result = driver.cuStreamCreate_fn(&stream_, CU_STREAM_DEFAULT);
    if (result != CUDA_SUCCESS) return Explain(driver, "open GPU 0", result);
    return PrepareContext().reason();
  }

  bool is_open_ = false;
  std::string reason_;
  CUstream stream_ = nullptr;
};

}  // namespace

TestMemory& TheMemory() {
  static GpuMemory& memory = *new GpuMemory;
  return memory;
}

}  // namespace waybill::kernels::cuda
