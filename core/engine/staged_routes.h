// SPDX-License-Identifier: Apache-2.0

// A sender's routes and the memory that they are read from. Stages chunks and collects the
// digests.
#ifndef WAYBILL_CORE_ENGINE_STAGED_ROUTES_H_
#define WAYBILL_CORE_ENGINE_STAGED_ROUTES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/engine/receiver_link.h"
#include "core/engine/shared_chunks.h"
#include "core/engine/staging_area.h"
#include "core/engine/staging_slots.h"
#include "core/fabric/fabric.h"
#include "core/memory/registration_cache.h"
#include "core/plan/chunks.h"
#include "core/plan/exchange.h"
#include "core/plan/plan_codec.h"
#include "core/plan/route_table.h"
#include "core/protocol/update.h"
#include "core/stage/device_stager.h"
#include "core/stage/scale_values.h"
#include "core/stage/stage_piece.h"

namespace waybill {

// Everything is set up on the progress thread. Any thread may then stage chunks.
class StagedRoutes {
 public:
  // `plan` must have passed CheckSenderPlan(). The area must outlive the routes: memory that is
  // registered there can be sent directly, and its threads stage into its slots.
  //
  // kInvalidArgument: the sources are on several devices; kInternal: the device failed.
  static absl::StatusOr<std::unique_ptr<StagedRoutes>> Create(RankPlan plan,
                                                              std::vector<MemorySpan> sources,
                                                              const StagingArea& area);
  StagedRoutes(const StagedRoutes&) = delete;
  StagedRoutes& operator=(const StagedRoutes&) = delete;

  const RouteTable& routes() const { return plan_.routes; }
  const Exchange& exchange() const { return plan_.exchange; }
  std::deque<ScaleValues>& scale_values() { return scale_values_; }
  // Returns the shards in which NaNs or infinities were found while they were quantised.
  std::vector<NonFinite> FindNonFinite() const;
  // [any thread] Returns the first failure of a device since Begin(). If there is one, the update
  // must not be shown.
  absl::Status status() const;
  const ChunkList& list() const { return list_; }
  uint32_t chunk_count() const { return static_cast<uint32_t>(list_.chunks.size()); }
  const Chunk& chunk(uint32_t i) const { return list_.chunks[i]; }

  // Begins an update: clears the digests and the scales of the last one. Registered sources are
  // sent directly; if fewer are registered than when the routes were made, everything is staged.
  // With kArriving, digests are not computed: the caller gives them.
  void Begin(const UpdateId& update, Digests digests, SourcesAre sources,
             const VersionsInMemory& versions);
  void GiveDigest(uint32_t route, uint64_t digest) {
    sums_[route].store(digest, std::memory_order_relaxed);
  }
  // Replaces the memory of the manifest's regions by memory that is staged. Returns the errors of
  // Create().
  absl::Status SetSources(std::vector<MemorySpan> sources);
  bool sources_are_registered() const { return sources_are_registered_; }
  Digests digests() const { return digests_; }

  // The tasks that compute this sender's maxima, which any thread may run. All of them must end
  // before maxima are traded.
  uint32_t early_task_count() const { return static_cast<uint32_t>(early_tasks_.size()); }
  void RunEarlyTask(uint32_t i);
  // Computes the scales. Call it after the tasks and after the trade; chunks that wait may then be
  // staged.
  void FinishEarly();
  // Returns true if the chunk needs scales that FinishEarly() computes.
  bool waits(uint32_t chunk) const { return waits_[chunk]; }

  // Returns whether the chunk can be stored: its destination is mapped, and its source is host
  // memory.
  bool IsMapped(uint32_t chunk, const BufferAccess& buffer) const;
  void StageInPlace(uint32_t chunk, const BufferAccess& buffer);

