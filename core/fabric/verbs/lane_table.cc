// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/verbs/lane_table.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/net/silence.h"

namespace waybill::verbs {

void LaneTable::Add(std::unique_ptr<VerbsLane> lane, UsedNic* nic) {
  ++nic->lanes;
  const uint32_t id = lane->id();
  lanes_[id] = {std::move(lane), nic};
}

void LaneTable::Erase(const VerbsLane& lane) {
  const auto found = lanes_.find(lane.id());
  --found->second.nic->lanes;
  lanes_.erase(found);
}

absl::StatusOr<VerbsLane*> LaneTable::Find(LaneId id) const {
  const auto lane = lanes_.find(static_cast<uint32_t>(id));
  if (lane == lanes_.end()) {
    return absl::NotFoundError(absl::StrCat("no lane ", static_cast<uint32_t>(id)));
  }
  return lane->second.lane.get();
}

absl::StatusOr<VerbsLane*> LaneTable::FindUsable(LaneId id) const {
  WAYBILL_ASSIGN_OR_RETURN(VerbsLane * lane, Find(id));
  WAYBILL_RETURN_IF_ERROR(lane->status);
  if (!lane->connected()) {
    return absl::FailedPreconditionError(
        absl::StrCat("lane to ", lane->peer(), " is not connected"));
  }
  return lane;
}

VerbsLane* LaneTable::FindLive(uint32_t id) const {
  const auto lane = lanes_.find(id);
  return lane == lanes_.end() || !lane->second.lane->status.ok() ? nullptr
                                                                 : lane->second.lane.get();
}

std::vector<VerbsLane*> LaneTable::ConcernedBy(const NicTrouble& trouble) const {
  std::vector<VerbsLane*> concerned;
  for (const auto& [id, open] : lanes_) {
    const VerbsLane& lane = *open.lane;
    if (trouble.nic == open.nic || (trouble.queues != nullptr && trouble.queues == lane.queues()) ||
        (trouble.queue_pair != nullptr && trouble.queue_pair == lane.queue_pair())) {
      concerned.push_back(open.lane.get());
    }
  }
  return concerned;
}

std::vector<VerbsLane*> LaneTable::SilentFor(absl::Duration most) const {
  std::vector<VerbsLane*> silent;
  for (const auto& [id, open] : lanes_) {
    VerbsLane& lane = *open.lane;
    if (lane.status.ok() && lane.side.open() &&
        lane.silence.IsBeyond(absl::ToChronoNanoseconds(most), lane.side.fd(),
                              net::Silence::Clock::now())) {
      silent.push_back(&lane);
    }
  }
  return silent;
}

}  // namespace waybill::verbs
