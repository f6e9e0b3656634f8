// SPDX-License-Identifier: Apache-2.0

// Chunks of an image that several receivers want alike: each is packed once, and posted to all of
// them.
#ifndef WAYBILL_CORE_ENGINE_SHARED_CHUNKS_H_
#define WAYBILL_CORE_ENGINE_SHARED_CHUNKS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/fabric/fabric.h"
#include "core/memory/registration_cache.h"
#include "core/stage/work_pool.h"

namespace waybill {

// The form in which a chunk is packed.
enum class Packed : uint8_t {
  kWhole,
  kUndigested,  // The whole chunk, without digests.
  kChanges,     // The changes since the version before, or the chunk where that is shorter.
};

// The result of packing a chunk.
struct PackedChunk {
  uint64_t bytes_to_post = 0;
  // By piece of the chunk: the sum of its leaves' digests, and the number of NaNs and infinities
  // that were found in its scale table.
  std::vector<uint64_t> sums;
  std::vector<uint64_t> nonfinite;
};

// One chunk of the image. Lives on the progress thread, but for what the thread that packs writes.
struct SharedChunk {
  std::string content;  // Its name among all chunks.
  uint64_t size_bytes = 0;
  uint32_t users = 0;  // The receivers that want it.
  MemorySpan memory;   // Empty until two want it.
  Registration registration;

  // The state for the current image.
  bool claimed = false;              // A sender packs the chunk, or has.
  uint32_t takers = 0;               // The receivers for which it is taken in updates that go on.
  Packed as = Packed::kWhole;        // How it is packed, if it is claimed or taken.
  PackedChunk result;                // Written by the thread that packs, before:
  std::atomic<bool> packed = false;  // The memory and the result are complete.
};

// All shared chunks of a trainer. Lives on the progress thread.
class SharedChunks {
 public:
  // The fabric outlives the object.
  explicit SharedChunks(Fabric* fabric) : fabric_(*fabric) {}
  ~SharedChunks();
  SharedChunks(const SharedChunks&) = delete;
  SharedChunks& operator=(const SharedChunks&) = delete;

  // Adds a user of a chunk of so many pieces. Chunks with equal `content` have equal bytes and
  // equal pieces in every image. The result is valid until its user is removed.
  SharedChunk* Add(const std::string& content, uint64_t size_bytes, size_t pieces);
  void Remove(SharedChunk* chunk);
  // Reserves memory for every chunk with two users or more. The memory stays until none of the
  // chunks that were reserved with it has a user.
  //
  // kResourceExhausted: there is not enough memory; these chunks stay without.
  absl::Status Reserve();
  // Lets the lane's network read all memory that it was not granted yet. `granted` is the lane's,
  // at first 0.
  absl::Status GrantTo(LaneId lane, uint64_t& granted);

  // Forgets what was packed, unless it was packed from this image. Nobody may use another one.
  void BeginImage(uint64_t image);
  // Returns how often a sender has given up chunks that it had claimed.
  uint64_t given_up() const { return given_up_; }
  void GiveUp() { ++given_up_; }

 private:
  // Chunks that were reserved at once.
  struct Block {
    Region region;
    uint64_t number = 0;  // Counted from 1.
    uint32_t chunks = 0;  // The chunks with users.
  };

  Fabric& fabric_;
  std::map<std::string, std::unique_ptr<SharedChunk>> chunks_;  // By content.
  std::vector<Block> blocks_;
  uint64_t blocks_made_ = 0;
  uint64_t image_ = 0;
  uint64_t given_up_ = 0;
};

// The part of one sender: the shared chunks of its plan. What several senders want is packed by the
// one that begins first; the others wait for it. If that sender stops, another one packs the rest.
//
// Lives on the progress thread; threads of the pool pack.
class ChunkSharing {
 public:
  // `pack` packs a chunk (of the plan), on any thread. The fabric is woken when it has, and when
  // chunks that others may wait for are given up. All arguments outlive the object.
  using Pack = std::function<void(uint32_t chunk, Packed as, absl::Span<std::byte> memory,
                                  PackedChunk& result)>;
  ChunkSharing(Fabric* fabric, SharedChunks* shared, WorkPool* pool, Pack pack);
  ~ChunkSharing() { Reset(); }
  ChunkSharing(const ChunkSharing&) = delete;
  ChunkSharing& operator=(const ChunkSharing&) = delete;

  // Begins a plan of so many chunks, none of which is shared yet. Drops the plan before.
  void SetPlan(uint32_t chunk_count);
  void Reset() { SetPlan(0); }
  // Lets the plan's chunk be shared with others of this content; see SharedChunks::Add().
  void Share(uint32_t chunk, const std::string& content, uint64_t size_bytes, size_t pieces);

  // Begins an update from the image of SharedChunks::BeginImage().
  void Begin();
  // Returns true if the update takes the chunk from the shared memory: then ForEachPacked() visits
  // it. Otherwise it has no such memory, or another receiver wants something else of it.
  bool Take(uint32_t chunk, Packed as);
  bool taken(uint32_t chunk) const { return taken_[chunk]; }
  // The chunk, which is taken.
  const SharedChunk& of(uint32_t chunk) const { return *chunks_[chunk]; }

  // Begins to pack what is claimed. Returns false if there is nothing to begin.
  bool BeginPacking();
  // Calls visit(chunk, own) once for each taken chunk that is packed, in the order in which they
  // were taken. `own`: this sender has packed it.
  void ForEachPacked(absl::FunctionRef<void(uint32_t chunk, bool own)> visit);
  // Ends the update: gives up what is claimed and not packed. No thread packs when it returns.
  void End();

 private:
  void Claim(uint32_t chunk);
  void PackNext(uint32_t index);

  Fabric& fabric_;
  SharedChunks& shared_;
  WorkPool& pool_;
  const Pack pack_;

  std::vector<SharedChunk*> chunks_;  // By chunk of the plan; null if it is not shared.
  std::vector<bool> taken_;           // By chunk.
  std::vector<bool> own_;             // By chunk.
  // The taken chunks, in order; those before `visited_` were visited.
  std::vector<uint32_t> wanted_;
  size_t visited_ = 0;
  uint64_t given_up_ = 0;  // The value of SharedChunks::given_up() that was acted upon.
  // The claimed chunks, in order. The pool packs [wave_begin_, wave_end_), and the rest later.
  std::vector<uint32_t> claimed_;
  size_t wave_begin_ = 0;
  size_t wave_end_ = 0;
  std::atomic<bool> wave_is_over_ = true;
  WorkPool::Batch batch_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_SHARED_CHUNKS_H_
