// Writes chunks into the slots of a trainer's staging ring.
#ifndef WAYBILL_CORE_ENGINE_STAGING_SLOTS_H_
#define WAYBILL_CORE_ENGINE_STAGING_SLOTS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>

#include "core/fabric/fabric.h"
#include "core/memory/staging_ring.h"
#include "core/stage/work_pool.h"

namespace waybill {

// The slots' bytes are written by the pool's threads. Everything else happens on the progress
// thread.
class StagingSlots {
 public:
  // `stage` writes a chunk to a slot, on any thread. `fabric` is woken when a slot is written. The
  // fabric and the pool outlive the use of the slots.
  StagingSlots(Fabric* fabric, StagingRing ring, WorkPool* pool,
               const std::function<void(uint32_t chunk, std::byte* slot)>& stage);

  // Begins to write the chunk. The slot is not being written.
  void Stage(uint32_t slot, uint32_t chunk);

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
    std::atomic<bool> written = false;
    uint32_t chunk = 0;
  };

  StagingRing ring_;
  WorkPool* const pool_;
  std::deque<Slot> slots_;  // Addresses are stable.
};

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_STAGING_SLOTS_H_
