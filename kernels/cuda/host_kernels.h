// SPDX-License-Identifier: Apache-2.0

// The kernels, compiled for the host: see host_threads.h for what that shows.

#ifndef KERNELS_CUDA_HOST_KERNELS_H_
#define KERNELS_CUDA_HOST_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace waybill::kernels::cuda {

struct HostKernel {
  std::string_view name;
  size_t argument_bytes;  // Every kernel takes one struct.
  void (*run)(const void* arguments);
};

// Returns all kernels.
std::span<const HostKernel> HostKernels();
// Returns null if there is no kernel of that name.
const HostKernel* FindHostKernel(std::string_view name);

// Runs all threads of a launch. The process runs one launch at a time.
void RunOnHost(const HostKernel& kernel, uint64_t blocks, unsigned threads, const void* arguments);

}  // namespace waybill::kernels::cuda

#endif  // KERNELS_CUDA_HOST_KERNELS_H_
