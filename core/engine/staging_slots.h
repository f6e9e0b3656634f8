// The slots of a trainer's staging ring, with what each holds on its way to the wire.
#ifndef WAYBILL_CORE_ENGINE_STAGING_SLOTS_H_
#define WAYBILL_CORE_ENGINE_STAGING_SLOTS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/engine/trainer_peer.h"
#include "core/fabric/fabric.h"
#include "core/memory/staging_ring.h"
#include "core/stage/work_pool.h"

namespace waybill {

// A slot is staged (a chunk is being written to it, by the pool), then posted, then free. Lives on
// the progress thread.
class StagingSlots {
 public:
  static constexpr uint32_t kNoSlot = StagingRing::kNoSlot;
  struct Staged {
    TrainerPeer* peer;
    TrainerLane* lane;
    uint32_t chunk;
  };

  // `stage` writes a chunk to a slot, on any thread. `fabric` is woken when one is written; it and
  // `pool` outlive the slots' use.
  StagingSlots(Fabric* fabric, StagingRing ring, WorkPool* pool,
               const std::function<void(uint32_t chunk, std::byte* slot)>& stage);

  // False where no slot is free.
  bool Stage(const Staged& what);
  // A slot that is filled by the caller and posted at once. kNoSlot where none is free.
  uint32_t TakeToPost(TrainerPeer* peer);

  // Calls post(slot, what) for each slot whose chunk is written; true: it is on the wire now.
  template <typename Post>
  void ForEachWritten(Post post) {
    for (uint32_t s = 0; s < slots_.size(); ++s) {
      Slot& slot = slots_[s];
      if (!slot.written.load(std::memory_order_acquire)) continue;
      if (!slot.what.peer->failed && !post(s, slot.what)) continue;
      slot.written.store(false, std::memory_order_relaxed);
      if (slot.what.peer->failed) {
        Free(s);
      } else {
        slot.posted = true;
      }
    }
  }

  // What was posted from it is complete, or never will be. Nothing where it is free already.
  void Free(uint32_t slot);
  void FreePostedTo(const TrainerPeer& peer);
  void FreeAll();
  // After this no thread writes to a slot, and none waits to be posted.
  void CancelStaging();

  const StagingRing& ring() const { return ring_; }

 private:
  struct Slot {
    std::unique_ptr<WorkPool::Batch> batch;
    std::atomic<bool> written = false;
    bool in_use = false;
    bool posted = false;
    Staged what = {};
  };

  StagingRing ring_;
  WorkPool* const pool_;
  std::vector<Slot> slots_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_STAGING_SLOTS_H_
