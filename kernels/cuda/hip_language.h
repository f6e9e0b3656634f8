// SPDX-License-Identifier: Apache-2.0

// Defines those parts of CUDA's language that this package's kernels use and hipcc lacks.
//
// The kernels' warps have 32 threads. AMD's have 32 or 64, of which 32 in a row then act as a warp:
// what they exchange stays among them, and each 32 may go their own way.

#ifndef KERNELS_CUDA_HIP_LANGUAGE_H_
#define KERNELS_CUDA_HIP_LANGUAGE_H_

#include <hip/hip_runtime.h>

#include <cstdint>

#define __grid_constant__

// All threads of the warp take part, so the mask is not needed.
template <typename T>
__device__ T __shfl_sync(unsigned, T value, unsigned from) {
  return __shfl(value, static_cast<int>(from), 32);
}

template <typename T>
__device__ T __shfl_xor_sync(unsigned, T value, unsigned apart) {
  return __shfl_xor(value, static_cast<int>(apart), 32);
}

__device__ inline uint32_t __reduce_max_sync(unsigned mask, uint32_t value) {
  for (unsigned apart = 1; apart < 32; apart *= 2) {
    value = max(value, __shfl_xor_sync(mask, value, apart));
  }
  return value;
}

__device__ inline bool __all_sync(unsigned mask, bool value) {
  return __reduce_max_sync(mask, value ? 0 : 1) == 0;
}

#endif  // KERNELS_CUDA_HIP_LANGUAGE_H_
