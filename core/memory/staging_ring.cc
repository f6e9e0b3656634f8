#include "core/memory/staging_ring.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace waybill {

absl::StatusOr<StagingRing> StagingRing::Create(Fabric* fabric, uint64_t ring_bytes,
                                                uint64_t slot_bytes) {
  if (slot_bytes == 0 || ring_bytes < slot_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("staging ring of ", ring_bytes, " bytes: one slot has ", slot_bytes));
  }
  StagingRing ring;
  ring.slot_bytes_ = slot_bytes;
  ring.slot_count_ = static_cast<uint32_t>(ring_bytes / slot_bytes);
  WAYBILL_ASSIGN_OR_RETURN(ring.region_,
                           fabric->Allocate(ring.slot_count_ * slot_bytes, "staging ring"));
  ring.ReturnAll();
  return ring;
}

uint32_t StagingRing::Take() {
  if (free_.empty()) return kNoSlot;
  const uint32_t slot = free_.back();
  free_.pop_back();
  high_water_ = std::max<uint64_t>(high_water_, slot_count_ - free_.size());
  return slot;
}

void StagingRing::Return(uint32_t slot) { free_.push_back(slot); }

void StagingRing::ReturnAll() {
  free_.clear();
  for (uint32_t slot = slot_count_; slot-- > 0;) free_.push_back(slot);
}

}  // namespace waybill
