// Which NICs of a trainer and a worker their lanes join, and which chunk goes by which lane.
//
// Pure rules, the same on every rank. A lane is bound to its two NICs when it is made, so that keys
// and queue pairs can never be of different ones.
#ifndef WAYBILL_CORE_PLAN_LANES_H_
#define WAYBILL_CORE_PLAN_LANES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/plan/chunks.h"
#include "core/tensor/manifest.h"

namespace waybill {

// One lane of a pair of ranks. Empty names: whatever NIC the fabric chooses.
struct LanePath {
  std::string trainer_nic;
  std::string worker_nic;
  uint64_t bytes_per_second = 0;  // Of the slower one, shared with the pair's other lanes on it; 0:
                                  // not known, and then of none of the pair's lanes.

  bool operator==(const LanePath&) const = default;
};

struct LaneOptions {
  // For each pair of NICs that are joined: more than one takes different paths through a network
  // that spreads flows.
  uint32_t lanes_per_path = 1;
  // Of two ranks that declare no NICs: connections in parallel, one where they are on one host.
  uint32_t lanes_without_nics = 4;
};

// Of NICs m to n there are max(m, n) paths: every NIC of either side has one. NICs of equal rail
// are joined first, then those of equal NUMA node, then what is left in the order of the manifests.
// A rank without NICs beside one with NICs joins as if it had one without a name.
std::vector<LanePath> PlanLanes(const Manifest& trainer, const Manifest& worker,
                                const LaneOptions& options = {});

// For each of the chunks, which are all of one pair: the lane that is through with it first, by
// bytes over link speed.
std::vector<uint32_t> ShareOut(absl::Span<const Chunk> chunks, absl::Span<const LanePath> lanes);

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_LANES_H_
