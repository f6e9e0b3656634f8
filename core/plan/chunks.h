// SPDX-License-Identifier: Apache-2.0

// Cuts a routing table into the chunks that are staged, sent and counted.
//
// Pure rules, shared by the engines and by predictions: the length of a chunk, where a route may be
// cut, which pieces form a chunk, and which writes post a chunk.
#ifndef WAYBILL_CORE_PLAN_CHUNKS_H_
#define WAYBILL_CORE_PLAN_CHUNKS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "core/plan/route_table.h"

namespace waybill {

// Bytes [begin, end) of a route, in the order of the route's walk.
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

// Routes are cut only at multiples of this, so that each piece's digest can be computed on its own.
inline constexpr uint64_t kCutBytes = 4096;
// The default chunk size. Both ends of a lane cut the routes between them in the same way, so that
// their chunk numbers agree.
inline constexpr uint64_t kChunkBytes = 1 << 20;

// Cuts the routes in the table's order. `chunk_bytes` must be a multiple of kCutBytes; no chunk is
// longer. Transposed routes are cut between rows of the destination if possible, and not at all if
// they fit into a chunk.
ChunkList CutIntoChunks(const RouteTable& routes, uint64_t chunk_bytes);

// Calls visit(Piece) for the pieces of the given chunks for whose routes is_wanted(route) is true.
// Adjacent pieces of one route are joined.
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

// Calls visit(source_offset_bytes, destination_offset_bytes, size_bytes) for each run of bytes
// [begin, end) of a direct route that is contiguous in both memories. Offsets count from the
// route's first byte.
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
// [begin, end) of the route fill. Offsets count from the route's first byte at the destination.
template <typename Visit>
void ForEachDestinationRun(const RouteShape& shape, uint64_t begin, uint64_t end, Visit visit) {
  const uint64_t run_bytes = shape.destination_run_bytes();
  size_t outer = shape.axes.size();  // The number of axes that are not part of a run.
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

// The smallest contiguous run, in both memories, of a direct route. A network that can read the
// sender's memory sends a route directly from there if the route needs no conversion and its runs
// are long enough. All other routes are staged, that is, packed into a slot first.
inline constexpr uint64_t kDirectRunBytes = 16 << 10;
bool IsDirect(const RouteTable& routes, uint32_t route, uint64_t least_run_bytes = kDirectRunBytes);

// One write of a chunk.
struct ChunkWrite {
  // The value of `source_region` for the slot that holds the chunk's staged pieces, packed.
  static constexpr uint32_t kSlot = ~uint32_t{0};

  uint32_t source_region = kSlot;
  uint64_t source_offset_bytes = 0;
  uint32_t destination_region = 0;
  uint64_t destination_offset_bytes = 0;
  uint64_t size_bytes = 0;
};

// Appends the writes of a chunk, in order. Runs that are adjacent at the source and at the
// destination are merged, also across routes. `is_direct(route)` returns true for routes that are
// not staged.
void AppendWrites(const RouteTable& routes, const ChunkList& list, const Chunk& chunk,
                  absl::FunctionRef<bool(uint32_t route)> is_direct,
                  std::vector<ChunkWrite>& writes);

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_CHUNKS_H_
