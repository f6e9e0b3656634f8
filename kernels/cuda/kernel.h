// One kernel of the embedded image, and its launch.

#ifndef KERNELS_CUDA_KERNEL_H_
#define KERNELS_CUDA_KERNEL_H_

#include <atomic>
#include <cstdint>

#include "kernels/cuda/driver.h"

struct CUkern_st;

namespace waybill::kernels::cuda {

// How many thread blocks of how many threads.
struct Launch {
  uint64_t blocks;
  unsigned threads = 256;
};

// Queues a kernel by its name. `handle` is what it was found to be before, or null; kept by the
// caller.
using Launcher = Outcome (*)(const char* name, std::atomic<CUkern_st*>& handle,
                             const Launch& launch, const void* arguments, Stream stream);

// On the GPU of the stream.
Outcome LaunchOnGpu(const char* name, std::atomic<CUkern_st*>& handle, const Launch& launch,
                    const void* arguments, Stream stream);

// From now on all kernels are launched by this. Not while any is being launched.
void SetLauncherForTest(Launcher launcher);

// Meant for static storage: found in the image at its first launch. One handle serves all contexts.
class Kernel {
 public:
  constexpr explicit Kernel(const char* name) : name_(name) {}

  // Queues it. Every kernel of this package takes one struct: `arguments` is that of this one.
  template <typename Arguments>
  Outcome operator()(const Launch& launch, const Arguments& arguments, Stream stream) {
    return Queue(launch, &arguments, stream);
  }

 private:
  // `arguments` are read before it returns.
  Outcome Queue(const Launch& launch, const void* arguments, Stream stream);

  const char* name_;
  std::atomic<CUkern_st*> handle_{nullptr};
};

}  // namespace waybill::kernels::cuda

#endif  // KERNELS_CUDA_KERNEL_H_
