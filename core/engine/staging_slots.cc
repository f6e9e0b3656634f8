// SPDX-License-Identifier: Apache-2.0

#include "core/engine/staging_slots.h"

#include <algorithm>
#include <utility>

namespace waybill {

StagingSlots::StagingSlots(Fabric* fabric, StagingRing ring, WorkPool* pool,
                           const std::function<void(absl::Span<const ChunkInSlot> chunks)>& stage)
    : ring_(ring), pool_(pool) {
  waiting_.reserve(ring_.slot_count());
  for (uint32_t s = 0; s < ring_.slot_count(); ++s) {
    Slot& slot =
        slots_.emplace_back(WorkPool::Batch([this, s, stage](uint32_t) { stage(slots_[s].chunks); },
                                            [this, s, fabric] {
                                              MarkWritten(slots_[s].chunks);
                                              fabric->Wake();
                                            }));
    slot.chunks.reserve(ring_.slot_count());
  }
}

// Mark the batch's own slot last: once it is marked, its batch may get other chunks.
void StagingSlots::MarkWritten(const std::vector<ChunkInSlot>& chunks) {
  for (size_t i = chunks.size(); i-- > 0;) {
    slots_[chunks[i].slot].written.store(true, std::memory_order_release);
  }
}

void StagingSlots::Stage(uint32_t slot, uint32_t chunk) { waiting_.push_back({slot, chunk}); }

bool StagingSlots::Begin() {
  if (waiting_.empty()) return false;
  for (absl::Span<const ChunkInSlot> left = waiting_; !left.empty();) {
    const auto chunks = left.first(std::min<size_t>(left.size(), at_once_));
    left.remove_prefix(chunks.size());
    Slot& first = slots_[chunks[0].slot];
    first.chunks.assign(chunks.begin(), chunks.end());
    pool_->Run(first.batch, 1);
  }
  waiting_.clear();
  return true;
}

void StagingSlots::Cancel() {
  waiting_.clear();
  for (Slot& slot : slots_) {
    pool_->Cancel(slot.batch);
    slot.written.store(false, std::memory_order_relaxed);
  }
}

}  // namespace waybill
