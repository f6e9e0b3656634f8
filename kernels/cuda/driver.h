// The GPU's driver, found when it is first needed, and what every call of this package returns.
//
// All calls of this package may come from any thread. They queue their work on the caller's stream,
// wait for nothing, and keep no reference to their arguments. Pointers are to memory that the GPU
// of that stream can use: its own, or pinned host memory.

#ifndef KERNELS_CUDA_DRIVER_H_
#define KERNELS_CUDA_DRIVER_H_

#include <string>
#include <utility>

struct CUstream_st;

namespace waybill::kernels::cuda {

// What <cuda.h> calls CUstream. Null is the stream of the current context that is always there.
using Stream = CUstream_st*;

// What became of a call: its work is queued, or there is a reason why not.
class [[nodiscard]] Outcome {
 public:
  Outcome() = default;
  static Outcome Failed(std::string reason) { return Outcome(std::move(reason)); }

  bool ok() const { return reason_.empty(); }
  const std::string& reason() const { return reason_; }

 private:
  explicit Outcome(std::string reason) : reason_(std::move(reason)) {}

  std::string reason_;
};

// Whether this process can use a GPU: opens libcuda.so.1, initialises it and gives it this
// package's kernels. Done once, by whoever asks first; what came of it is remembered. The reason
// begins with "no GPU: ".
Outcome FindGpu();

// Loads all kernels into the thread's current context. Without it each kernel is loaded at its
// first launch there, and that may wait until the GPU is idle.
Outcome PrepareContext();

}  // namespace waybill::kernels::cuda

#endif  // KERNELS_CUDA_DRIVER_H_
