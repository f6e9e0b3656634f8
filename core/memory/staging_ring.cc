// SPDX-License-Identifier: Apache-2.0

#include "core/memory/staging_ring.h"

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
  return ring;
}

}  // namespace waybill
