// SPDX-License-Identifier: Apache-2.0

// What nvcc knows by itself of the language of .cu files, as far as this package's kernels use it,
// for a host's compiler. See host_threads.h.

#ifndef KERNELS_CUDA_HOST_LANGUAGE_H_
#define KERNELS_CUDA_HOST_LANGUAGE_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/cuda/host_threads.h"

#define __device__
#define __global__
#define __grid_constant__
#define __launch_bounds__(threads)
#define __shared__ static  // One block runs at a time.

struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

struct HostIndex {
  unsigned x;
};
#define threadIdx (HostIndex{::waybill::kernels::cuda::ThisThread().index})
#define blockIdx (HostIndex{::waybill::kernels::cuda::ThisThread().block})
#define blockDim (HostIndex{::waybill::kernels::cuda::ThisThread().threads})

inline void __syncthreads() { waybill::kernels::cuda::WaitForBlock(); }

template <typename T>
T __shfl_sync(unsigned, T value, unsigned from) {
  return static_cast<T>(waybill::kernels::cuda::ExchangeInWarp(value, from));
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, unsigned apart) {
  return __shfl_sync(mask, value, threadIdx.x % 32 ^ apart);
}

inline uint32_t __reduce_max_sync(unsigned mask, uint32_t value) {
  for (unsigned apart = 1; apart < 32; apart *= 2) {
    value = std::max(value, __shfl_xor_sync(mask, value, apart));
  }
  return value;
}

inline bool __all_sync(unsigned mask, bool value) {
  return __reduce_max_sync(mask, value ? 0 : 1) == 0;
}

inline void atomicAdd(unsigned long long* to, unsigned long long value) { *to += value; }
inline void atomicMax(uint32_t* to, uint32_t value) { *to = std::max(*to, value); }

using std::max;
using std::min;

#endif  // KERNELS_CUDA_HOST_LANGUAGE_H_
