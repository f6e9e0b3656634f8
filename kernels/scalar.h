// SPDX-License-Identifier: Apache-2.0

// Scalar reference versions of the kernels, written as their definitions read. Tests compare the
// bits of the fast paths with them. Slow; for tests and for targets without vectors.

#ifndef KERNELS_SCALAR_H_
#define KERNELS_SCALAR_H_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/elements.h"

namespace waybill::kernels::scalar {

inline constexpr size_t kLaneCount = 8;
inline constexpr size_t kLeafWords = 512;

// The finaliser of splitmix64 (Stafford's variant 13), a bijection of 64 bits.
constexpr uint64_t Mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

// The constants of the digest, in the order in which splitmix64 gives them.
struct DigestConstants {
  alignas(64) std::array<uint64_t, kLeafWords> keys;
  std::array<uint64_t, kLaneCount> lane_offsets;
  uint64_t leaf_step;    // Odd.
  uint64_t length_step;  // Odd.
};

constexpr DigestConstants MakeDigestConstants() {
  uint64_t state = 0x314c4c4942594157;  // "WAYBILL1" as a little-endian word.
  const auto next = [&state] { return Mix(state += 0x9e3779b97f4a7c15); };
  DigestConstants constants{};
  for (uint64_t& key : constants.keys) key = next();
  for (uint64_t& offset : constants.lane_offsets) offset = next();
  constants.leaf_step = next() | 1;
  constants.length_step = next() | 1;
  return constants;
}

inline constexpr DigestConstants kDigestConstants = MakeDigestConstants();

using Lanes = std::array<uint64_t, kLaneCount>;

// Adds a word of lane `lane`, whose key is `key`, to the accumulators of its leaf.
constexpr void AbsorbWord(uint64_t word, uint64_t key, size_t lane, uint64_t* lanes) {
  const uint32_t low = static_cast<uint32_t>(word) + static_cast<uint32_t>(key);
  const uint32_t high = static_cast<uint32_t>(word >> 32) + static_cast<uint32_t>(key >> 32);
  lanes[lane] += uint64_t{low} * high;
  lanes[lane ^ 1] += word;
}

constexpr uint64_t LeafValue(const uint64_t* lanes, uint64_t leaf_index) {
  uint64_t sum = 0;
  for (size_t l = 0; l < kLaneCount; ++l) sum += Mix(lanes[l] + kDigestConstants.lane_offsets[l]);
  return Mix(sum + (leaf_index + 1) * kDigestConstants.leaf_step);
}

constexpr uint64_t FinishDigest(uint64_t sum, uint64_t length_bytes) {
  return Mix(sum + (length_bytes + 1) * kDigestConstants.length_step);
}

// As LeafSum and Digest of digest.h.
uint64_t LeafSum(const void* data, size_t size_bytes, uint64_t first_leaf);
uint64_t Digest(const void* data, size_t size_bytes);

constexpr uint16_t F32ToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fff'ffff) > 0x7f80'0000) return static_cast<uint16_t>(bits >> 16 | 0x40);  // NaN.
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// As FindChanged of changed.h.
size_t FindChanged(const void* newest, const void* before, size_t count, size_t element_bytes,
                   uint16_t* indices);

// As CastElements, Transpose and CastTransposeF32ToBf16 of cast.h and transpose.h.
void CastElements(Cast cast, void* dst, const void* src, size_t count);
void Transpose(void* dst, ptrdiff_t dst_pitch, const void* src, ptrdiff_t src_pitch, size_t rows,
               size_t columns, size_t element_bytes);
void CastTranspose(Cast cast, void* dst, ptrdiff_t dst_pitch, const void* src, ptrdiff_t src_pitch,
                   size_t rows, size_t columns);

}  // namespace waybill::kernels::scalar

#endif  // KERNELS_SCALAR_H_
