// SPDX-License-Identifier: Apache-2.0

// Runs a GPU's threads on the host, one at a time, for tests of kernels without a GPU. This shows
// that indices, bounds and bits are right, but not that memory is ordered or how fast a kernel is.

#ifndef KERNELS_CUDA_HOST_THREADS_H_
#define KERNELS_CUDA_HOST_THREADS_H_

#include <cstdint>
#include <functional>

namespace waybill::kernels::cuda {

// Runs `thread` for each thread of each block. Ends the program if threads of a block wait for
// others that will never come.
void RunBlocks(uint64_t blocks, unsigned threads, const std::function<void()>& thread);

// The indices of the running thread.
struct HostThread {
  unsigned block;
  unsigned threads;
  unsigned index;
};
const HostThread& ThisThread();

// Waits for all threads of the block.
void WaitForBlock();

// Gives `value` to the warp, and gets what the warp's thread `from` gave.
uint64_t ExchangeInWarp(uint64_t value, unsigned from);

}  // namespace waybill::kernels::cuda

#endif  // KERNELS_CUDA_HOST_THREADS_H_
