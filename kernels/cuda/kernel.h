// SPDX-License-Identifier: Apache-2.0

// One kernel of the embedded image, and its launch.

#ifndef KERNELS_CUDA_KERNEL_H_
#define KERNELS_CUDA_KERNEL_H_

#include <atomic>
#include <cstdint>

#include "kernels/cuda/driver.h"

struct CUkern_st;

namespace waybill::kernels::cuda {

// The number of thread blocks, and of threads in each.
struct Launch {
  uint64_t blocks;
  unsigned threads = 256;
};

// Queues a kernel by its name. `handle` is the kernel's handle if it was looked up before, or null.
// The caller keeps it.
using Launcher = Outcome (*)(const char* name, std::atomic<CUkern_st*>& handle,
                             const Launch& launch, const void* arguments, Stream stream);

// Queues it on the GPU of the stream.
Outcome LaunchOnGpu(const char* name, std::atomic<CUkern_st*>& handle, const Launch& launch,
                    const void* arguments, Stream stream);

// Sets the function that launches all kernels from now on. Must not be called during a launch.
void SetLauncherForTest(Launcher launcher);

// A kernel in static storage. Its first launch looks it up in the image. One handle serves all
// contexts.
class Kernel {
 public:
  constexpr explicit Kernel(const char* name) : name_(name) {}

  // Queues the kernel. Every kernel of this package takes one struct, `arguments`.
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
