// SPDX-License-Identifier: Apache-2.0

#include "core/protocol/arrival_gate.h"

#include "core/protocol/update.h"

namespace waybill {
void ArrivalGate::Arm(uint32_t sequence) {
  armed_ = sequence & kSequenceMask;
  missing_ = 0;
  for (const uint32_t seen : seen_) missing_ += seen == armed_ ? 0 : 1;
}

void ArrivalGate::Count(uint32_t lane, uint32_t sequence) {
  uint32_t& seen = seen_[lane];
  if (seen == sequence) {
    ++repeats_;
  } else if (seen != kNever && !IsLater(sequence, seen)) {
    ++stragglers_;
  } else {
    if (armed_ != kNever && sequence != armed_ && !IsLater(sequence, armed_)) ++stragglers_;
    seen = sequence;
    if (seen == armed_) --missing_;
  }
}

}  // namespace waybill
