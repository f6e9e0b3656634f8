// SPDX-License-Identifier: Apache-2.0

// Encodes what changed in a chunk of weights since the version before. README.md has the encoding.
#ifndef WAYBILL_CORE_CHANGE_CHANGE_ENCODER_H_
#define WAYBILL_CORE_CHANGE_CHANGE_ENCODER_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/change/chunk_encoding.h"

namespace waybill {

// The kind as which a chunk is encoded, and the size of the encoding with its first byte.
struct EncodedChunk {
  ChunkKind kind;
  size_t size_bytes;
};

// Returns the bytes of memory that EncodeChanges() needs for a chunk. The encoding itself is at
// most one byte longer than the chunk.
constexpr size_t EncodingRoomBytes(size_t chunk_bytes) { return chunk_bytes + 16; }

// Encodes a chunk into `out`, which has EncodingRoomBytes() or more. Nobody may write to the two
// versions meanwhile. Needs up to 130 KiB of stack and no other memory. [any thread]
//
// kInvalidArgument: the versions differ in size, have more than kMostChunkBytes or part of an
// element, or `out` is too small.
absl::StatusOr<EncodedChunk> EncodeChanges(absl::Span<const std::byte> newest,
                                           absl::Span<const std::byte> before, ElementWidth width,
                                           absl::Span<std::byte> out);

// Returns what EncodeChanges() would return, and writes nothing. It takes about as long.
absl::StatusOr<EncodedChunk> MeasureChanges(absl::Span<const std::byte> newest,
                                            absl::Span<const std::byte> before, ElementWidth width);

}  // namespace waybill

#endif  // WAYBILL_CORE_CHANGE_CHANGE_ENCODER_H_