  // The memory of this rank that a lane's network can read, besides the slots in host memory. If it
  // can read the sources, routes that need no conversion are sent directly from there. The rest of
  // a posted chunk is staged.
  struct Reads {
    bool sources = false;
    bool device_slots = false;
  };
  // Returns OK if the lane can read every registered source.
  absl::Status CheckRead(const Fabric& fabric, LaneId lane) const;
  bool ReadsDeviceSlots(const Fabric& fabric, LaneId lane) const;
  uint64_t staged_bytes(uint32_t chunk, Reads reads) const {
    return chunk_size(chunk) - (reads.sources ? direct_bytes_[chunk] : 0);
  }
  uint64_t chunk_size(uint32_t chunk) const { return list_.chunks[chunk].size_bytes; }
  // Returns the number of chunks to stage or digest in one call, which waits for a device once for
  // all of its chunks.
  uint32_t at_once() const { return device_ == nullptr ? 1 : kChunksPerPass; }
  // Packs the staged parts of the chunks into slots of the ring. A chunk with sources on the device
  // is packed into the device's slots if the lane can read them.
  void StagePacked(absl::Span<const ChunkInSlot> chunks,
                   absl::FunctionRef<Reads(uint32_t chunk)> reads_of);
  // Returns true if what changed in the chunk since the version before can be told.
  bool CanStageChanges(uint32_t chunk) const { return !before_.empty() && changes_[chunk]; }
  // Writes what changed in a chunk to its slot, or the chunk if that is shorter.
  void StageChanges(const ChunkInSlot& chunk);
  // Returns what determines a chunk's bytes when they are packed from an image, or an empty text if
  // the chunk is not to be shared: it is sent from the image itself, or lies on a device, or its
  // scales depend on other trainers.
  std::string ContentToShare(uint32_t chunk) const;
  // Packs all of a chunk, or what changed in it.
  void PackShared(uint32_t chunk, Packed as, absl::Span<std::byte> memory, PackedChunk& result);
  // Takes over the digests, and what else is known, of a chunk that was packed.
  void TakePacked(uint32_t chunk, const PackedChunk& packed);
  // Returns the number of bytes that post the chunk after StageChanges().
  uint64_t bytes_to_post(uint32_t chunk) const { return bytes_to_post_[chunk]; }
  // Computes the digests of the chunks' routes that are sent directly.
  void DigestDirect(absl::Span<const uint32_t> chunks);
  // Returns the memory from which a chunk in a slot of the ring is posted.
  Registration SlotOf(uint32_t chunk, Reads reads, uint32_t slot) const;
  // Appends the writes that post the first `size_bytes` of a chunk, whose staged bytes are in
  // `packed`. It does not allocate if `writes` has room for most_writes().
  void AppendWritesOf(uint32_t chunk, Reads reads, const BufferAccess& buffer,
                      const Registration& packed, uint64_t size_bytes, std::vector<Write>& writes);
  // Returns the largest number of writes that a chunk takes.
  size_t most_writes() const { return most_writes_; }

  // Writes the ledger entries of routes [first, first + count), all of which are staged.
  void FillLedger(uint32_t first, uint32_t count, LedgerEntry* entries) const;

 private:
  // A task of one table, or the shards of several tables that a device reads in one pass.
  struct EarlyTask {
    uint32_t table = 0;
    uint32_t task = 0;
    std::vector<ElementReader::Shard> on_device;
  };

  StagedRoutes(RankPlan plan, std::vector<MemorySpan> sources, const StagingArea& area);
  absl::Status OpenDevice(uint32_t threads, absl::Span<std::byte> ring);
  bool OnDevice(uint32_t route) const {
    return sources_[routes().source_region(route)].kind == MemoryKind::kDevice;
  }
  bool TableIsOnDevice(uint32_t table) const {
    return sources_[exchange().tables[table].source_region].kind == MemoryKind::kDevice;
  }
  const std::byte* SourceOf(uint32_t route) const {
    return sources_[routes().source_region(route)].data + routes().source_offset(route);
  }
  void MoveSources(absl::Span<const MemorySpan> to);
  void FindRegistrations();
  void MakeScaleValues();
  void FindWaiting();
  Box BlocksOf(uint32_t route) const;
  Box BlocksOf(const Piece& piece) const;
  Digests Computed() const {
    return sources_are_ == SourcesAre::kArriving ? Digests::kOff : digests_;
  }
  uint64_t Stage(const Piece& piece, std::byte* destination, bool packed);
  bool IsStaged(const Piece& piece, Reads reads) const {
    return !reads.sources || !direct_[piece.route];
  }
  bool PacksOnDevice(const Chunk& chunk, Reads reads) const;
  void StageFromDevice(const Chunk& chunk, Reads reads, std::byte* slot, DeviceStager::Pass& pass);
  // Waits for the device, and adds the digests that it computed.
  void Finish(DeviceStager::Pass& pass);
  uint64_t WitnessDigest(uint32_t route) const;

  const RankPlan plan_;
  const StagingArea& area_;
  std::vector<MemorySpan> sources_;            // The manifest's regions, then the scale tables.
  std::unique_ptr<DeviceStager> device_;       // Null if all sources are host memory.
  std::vector<std::vector<std::byte>> cells_;  // By scale table.
  std::deque<ScaleValues> scale_values_;       // By scale table.
  std::vector<EarlyTask> early_tasks_;
  std::vector<bool> waits_;                  // By chunk.
  std::vector<bool> changes_;                // By chunk: it is not quantised, nor on a device.
  absl::Span<const MemorySpan> before_;      // By region; empty if there is no version before.
  std::vector<uint64_t> bytes_to_post_;      // By chunk: see bytes_to_post().
  std::vector<Registration> registrations_;  // By region of the manifest.
  // All sources are registered that were when the routes were made.
  bool sources_are_registered_ = true;
  uint64_t source_renewals_ = 0;        // The area's count at the last update.
  std::vector<bool> direct_;            // By route: the route can be sent directly.
  std::vector<uint64_t> direct_bytes_;  // By chunk: the bytes of its direct routes.
  ChunkList list_;
  size_t most_writes_ = 0;
  std::vector<ChunkWrite> chunk_writes_;  // Scratch memory, reserved for the largest chunk.
  UpdateId update_;
  Digests digests_ = Digests::kOn;
  SourcesAre sources_are_ = SourcesAre::kThere;
  // By route: the sum of its leaves' digests, or the digest that was given.
  std::vector<std::atomic<uint64_t>> sums_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_STAGED_ROUTES_H_
