// SPDX-License-Identifier: Apache-2.0

#include "core/engine/sender_link.h"

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/engine/kept_lanes.h"

namespace waybill {

absl::Status SenderLink::CheckLaneCount(size_t there) const {
  if (there == lanes.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(ToString(id), " has ", there, " lanes, the plan has ", lanes.size()));
}

void SenderLink::Report(const Fabric& fabric, std::vector<LaneReport>& reports) const {
  for (const SenderLane& lane : lanes) {
    reports.push_back(
        {.peer = id.rank, .path = fabric.DescribeLane(lane.id), .relay = id.role == Role::kWorker});
  }
}

absl::Status MakeSenderLinks(const RouteTable& arrivals, const ChunkList& chunks,
                             const TermLanes& lanes, std::deque<SenderLink>& links) {
  for (uint32_t r = 0; r < arrivals.size(); ++r) {
    if (links.empty() || links.back().sender != arrivals.sender(r)) {
      const auto index = static_cast<uint32_t>(links.size());
      SenderLink& link = links.emplace_back();
      link.index = index;
      link.sender = arrivals.sender(r);
      link.first_route = r;
    }
    links.back().last_route = r + 1;
    links.back().bytes += arrivals.written_bytes(r);
  }
  uint32_t chunk = 0;
  for (SenderLink& link : links) {
    WAYBILL_ASSIGN_OR_RETURN(const PeerLanes* planned, FindLanes(lanes.peers, link.sender));
    link.id = planned->id;
    for (const LanePath& path : planned->lanes) link.lanes.push_back({.nic = path.receiver_nic});
    const uint32_t first_chunk = chunk;
    while (chunk < chunks.chunks.size() && chunks.chunks[chunk].sender == link.sender) ++chunk;
    link.chunk_count = chunk - first_chunk;
  }
  return absl::OkStatus();
}

}  // namespace waybill
