// SPDX-License-Identifier: Apache-2.0

#include "core/engine/trainer_link.h"

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/engine/kept_lanes.h"

namespace waybill {

absl::Status TrainerLink::CheckLaneCount(size_t there) const {
  if (there == lanes.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(ToString(id), " has ", there, " lanes, the plan has ", lanes.size()));
}

void TrainerLink::BeginUpdate() {
  verifying = verified = wave_runs = false;
  ready.clear();
  ready.reserve(chunk_count());
  is_ready.assign(chunk_count(), false);
  wave_begin = wave_end = relayed = counted = 0;
  counted_bytes = 0;
}

void TrainerLink::AddReady(uint32_t chunk) {
  if (is_ready[chunk]) return;
  is_ready[chunk] = true;
  ready.push_back(first_chunk + chunk);
}

void TrainerLink::Report(const Fabric& fabric, std::vector<LaneReport>& reports) const {
  for (const TrainerLane& lane : lanes) {
    reports.push_back(
        {.peer = id.rank, .path = fabric.DescribeLane(lane.id), .relay = id.role == Role::kWorker});
  }
}

absl::StatusOr<uint32_t> MakeTrainerLinks(const RouteTable& arrivals, const ChunkList& chunks,
                                          const TermLanes& lanes, std::deque<TrainerLink>& links) {
  for (uint32_t r = 0; r < arrivals.size(); ++r) {
    if (links.empty() || links.back().trainer != arrivals.trainer(r)) {
      TrainerLink& link = links.emplace_back();
      link.trainer = arrivals.trainer(r);
      link.id = lanes.senders.At(link.trainer);
      link.first_route = r;
    }
    links.back().last_route = r + 1;
    links.back().bytes += arrivals.written_bytes(r);
  }
  uint32_t chunk = 0;
  uint32_t gate = 0;
  for (TrainerLink& link : links) {
    WAYBILL_ASSIGN_OR_RETURN(const PeerLanes* planned, FindLanes(lanes.peers, link.trainer));
    for (const LanePath& path : planned->lanes) link.lanes.push_back({.nic = path.worker_nic});
    link.first_gate = gate;
    gate += static_cast<uint32_t>(link.lanes.size());
    link.first_chunk = chunk;
    while (chunk < chunks.chunks.size() && chunks.chunks[chunk].trainer == link.trainer) ++chunk;
    link.last_chunk = chunk;
  }
  return gate;
}

}  // namespace waybill
