#include "core/engine/staging_slots.h"

#include <utility>

namespace waybill {

StagingSlots::StagingSlots(Fabric* fabric, StagingRing ring, WorkPool* pool,
                           const std::function<void(uint32_t chunk, std::byte* slot)>& stage)
    : ring_(std::move(ring)), pool_(pool), slots_(ring_.slot_count()) {
  for (uint32_t s = 0; s < slots_.size(); ++s) {
    slots_[s].batch = std::make_unique<WorkPool::Batch>(
        [this, s, stage](uint32_t) { stage(slots_[s].what.chunk, ring_.BytesOf(s)); },
        [this, s, fabric] {
          slots_[s].written.store(true, std::memory_order_release);
          fabric->Wake();
        });
  }
}

bool StagingSlots::Stage(const Staged& what) {
  const uint32_t s = ring_.Take();
  if (s == kNoSlot) return false;
  slots_[s].in_use = true;
  slots_[s].posted = false;
  slots_[s].what = what;
  pool_->Run(*slots_[s].batch, 1);
  return true;
}

uint32_t StagingSlots::TakeToPost(TrainerPeer* peer) {
  const uint32_t s = ring_.Take();
  if (s == kNoSlot) return s;
  slots_[s].in_use = slots_[s].posted = true;
  slots_[s].what = {.peer = peer, .lane = nullptr, .chunk = 0};
  return s;
}

void StagingSlots::Free(uint32_t slot) {
  if (!std::exchange(slots_[slot].in_use, false)) return;
  slots_[slot].posted = false;
  ring_.Return(slot);
}

void StagingSlots::FreePostedTo(const TrainerPeer& peer) {
  for (uint32_t s = 0; s < slots_.size(); ++s) {
    if (slots_[s].posted && slots_[s].what.peer == &peer) Free(s);
  }
}

void StagingSlots::FreeAll() {
  for (uint32_t s = 0; s < slots_.size(); ++s) Free(s);
}

void StagingSlots::CancelStaging() {
  for (uint32_t s = 0; s < slots_.size(); ++s) {
    pool_->Cancel(*slots_[s].batch);
    slots_[s].written.store(false, std::memory_order_relaxed);
    if (!slots_[s].posted) Free(s);
  }
}

}  // namespace waybill
