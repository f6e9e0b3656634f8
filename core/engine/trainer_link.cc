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

void TrainerLink::Report(const Fabric& fabric, std::vector<LaneReport>& reports) const {
  for (const TrainerLane& lane : lanes) {
    reports.push_back(
        {.peer = id.rank, .path = fabric.DescribeLane(lane.id), .relay = id.role == Role::kWorker});
  }
}

absl::Status MakeTrainerLinks(const RouteTable& arrivals, const ChunkList& chunks,
                              const TermLanes& lanes, std::deque<TrainerLink>& links) {
  for (uint32_t r = 0; r < arrivals.size(); ++r) {
    if (links.empty() || links.back().trainer != arrivals.trainer(r)) {
      const auto index = static_cast<uint32_t>(links.size());
      TrainerLink& link = links.emplace_back();
      link.index = index;
      link.trainer = arrivals.trainer(r);
      link.id = lanes.senders.At(link.trainer);
      link.first_route = r;
    }
    links.back().last_route = r + 1;
    links.back().bytes += arrivals.written_bytes(r);
  }
  uint32_t chunk = 0;
  for (TrainerLink& link : links) {
    WAYBILL_ASSIGN_OR_RETURN(const PeerLanes* planned, FindLanes(lanes.peers, link.trainer));
    for (const LanePath& path : planned->lanes) link.lanes.push_back({.nic = path.worker_nic});
    const uint32_t first_chunk = chunk;
    while (chunk < chunks.chunks.size() && chunks.chunks[chunk].trainer == link.trainer) ++chunk;
    link.chunk_count = chunk - first_chunk;
  }
  return absl::OkStatus();
}

}  // namespace waybill
