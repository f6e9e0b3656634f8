// SPDX-License-Identifier: Apache-2.0

// The constants and rules that encoder and decoder of a changed chunk share. README.md has the
// normative definition.
#ifndef WAYBILL_CORE_CHANGE_CHUNK_ENCODING_H_
#define WAYBILL_CORE_CHANGE_CHUNK_ENCODING_H_

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace waybill {

inline constexpr size_t kMostChunkBytes = size_t{4} << 20;

// The bytes of an element.
enum class ElementWidth : uint8_t { kOne = 1, kTwo = 2, kFour = 4 };

// How a chunk is encoded: the first byte of its encoding, but for the element width in kElements.
enum class ChunkKind : uint8_t { kUnchanged = 0x00, kWhole = 0x01, kElements = 0x10 };

constexpr uint8_t FirstByte(ChunkKind kind, ElementWidth width) {
  return static_cast<uint8_t>(kind) |
         (kind == ChunkKind::kElements ? static_cast<uint8_t>(width) : uint8_t{0});
}

inline constexpr size_t kBlockElements = 16384;
inline constexpr size_t kIndexBits = 14;
inline constexpr size_t kRunBytes = 4;
inline constexpr uint32_t kMostQuotient = 16;  // A gap of this quotient or more is written out.

// The number with which a block begins.
struct BlockHeader {
  static constexpr size_t kBytes = 3;
  static constexpr uint32_t kRuns = 15;       // An index code; smaller ones are k.
  static constexpr uint32_t kRawValues = 31;  // A value code; smaller ones are k.

  uint32_t count = 0;  // The number of changed elements, or of runs of them.
  uint32_t index_code = 0;
  uint32_t value_code = 0;

  constexpr uint32_t Pack() const { return count | index_code << 15 | value_code << 19; }
  static constexpr BlockHeader Unpack(uint32_t number) {
    return {number & 0x7fff, number >> 15 & 0xf, number >> 19};
  }
};

// Maps the bits of a float to an integer such that neighbouring floats are neighbours, and back.
template <std::unsigned_integral T>
constexpr T Order(T bits) {
  constexpr T kSign = static_cast<T>(T{1} << (sizeof(T) * 8 - 1));
  return static_cast<T>((bits & kSign) != 0 ? bits ^ (kSign - 1) : bits);
}

// Returns kInvalidArgument unless two versions of a chunk have the same size, which is allowed.
absl::Status CheckChunk(size_t size_bytes, size_t before_bytes, ElementWidth width);

}  // namespace waybill

#endif  // WAYBILL_CORE_CHANGE_CHUNK_ENCODING_H_
