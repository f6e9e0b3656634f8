// SPDX-License-Identifier: Apache-2.0

// How what changed in a chunk travels: at the place of the chunk itself.
//
// The first bytes of the chunk, in the order of its pieces, are the number of bytes of the encoding
// (32 bits, little-endian) and the encoding (core/change); the others are not written. So changes
// need no memory at the receiver and no address of their own, and a network that may write a chunk
// may write its changes. The receiver takes the encoding away and completes the chunk from the
// version that it shows.
#ifndef WAYBILL_CORE_ENGINE_CHUNK_CHANGES_H_
#define WAYBILL_CORE_ENGINE_CHUNK_CHANGES_H_

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/fabric/fabric.h"
#include "core/plan/chunks.h"
#include "core/plan/route_table.h"

namespace waybill {

// The memory of each region of a receiver's manifest.
using Regions = absl::Span<const absl::Span<std::byte>>;

// Is called with each piece's part of its route's digest.
using DigestSink = absl::FunctionRef<void(uint32_t route, uint64_t sum)>;

// Writes to `slot` what changed in a chunk of the slot's size, or the chunk if that is shorter.
// `newest` and `before` are the memory of each source region in the two versions, in which no piece
// is quantised or lies on a device. Returns the number of bytes to send, which is the size of the
// slot if the chunk travels whole. Allocates nothing after a thread's first chunk of this size.
// [any thread]
uint64_t StageChanges(const RouteTable& routes, absl::Span<const Piece> pieces,
                      absl::Span<const MemorySpan> newest, absl::Span<const MemorySpan> before,
                      absl::Span<std::byte> slot, DigestSink digested);

// Completes a chunk of `size_bytes` whose changes lie at its place in `arrived`, from the version
// in `base`. Both are in host memory. Allocates as StageChanges() does. [any thread]
//
// kDataLoss: what lies there is no encoding of changes. The chunk then has unspecified bytes.
absl::Status TakeChanges(const RouteTable& routes, absl::Span<const Piece> pieces,
                         uint64_t size_bytes, Regions base, Regions arrived, DigestSink digested);

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_CHUNK_CHANGES_H_
