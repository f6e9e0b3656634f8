// SPDX-License-Identifier: Apache-2.0

#include "core/plan/chunks.h"

#include <algorithm>
#include <numeric>

namespace waybill {
namespace {

// Returns the bytes at whose multiples a route is cut. A transposed one is cut between rows, and if
// they are not long between tiles of them, as high as a cache line is long: of a row that is cut,
// each element would be fetched alone, and of a tile each line twice.
uint64_t CutBytesOf(const RouteShape& shape, uint64_t chunk_bytes) {
  if (!shape.transposed()) return kCutBytes;
  constexpr uint64_t kCacheLineBytes = 64;
  const uint64_t element = shape.destination_element_bytes;
  const uint64_t row_bytes = static_cast<uint64_t>(shape.axes.back().extent) * element;
  const uint64_t most = chunk_bytes / 4;  // Else chunks would be much shorter.
  for (const uint64_t rows : {std::max(kCacheLineBytes / element, uint64_t{1}), uint64_t{1}}) {
    if (row_bytes > most / rows) continue;
    const uint64_t cut = std::lcm(kCutBytes, rows * row_bytes);
    if (cut <= most) return cut;
  }
  return kCutBytes;
}

}  // namespace

ChunkList CutIntoChunks(const RouteTable& routes, uint64_t chunk_bytes) {
  ChunkList list;
  Chunk chunk;
  const auto finish = [&] {
    if (chunk.piece_count > 0) list.chunks.push_back(chunk);
    chunk = {.first_piece = static_cast<uint32_t>(list.pieces.size())};
  };
  for (uint32_t r = 0; r < routes.size(); ++r) {
    const uint64_t route_bytes = routes.written_bytes(r);
    if (route_bytes == 0) continue;
    if (chunk.piece_count > 0 &&
        (chunk.receiver != routes.receiver(r) || chunk.sender != routes.sender(r))) {
      finish();
    }
    const RouteShape shape = routes.shape(r);
    const uint64_t cut_bytes = CutBytesOf(shape, chunk_bytes);
    for (uint64_t at = 0; at < route_bytes;) {
      const uint64_t room = chunk_bytes - chunk.size_bytes;
      uint64_t size = route_bytes - at;
      if (size > room) {
        // A few rows are transposed slowly, so they are not cut off only to fill a chunk.
        const bool waits = shape.transposed() && chunk.piece_count > 0;
        size = waits ? 0 : room / cut_bytes * cut_bytes;
      }
      if (size == 0) {
        finish();
        continue;
      }
      chunk.sender = routes.sender(r);
      chunk.receiver = routes.receiver(r);
      list.pieces.push_back({.route = r, .begin = at, .end = at + size});
      ++chunk.piece_count;
      chunk.size_bytes += size;
      at += size;
    }
  }
  finish();
  return list;
}

bool IsDirect(const RouteTable& routes, uint32_t route, uint64_t least_run_bytes) {
  if (routes.scale_table(route) != kNoScaleTable || routes.witness(route)) return false;
  const RouteShape shape = routes.shape(route);
  const uint64_t run_bytes =
      static_cast<uint64_t>(shape.axes.back().extent) * shape.destination_element_bytes;
  return shape.transform == Transform::kNone && !shape.transposed() && run_bytes >= least_run_bytes;
}

void AppendWrites(const RouteTable& routes, const ChunkList& list, const Chunk& chunk,
                  absl::FunctionRef<bool(uint32_t route)> is_direct,
                  std::vector<ChunkWrite>& writes) {
  const size_t first = writes.size();
  const auto append = [&](const ChunkWrite& write) {
    if (writes.size() > first) {
      ChunkWrite& last = writes.back();
      if (last.source_region == write.source_region &&
          last.source_offset_bytes + last.size_bytes == write.source_offset_bytes &&
          last.destination_region == write.destination_region &&
          last.destination_offset_bytes + last.size_bytes == write.destination_offset_bytes) {
        last.size_bytes += write.size_bytes;
        return;
      }
    }
    writes.push_back(write);
  };
  uint64_t slot_offset = 0;
  for (const Piece& piece : list.pieces_of(chunk)) {
    const RouteView route = routes[piece.route];
    if (is_direct(piece.route)) {
      ForEachDirectRun(
          route.shape, piece.begin, piece.end,
          [&](uint64_t source, uint64_t destination, uint64_t size) {
            append({.source_region = route.source_region,
                    .source_offset_bytes = route.source_offset_bytes + source,
                    .destination_region = route.destination_region,
                    .destination_offset_bytes = route.destination_offset_bytes + destination,
                    .size_bytes = size});
          });
      continue;
    }
    ForEachDestinationRun(route.shape, piece.begin, piece.end, [&](uint64_t offset, uint64_t size) {
      append({.source_offset_bytes = slot_offset,
              .destination_region = route.destination_region,
              .destination_offset_bytes = route.destination_offset_bytes + offset,
              .size_bytes = size});
      slot_offset += size;
    });
  }
}

}  // namespace waybill
