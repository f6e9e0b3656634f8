// SPDX-License-Identifier: Apache-2.0

// A routing table cut into the pieces in which it is staged, sent and counted.
//
// Pure rules, shared by whoever sends and whoever predicts: how long a chunk is, where a route may
// be cut, which pieces travel together, and which writes a staged chunk becomes.
#ifndef WAYBILL_CORE_PLAN_CHUNKS_H_
#define WAYBILL_CORE_PLAN_CHUNKS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "core/plan/route_table.h"

namespace waybill {

// Bytes [begin, end) of a route, in the order of its walk.
struct Piece {
  uint32_t route = 0;
  uint64_t begin = 0;
  uint64_t end = 0;

  uint64_t size_bytes() const { return end - begin; }
};

// Neighbouring pieces between one sender and one receiver.
struct Chunk {
  uint32_t sender = 0;
  uint32_t receiver = 0;
  uint32_t first_piece = 0;
  uint32_t piece_count = 0;
  uint64_t size_bytes = 0;
};

struct ChunkList {
  std::vector<Chunk> chunks;
  std::vector<Piece> pieces;

  absl::Span<const Piece> pieces_of(const Chunk& chunk) const {
    return absl::MakeConstSpan(pieces).subspan(chunk.first_piece, chunk.piece_count);
  }
};

// Routes are only cut at multiples of this, so that every piece's digest can be taken alone.
inline constexpr uint64_t kCutBytes = 4096;
// How long chunks are. Both ends of a lane cut what goes between them in the same way, so that they
// can number its chunks.
inline constexpr uint64_t kChunkBytes = 1 << 20;

// Cuts the routes in the table's order. `chunk_bytes` must be a multiple of kCutBytes; no chunk is
// longer. Transposed routes are cut between rows of the destination where that is possible, and
// not at all where a chunk can hold them.
ChunkList CutIntoChunks(const RouteTable& routes, uint64_t chunk_bytes);

// Calls visit(Piece) for those pieces of the chunks, by number, of whose routes is_wanted(route) is
// true. Pieces that go on where the one before ended are one.
template <typename IsWanted, typename Visit>
void ForEachJoinedPiece(const ChunkList& list, absl::Span<const uint32_t> chunks,
                        IsWanted is_wanted, Visit visit) {
  Piece joined;
  for (const uint32_t c : chunks) {
    for (const Piece& piece : list.pieces_of(list.chunks[c])) {
      if (!is_wanted(piece.route)) continue;
      if (piece.route == joined.route && piece.begin == joined.end) {
        joined.end = piece.end;
        continue;
      }
      if (joined.end > 0) visit(joined);
      joined = piece;
    }
  }
  if (joined.end > 0) visit(joined);
}

// Calls visit(source_offset_bytes, destination_offset_bytes, size_bytes) for each contiguous run in
// both memories of bytes [begin, end) of a direct route; offsets count from the route's first byte.
template <typename Visit>
void ForEachDirectRun(const RouteShape& shape, uint64_t begin, uint64_t end, Visit visit) {
  const uint64_t run_bytes =
      static_cast<uint64_t>(shape.axes.back().extent) * shape.destination_element_bytes;
  for (uint64_t at = begin; at < end;) {
    uint64_t index = at / run_bytes;
    const uint64_t within = at % run_bytes;
    const uint64_t size = std::min(run_bytes - within, end - at);
    uint64_t source = within, destination = within;
    for (size_t a = shape.axes.size() - 1; a-- > 0;) {
      const auto extent = static_cast<uint64_t>(shape.axes[a].extent);
      source += index % extent * static_cast<uint64_t>(shape.axes[a].source_stride);
      destination += index % extent * static_cast<uint64_t>(shape.axes[a].destination_stride);
      index /= extent;
    }
    visit(source, destination, size);
    at += size;
  }
}

// Calls visit(offset_bytes, size_bytes) for each contiguous run of the destination that bytes
// [begin, end) of the route fill; offsets count from the route's first byte there.
template <typename Visit>
void ForEachDestinationRun(const RouteShape& shape, uint64_t begin, uint64_t end, Visit visit) {
  const uint64_t run_bytes = shape.destination_run_bytes();
  size_t outer = shape.axes.size();  // The axes that are not part of a run.
  for (uint64_t run = shape.destination_element_bytes; run < run_bytes;) {
    run *= static_cast<uint64_t>(shape.axes[--outer].extent);
  }
  for (uint64_t at = begin; at < end;) {
    uint64_t index = at / run_bytes;
    const uint64_t within = at % run_bytes;
    const uint64_t size = std::min(run_bytes - within, end - at);
    uint64_t offset = within;
    for (size_t a = outer; a-- > 0;) {
      const auto extent = static_cast<uint64_t>(shape.axes[a].extent);
      offset += index % extent * static_cast<uint64_t>(shape.axes[a].destination_stride);
      index /= extent;
    }
    visit(offset, size);
    at += size;
  }
}

// A network that can read the sender's memory sends a route from there, if nothing changes on the
// way and its runs are not shorter than this in both memories. Everything else is staged: it is
// packed in a slot first.
inline constexpr uint64_t kDirectRunBytes = 16 << 10;
bool IsDirect(const RouteTable& routes, uint32_t route, uint64_t least_run_bytes = kDirectRunBytes);

// One write of a chunk.
struct ChunkWrite {
  // In place of a region: the slot in which the staged pieces of the chunk lie packed.
  static constexpr uint32_t kSlot = ~uint32_t{0};

  uint32_t source_region = kSlot;
  uint64_t source_offset_bytes = 0;
  uint32_t destination_region = 0;
  uint64_t destination_offset_bytes = 0;
  uint64_t size_bytes = 0;
};

// Appends the writes of a chunk, in order: runs that are neighbours at the source and at the
// destination, of whichever routes, are one. `is_direct(route)` says what is not staged.
void AppendWrites(const RouteTable& routes, const ChunkList& list, const Chunk& chunk,
                  absl::FunctionRef<bool(uint32_t route)> is_direct,
                  std::vector<ChunkWrite>& writes);

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_CHUNKS_H_
