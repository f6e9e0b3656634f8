// A trainer's routes with the memory they are read from: what is staged, and the digests that come
// out.
#ifndef WAYBILL_CORE_ENGINE_STAGED_ROUTES_H_
#define WAYBILL_CORE_ENGINE_STAGED_ROUTES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/engine/trainer_peer.h"
#include "core/engine/update.h"
#include "core/fabric/fabric.h"
#include "core/plan/chunks.h"
#include "core/plan/exchange.h"
#include "core/plan/plan_codec.h"
#include "core/plan/route_table.h"
#include "core/stage/device_stager.h"
#include "core/stage/scale_values.h"
#include "core/stage/stage_piece.h"

namespace waybill {

// Set on the progress thread; chunks may then be staged on any.
class StagedRoutes {
 public:
  // `plan` fits together (CheckTrainerPlan()). Of memory of a device, up to `threads` chunks are
  // staged at once, to slots in `ring`.
  //
  // kInvalidArgument: sources on several devices; kInternal: what the device says.
  static absl::StatusOr<std::unique_ptr<StagedRoutes>> Create(RankPlan plan,
                                                              std::vector<MemorySpan> sources,
                                                              uint64_t chunk_bytes,
                                                              uint32_t threads,
                                                              absl::Span<std::byte> ring);
  StagedRoutes(const StagedRoutes&) = delete;
  StagedRoutes& operator=(const StagedRoutes&) = delete;

  const RouteTable& routes() const { return plan_.routes; }
  const Exchange& exchange() const { return plan_.exchange; }
  std::deque<ScaleValues>& scale_values() { return scale_values_; }
  // Shards with NaNs or infinities among what was quantised.
  std::vector<NonFinite> FindNonFinite() const;
  // [any thread] What went wrong on a device since Begin(): what was staged is worth nothing.
  absl::Status status() const;
  const ChunkList& list() const { return list_; }
  uint32_t chunk_count() const { return static_cast<uint32_t>(list_.chunks.size()); }
  const Chunk& chunk(uint32_t i) const { return list_.chunks[i]; }

  // Forgets the digests and the scales of the last update.
  void Begin(const UpdateId& update, Digests digests);

  // What has to be worked out, on any thread, before maxima are traded.
  uint32_t early_task_count() const { return static_cast<uint32_t>(early_tasks_.size()); }
  void RunEarlyTask(uint32_t i);
  // After that, and after the trade: chunks that wait may be staged.
  void FinishEarly();
  // The chunk quantises by scales that other trainers have a say in, or that are worked out early.
  bool waits(uint32_t chunk) const { return waits_[chunk]; }

  // Every region that the chunk goes to is mapped here, and host memory is all that it comes from.
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
  struct EarlyTask {
    uint32_t table;
    uint32_t task;
  };

  StagedRoutes(RankPlan plan, std::vector<MemorySpan> sources, uint64_t chunk_bytes);
  absl::Status OpenDevice(uint32_t threads, absl::Span<std::byte> ring);
  bool OnDevice(uint32_t route) const {
    return sources_[routes().source_region(route)].kind == MemoryKind::kDevice;
  }
  const std::byte* SourceOf(uint32_t route) const {
    return sources_[routes().source_region(route)].data + routes().source_offset(route);
  }
  void MakeScaleValues();
  void FindWaiting();
  Box BlocksOf(uint32_t route) const;
  Box BlocksOf(const Piece& piece) const;
  uint64_t Stage(const Piece& piece, std::byte* destination, bool packed);
  void StageFromDevice(const Chunk& chunk, std::byte* slot);
  uint64_t WitnessDigest(uint32_t route) const;

  const RankPlan plan_;
  std::vector<MemorySpan> sources_;       // Of the manifest's regions, then of the scale tables.
  std::unique_ptr<DeviceStager> device_;  // Where there is such a source.
  std::vector<std::vector<std::byte>> cells_;  // Of each scale table.
  std::deque<ScaleValues> scale_values_;       // Likewise.
  std::vector<EarlyTask> early_tasks_;
  std::vector<bool> waits_;  // Of each chunk.
  ChunkList list_;
  size_t most_writes_ = 0;
  std::vector<ChunkWrite> chunk_writes_;  // Scratch, with room for the most.
  UpdateId update_;
  Digests digests_ = Digests::kOn;
  std::vector<std::atomic<uint64_t>> sums_;  // Of each route's leaves.
};

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_STAGED_ROUTES_H_
