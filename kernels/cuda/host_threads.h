// A GPU's threads on the host, one at a time: what the kernels' tests run on where there is no GPU.
// It shows that indices, bounds and bits are right; not that memory is ordered, nor how fast it is.

#ifndef KERNELS_CUDA_HOST_THREADS_H_
#define KERNELS_CUDA_HOST_THREADS_H_

#include <cstdint>
#include <functional>

namespace waybill::kernels::cuda {

// Runs `thread` for each thread of each of the blocks. Ends the program where some of a block's
// threads wait for others that will not come.
void RunBlocks(uint64_t blocks, unsigned threads, const std::function<void()>& thread);

// Of the thread that is running.
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
