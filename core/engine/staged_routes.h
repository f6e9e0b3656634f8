// A trainer's routes with the memory they are read from: what is staged, and the digests that come
// out.
#ifndef WAYBILL_CORE_ENGINE_STAGED_ROUTES_H_
#define WAYBILL_CORE_ENGINE_STAGED_ROUTES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/engine/trainer_peer.h"
#include "core/engine/update.h"
#include "core/fabric/fabric.h"
#include "core/plan/chunks.h"
#include "core/plan/route_table.h"
#include "core/stage/stage_piece.h"

namespace waybill {

// Set on the progress thread; chunks may then be staged on any.
class StagedRoutes {
 public:
  StagedRoutes() = default;
  StagedRoutes(RouteTable routes, std::vector<MemorySpan> sources, uint64_t chunk_bytes);

  const RouteTable& routes() const { return routes_; }
  const ChunkList& list() const { return list_; }
  uint32_t chunk_count() const { return static_cast<uint32_t>(list_.chunks.size()); }
  const Chunk& chunk(uint32_t i) const { return list_.chunks[i]; }

  // Forgets the digests of the last update.
  void Begin(const UpdateId& update, Digests digests);

  // Every region that the chunk goes to is mapped here.
  bool IsMapped(uint32_t chunk, const BufferAccess& buffer) const;
  void StageInPlace(uint32_t chunk, const BufferAccess& buffer);
  void StagePacked(uint32_t chunk, std::byte* slot);

  // What posts a chunk from a slot at `slot_offset` of `ring`. Allocates nothing where `writes` has
  // room for most_writes().
  void AppendWritesOf(const Chunk& chunk, const BufferAccess& buffer, RegionId ring,
                      uint64_t slot_offset, std::vector<Write>& writes);
  size_t most_writes() const { return most_writes_; }  // Of any chunk.

  // The entries of routes [first, first + count), when all of them are staged.
  void FillLedger(uint32_t first, uint32_t count, LedgerEntry* entries) const;

 private:
  const std::byte* SourceOf(uint32_t route) const {
    return sources_[routes_.source_region(route)].data + routes_.source_offset(route);
  }

  RouteTable routes_;
  std::vector<MemorySpan> sources_;
  ChunkList list_;
  size_t most_writes_ = 0;
  std::vector<ChunkWrite> chunk_writes_;  // Scratch, with room for the most.
  UpdateId update_;
  Digests digests_ = Digests::kOn;
  std::vector<std::atomic<uint64_t>> sums_;  // Of each route's leaves.
};

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_STAGED_ROUTES_H_
