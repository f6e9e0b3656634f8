#include "core/engine/worker_source.h"

#include "absl/strings/str_cat.h"

namespace waybill {

absl::Status Source::CheckLaneCount(size_t there) const {
  if (there == lanes.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("trainer ", trainer, " has ", there, " lanes, the plan has ", lanes.size()));
}

void Source::Report(const Fabric& fabric, std::vector<LaneReport>& reports) const {
  for (const SourceLane& lane : lanes) {
    reports.push_back({.peer = trainer, .path = fabric.DescribeLane(lane.id)});
  }
}

uint32_t MakeSources(const RouteTable& arrivals, const ChunkList& chunks,
                     const std::vector<PeerLanes>& lanes, std::deque<Source>& sources) {
  for (uint32_t r = 0; r < arrivals.size(); ++r) {
    if (sources.empty() || sources.back().trainer != arrivals.trainer(r)) {
      Source& source = sources.emplace_back();
      source.trainer = arrivals.trainer(r);
      source.first_route = r;
    }
    sources.back().last_route = r + 1;
  }
  uint32_t chunk = 0;
  uint32_t gate = 0;
  for (Source& source : sources) {
    std::vector<LanePath> paths(1);
    for (const PeerLanes& known : lanes) {
      if (known.peer == source.trainer) paths = known.lanes;
    }
    for (const LanePath& path : paths) source.lanes.push_back({.nic = path.worker_nic});
    source.first_gate = gate;
    gate += static_cast<uint32_t>(paths.size());
    source.first_chunk = chunk;
    while (chunk < chunks.chunks.size() && chunks.chunks[chunk].trainer == source.trainer) ++chunk;
    source.last_chunk = chunk;
  }
  return gate;
}

}  // namespace waybill
