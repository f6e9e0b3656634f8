#include "core/engine/staging_slots.h"

#include <utility>

namespace waybill {

StagingSlots::StagingSlots(Fabric* fabric, StagingRing ring, WorkPool* pool,
                           const std::function<void(uint32_t chunk, std::byte* slot)>& stage)
    : ring_(ring), pool_(pool) {
  for (uint32_t s = 0; s < ring_.slot_count(); ++s) {
    slots_.emplace_back(
        WorkPool::Batch([this, s, stage](uint32_t) { stage(slots_[s].chunk, ring_.BytesOf(s)); },
                        [this, s, fabric] {
                          slots_[s].written.store(true, std::memory_order_release);
                          fabric->Wake();
                        }));
  }
}

void StagingSlots::Stage(uint32_t slot, uint32_t chunk) {
  slots_[slot].chunk = chunk;
  pool_->Run(slots_[slot].batch, 1);
}

void StagingSlots::Cancel() {
  for (Slot& slot : slots_) {
    pool_->Cancel(slot.batch);
    slot.written.store(false, std::memory_order_relaxed);
  }
}

}  // namespace waybill
