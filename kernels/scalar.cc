// SPDX-License-Identifier: Apache-2.0

#include "kernels/scalar.h"

#include <algorithm>
#include <cstring>

#include "kernels/scalar_elements.h"

namespace waybill::kernels::scalar {
namespace {

// The little-endian word at `data`; absent bytes are zeros.
uint64_t LoadWord(const std::byte* data, size_t size_bytes) {
  uint64_t word = 0;
  for (size_t i = 0; i < std::min<size_t>(size_bytes, 8); ++i) {
    word |= uint64_t{std::to_integer<uint8_t>(data[i])} << (8 * i);
  }
  return word;
}

}  // namespace

uint64_t LeafSum(const void* data, size_t size_bytes, uint64_t first_leaf) {
  constexpr size_t kLeafBytes = kLeafWords * 8;
  const std::byte* bytes = static_cast<const std::byte*>(data);
  uint64_t sum = 0;
  for (size_t leaf = 0; leaf < size_bytes; leaf += kLeafBytes) {
    const size_t leaf_end = std::min(leaf + kLeafBytes, size_bytes);
    Lanes lanes{};
    for (size_t at = leaf; at < leaf_end; at += 8) {
      const size_t j = (at - leaf) / 8;
      AbsorbWord(LoadWord(bytes + at, leaf_end - at), kDigestConstants.keys[j], j % kLaneCount,
                 lanes.data());
    }
    sum += LeafValue(lanes.data(), first_leaf + leaf / kLeafBytes);
  }
  return sum;
}

uint64_t Digest(const void* data, size_t size_bytes) {
  return FinishDigest(LeafSum(data, size_bytes, 0), size_bytes);
}

size_t FindChanged(const void* newest, const void* before, size_t count, size_t element_bytes,
                   uint16_t* indices) {
  const std::byte* a = static_cast<const std::byte*>(newest);
  const std::byte* b = static_cast<const std::byte*>(before);
  size_t found = 0;
  for (size_t i = 0; i < count; ++i) {
    if (std::memcmp(a + i * element_bytes, b + i * element_bytes, element_bytes) != 0) {
      indices[found++] = static_cast<uint16_t>(i);
    }
  }
  return found;
}

void CastElements(Cast cast, void* dst, const void* src, size_t count) {
  const Wide from = SourceOf(cast), to = DestinationOf(cast);
  for (size_t i = 0; i < count; ++i) {
    StoreWide(static_cast<std::byte*>(dst) + i * SizeBytes(to),
              LoadWide(static_cast<const std::byte*>(src) + i * SizeBytes(from), from), to);
  }
}

void Transpose(void* dst, ptrdiff_t dst_pitch, const void* src, ptrdiff_t src_pitch, size_t rows,
               size_t columns, size_t element_bytes) {
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns; ++c) {
      std::memcpy(
          static_cast<std::byte*>(dst) + static_cast<ptrdiff_t>(r) * dst_pitch + c * element_bytes,
          static_cast<const std::byte*>(src) + static_cast<ptrdiff_t>(c) * src_pitch +
              r * element_bytes,
          element_bytes);
    }
  }
}

void CastTranspose(Cast cast, void* dst, ptrdiff_t dst_pitch, const void* src, ptrdiff_t src_pitch,
                   size_t rows, size_t columns) {
  const size_t to_bytes = SizeBytes(DestinationOf(cast));
  const size_t from_bytes = SizeBytes(SourceOf(cast));
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns; ++c) {
      CastElements(
          cast, static_cast<std::byte*>(dst) + static_cast<ptrdiff_t>(r) * dst_pitch + c * to_bytes,
          static_cast<const std::byte*>(src) + static_cast<ptrdiff_t>(c) * src_pitch +
              r * from_bytes,
          1);
    }
  }
}

}  // namespace waybill::kernels::scalar
