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

// A chunk, and the slot that it is written to.
struct ChunkInSlot {
  uint32_t slot = 0;
  uint32_t chunk = 0;
};

// The slots' bytes are written by the pool's threads. Everything else happens on the progress
// thread.
class StagingSlots {
 public:
  // `stage` writes chunks to their slots, on any thread. `fabric` is woken when they are written.
  // The fabric and the pool outlive the use of the slots.
  StagingSlots(Fabric* fabric, StagingRing ring, WorkPool* pool,
               const std::function<void(absl::Span<const ChunkInSlot> chunks)>& stage);

  // How many chunks a thread writes at a time.
  void set_at_once(uint32_t chunks) { at_once_ = chunks; }
  // Has the chunk written from the next Begin() on. The slot is not being written.
  void Stage(uint32_t slot, uint32_t chunk);
  // Begins to write what has come since the last call. Returns false if that is nothing.
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

  // After this no thread writes to a slot, and nothing is left to visit.
  void Cancel();

  const StagingRing& ring() const { return ring_; }

 private:
  struct Slot {
    explicit Slot(WorkPool::Batch b) : batch(std::move(b)) {}
    WorkPool::Batch batch;
    std::vector<ChunkInSlot> chunks;  // Those that the batch writes; the first one is in this slot.
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
