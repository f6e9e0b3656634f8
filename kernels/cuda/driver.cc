// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/driver.h"

#include <cuda.h>
#include <dlfcn.h>

#include <limits>
#include <string>
#include <vector>

#include "kernels/cuda/driver_functions.h"
#include "kernels/cuda/hip_driver.h"
#include "kernels/cuda/kernel.h"

extern "C" const unsigned char waybill_kernels_begin[];
extern "C" const unsigned char waybill_kernels_end[];

namespace waybill::kernels::cuda {
namespace {

// Two steps, so that a macro of <cuda.h> is expanded first.
#define WAYBILL_STRING(text) #text
#define WAYBILL_EXPANDED_STRING(text) WAYBILL_STRING(text)

struct Loaded {
  DriverFunctions functions{};
  CUlibrary library = nullptr;
  std::string reason;
};

// The version of CUDA that the image was made with, which an older driver may not load.
constexpr int kOldestVersion = 13000;

// Returns what is wrong with the version of the driver, or "".
std::string CheckVersion(void* driver) {
  const auto get_version = reinterpret_cast<decltype(&::cuDriverGetVersion)>(
      dlsym(driver, WAYBILL_EXPANDED_STRING(cuDriverGetVersion)));
  int version = 0;
  if (get_version != nullptr && get_version(&version) == CUDA_SUCCESS &&
      version >= kOldestVersion) {
    return "";
  }
  return "the driver (libcuda.so.1) is for CUDA " + std::to_string(version / 1000) + "." +
         std::to_string(version % 1000 / 10) + ", and the oldest that works is that of CUDA 13.0 " +
         "(580): install a newer one";
}

std::string LoadCuda(void* driver, DriverFunctions& functions) {
  if (std::string wrong = CheckVersion(driver); !wrong.empty()) return wrong;
#define WAYBILL_LOAD(name)                                                                 \
  functions.name##_fn =                                                                    \
      reinterpret_cast<decltype(&::name)>(dlsym(driver, WAYBILL_EXPANDED_STRING(name)));   \
  if (functions.name##_fn == nullptr) {                                                    \
    return "libcuda.so.1 has no " WAYBILL_EXPANDED_STRING(name) ": its driver is older " \
           "than those of CUDA 13 (580)"; \
  }
  WAYBILL_DRIVER_FUNCTIONS(WAYBILL_LOAD)
#undef WAYBILL_LOAD
  return {};
}

// A library, unlike a module, belongs to no context: the driver loads it into each that uses it.
std::string LoadImage(const DriverFunctions& functions, const void* image, CUlibrary& library) {
  if (const CUresult result = functions.cuInit_fn(0); result != CUDA_SUCCESS) {
    return Explain(functions, "cuInit", result);
  }
  int count = 0;
  if (const CUresult result = functions.cuDeviceGetCount_fn(&count); result != CUDA_SUCCESS) {
    return Explain(functions, "cuDeviceGetCount", result);
  }
  if (count == 0) {
    return "the driver shows this process none; CUDA_VISIBLE_DEVICES (HIP_VISIBLE_DEVICES) says "
           "which";
  }
  const CUresult result =
      functions.cuLibraryLoadData_fn(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0);
  return result == CUDA_SUCCESS ? "" : Explain(functions, "cuLibraryLoadData", result);
}

// NVIDIA's driver if there is one, else AMD's.
Loaded Load() {
  Loaded loaded;
  const void* image = waybill_kernels_begin;
  std::string reason, no_cuda;
  if (void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL); driver != nullptr) {
    reason = LoadCuda(driver, loaded.functions);
  } else {
    no_cuda = std::string(dlerror()) + "; ";
    reason = LoadHip(loaded.functions, image);
  }
  if (reason.empty()) reason = LoadImage(loaded.functions, image, loaded.library);
  if (!reason.empty()) loaded.reason = "no GPU: " + no_cuda + reason;
  return loaded;
}

// Never unloaded: kernels may be launched while the process ends.
const Loaded& TheDriver() {
  static const Loaded& loaded = *new Loaded(Load());
  return loaded;
}

}  // namespace

std::string Explain(const DriverFunctions& functions, const std::string& what, CUresult result) {
  const char* name = nullptr;
  const char* text = nullptr;
  functions.cuGetErrorName_fn(result, &name);
  functions.cuGetErrorString_fn(result, &text);
  return what + ": " + (name != nullptr ? name : std::to_string(static_cast<int>(result))) + " (" +
         (text != nullptr ? text : "unknown to this driver") + ")";
}

const DriverFunctions* Driver() {
  return TheDriver().reason.empty() ? &TheDriver().functions : nullptr;
}

Outcome FindGpu() {
  const Loaded& loaded = TheDriver();
  return loaded.reason.empty() ? Outcome() : Outcome::Failed(loaded.reason);
}

Outcome PrepareContext() {
  const Loaded& loaded = TheDriver();
  if (!loaded.reason.empty()) return Outcome::Failed(loaded.reason);
  const DriverFunctions& driver = loaded.functions;
  unsigned count = 0;
  CUresult result = driver.cuLibraryGetKernelCount_fn(&count, loaded.library);
  std::vector<CUkernel> kernels(count);
  if (result == CUDA_SUCCESS) {
    result = driver.cuLibraryEnumerateKernels_fn(kernels.data(), count, loaded.library);
  }
  for (size_t i = 0; i < kernels.size() && result == CUDA_SUCCESS; ++i) {
    // Since loading is lazy, the function of a kernel may be a mere name.
    CUfunction function = nullptr;
    result = driver.cuKernelGetFunction_fn(&function, kernels[i]);
    if (result == CUDA_SUCCESS) result = driver.cuFuncLoad_fn(function);
  }
  if (result == CUDA_SUCCESS) return {};
  return Outcome::Failed(Explain(driver, "load kernels into the current context", result));
}

Outcome LaunchOnGpu(const char* name, std::atomic<CUkern_st*>& handle, const Launch& launch,
                    const void* arguments, Stream stream) {
  const Loaded& loaded = TheDriver();
  if (!loaded.reason.empty()) return Outcome::Failed(loaded.reason);
  const DriverFunctions& driver = loaded.functions;
  const auto what = [name] { return std::string("launch ") + name; };
  if (launch.blocks > std::numeric_limits<int32_t>::max()) {
    return Outcome::Failed(what() + ": " + std::to_string(launch.blocks) +
                           " thread blocks, a launch has 2147483647 at most; cut the work");
  }
  CUkernel kernel = handle.load(std::memory_order_acquire);
  if (kernel == nullptr) {
    const CUresult result = driver.cuLibraryGetKernel_fn(&kernel, loaded.library, name);
    if (result != CUDA_SUCCESS) {
      return Outcome::Failed(Explain(driver, what() + ": cuLibraryGetKernel", result));
    }
    handle.store(kernel, std::memory_order_release);
  }
  void* parameters[] = {const_cast<void*>(arguments)};
  const CUresult result = driver.cuLaunchKernel_fn(
      reinterpret_cast<CUfunction>(kernel), static_cast<unsigned>(launch.blocks), 1, 1,
      launch.threads, 1, 1, 0, stream, parameters, nullptr);
  if (result == CUDA_SUCCESS) return {};
  return Outcome::Failed(Explain(driver, what() + ": cuLaunchKernel", result));
}

}  // namespace waybill::kernels::cuda
