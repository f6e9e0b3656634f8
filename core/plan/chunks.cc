#include "core/plan/chunks.h"

namespace waybill {

ChunkList CutIntoChunks(const RouteTable& routes, uint64_t chunk_bytes) {
  ChunkList list;
  Chunk chunk;
  const auto finish = [&] {
    if (chunk.piece_count > 0) list.chunks.push_back(chunk);
    chunk = {.first_piece = static_cast<uint32_t>(list.pieces.size())};
  };
  for (uint32_t r = 0; r < routes.size(); ++r) {
    const uint64_t route_bytes = routes.written_bytes(r);
    if (route_bytes > 0 && chunk.piece_count > 0 &&
        (chunk.worker != routes.worker(r) || chunk.trainer != routes.trainer(r))) {
      finish();
    }
    for (uint64_t at = 0; at < route_bytes;) {
      const uint64_t room = chunk_bytes - chunk.size_bytes;
      uint64_t size = route_bytes - at;
      if (size > room) size = room / kCutBytes * kCutBytes;
      if (size == 0) {
        finish();
        continue;
      }
      chunk.trainer = routes.trainer(r);
      chunk.worker = routes.worker(r);
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
