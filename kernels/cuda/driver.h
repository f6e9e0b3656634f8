// SPDX-License-Identifier: Apache-2.0

// The GPU's driver, which is loaded when it is first needed, and the result of every call of this
// package.
//
// Any thread may make any call of this package. A call queues its work on the caller's stream,
// waits for nothing, and keeps no reference to its arguments. Pointers are to memory that the GPU
// of that stream can use: its own, or pinned host memory.

#ifndef KERNELS_CUDA_DRIVER_H_
#define KERNELS_CUDA_DRIVER_H_

#include <string>
#include <utility>

struct CUstream_st;

namespace waybill::kernels::cuda {

// CUstream in <cuda.h>. Null is the default stream of the current context.
using Stream = CUstream_st*;

// The result of a call: its work is queued, or the reason why not.
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

// Returns whether this process can use a GPU. The first call opens libcuda.so.1, initialises it and
// loads this package's kernels; later calls return the same result. The reason begins with
// "no GPU: ".
Outcome FindGpu();

// Loads all kernels into the thread's current context. Without it each kernel is loaded at its
// first launch there, and that may wait until the GPU is idle.
Outcome PrepareContext();

}  // namespace waybill::kernels::cuda

#endif  // KERNELS_CUDA_DRIVER_H_
