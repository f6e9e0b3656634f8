// SPDX-License-Identifier: Apache-2.0

// Writes chunks into the slots of a sender's staging ring.
#ifndef WAYBILL_CORE_ENGINE_STAGING_SLOTS_H_
#define WAYBILL_CORE_ENGINE_STAGING_SLOTS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "core/fabric/fabric.h"
#include "core/memory/staging_ring.h"
#include "core/stage/work_pool.h"

namespace waybill {

// A chunk and the slot to which it is written.
struct ChunkInSlot {
  uint32_t slot = 0;
  uint32_t chunk = 0;
};

// The pool's threads write the slots' bytes. Everything else happens on the progress thread.
class StagingSlots {
 public:
  // `stage` writes chunks to their slots, on any thread. `fabric` is woken when chunks are written.
  // The fabric and the pool must outlive the object.
  StagingSlots(Fabric* fabric, StagingRing ring, WorkPool* pool,
               const std::function<void(absl::Span<const ChunkInSlot> chunks)>& stage);

  // Sets the number of chunks that a thread writes in one call of `stage`.
  void set_at_once(uint32_t chunks) { at_once_ = chunks; }
  // Queues a chunk to be written after the next Begin(). The slot must not be in use.
  void Stage(uint32_t slot, uint32_t chunk);
  // Starts to write the queued chunks. Returns false if none are queued.
  bool Begin();

  // Calls visit(slot) once for each slot that was written since the last call.
  template <typename Visit>
  void ForEachWritten(Visit visit) {
    for (uint32_t s = 0; s < slots_.size(); ++s) {
      if (!slots_[s].written.load(std::memory_order_acquire)) continue;
      slots_[s].written.store(false, std::memory_order_relaxed);
      visit(s);
    }
  }

  // Stops writing. When it returns, no thread writes to a slot, and ForEachWritten() visits none.
  void Cancel();

  const StagingRing& ring() const { return ring_; }

 private:
  struct Slot {
    explicit Slot(WorkPool::Batch b) : batch(std::move(b)) {}
    WorkPool::Batch batch;
    // The chunks that the batch writes; the first belongs to this slot.
    std::vector<ChunkInSlot> chunks;
    std::atomic<bool> written = false;
  };

  void MarkWritten(const std::vector<ChunkInSlot>& chunks);

  StagingRing ring_;
  WorkPool* const pool_;
  uint32_t at_once_ = 1;
  std::vector<ChunkInSlot> waiting_;
  std::deque<Slot> slots_;  // Addresses are stable.
};

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_STAGING_SLOTS_H_
