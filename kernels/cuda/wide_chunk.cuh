// SPDX-License-Identifier: Apache-2.0

// Sixteen bytes of elements, and how two of them become FP8.

#ifndef KERNELS_CUDA_WIDE_CHUNK_CUH_
#define KERNELS_CUDA_WIDE_CHUNK_CUH_

#include <cstdint>

#include "kernels/cuda/element_arithmetic.h"

namespace waybill::kernels::cuda {

// Elements of a type, as 16 aligned bytes hold them.
template <Wide kType>
struct WideChunk {
  static constexpr unsigned kSizeBytes = SizeBytes(kType);
  static constexpr unsigned kElements = 16 / kSizeBytes;

  // `i` is a constant where loops are unrolled.
  __device__ uint32_t Bits(unsigned i) const {
    const uint32_t word = Word(i * kSizeBytes / 4);
    return kSizeBytes == 4 ? word : i % 2 == 0 ? word & 0xffff : word >> 16;
  }

  __device__ float Value(unsigned i, Wide via) const {
    const float value = WideToF32(Bits(i), kType);
    return via == kType ? value : Via(value, via);
  }

  // Returns the largest of the elements and `largest`, without signs.
  __device__ uint32_t Largest(uint32_t largest) const {
    constexpr uint32_t kMask = kSizeBytes == 4 ? kMagnitudeBits : 0x7fff;
#pragma unroll
    for (unsigned i = 0; i < kElements; ++i) largest = max(largest, Bits(i) & kMask);
    return largest;
  }

  __device__ uint32_t Word(unsigned i) const {
    return i == 0 ? raw.x : i == 1 ? raw.y : i == 2 ? raw.z : raw.w;
  }

  uint4 raw = {0, 0, 0, 0};
};

// Returns the bits of the element at `address`.
template <Wide kType>
__device__ uint32_t LoadBits(const uint8_t* address) {
  if (kType == Wide::kF32) return *reinterpret_cast<const uint32_t*>(address);
  return *reinterpret_cast<const uint16_t*>(address);
}

template <Wide kType>
__device__ float LoadValue(const uint8_t* address, Wide via) {
  const float value = WideToF32(LoadBits<kType>(address), kType);
  return via == kType ? value : Via(value, via);
}

// QuantiseElement of two: the first's code in the lower byte.
template <Narrow kTo>
__device__ uint32_t QuantisePair(float low, float high, float factor, Division division) {
#if __CUDA_ARCH__ >= 890
  // The instruction rounds to nearest even, saturates infinities too, and makes 0x7f of a NaN,
  // whose sign is then missing. A factor has none, so all others have that of their element.
  const bool divide = division == Division::kDivide;
  const float scaled_low = divide ? low / factor : low * factor;
  const float scaled_high = divide ? high / factor : high * factor;
  uint16_t codes;
  if (kTo == Narrow::kE4m3) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
        : "=h"(codes)
        : "f"(scaled_high), "f"(scaled_low));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;"
        : "=h"(codes)
        : "f"(scaled_high), "f"(scaled_low));
  }
  const uint32_t upper_bytes = __byte_perm(BitsOf(low), BitsOf(high), 0x0073);
  return codes | (upper_bytes & 0x8080);
#else
  return QuantiseElement(low, factor, kTo, division) | QuantiseElement(high, factor, kTo, division)
                                                           << 8;
#endif
}

// Returns four elements, from the i-th element of a chunk on.
template <Narrow kTo, Wide kType>
__device__ uint32_t QuantiseFour(const WideChunk<kType>& chunk, unsigned i, Wide via, float factor,
                                 Division division) {
  return QuantisePair<kTo>(chunk.Value(i, via), chunk.Value(i + 1, via), factor, division) |
         QuantisePair<kTo>(chunk.Value(i + 2, via), chunk.Value(i + 3, via), factor, division)
             << 16;
}

}  // namespace waybill::kernels::cuda

#endif  // KERNELS_CUDA_WIDE_CHUNK_CUH_
