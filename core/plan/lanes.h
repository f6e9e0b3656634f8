// SPDX-License-Identifier: Apache-2.0

// Which NICs of a sender and a receiver their lanes join, and which chunk goes by which lane.
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
  std::string sender_nic;
  std::string receiver_nic;
  // The speed of the slower NIC, divided among the pair's lanes on it. 0 on all lanes of a pair if
  // it is not known for one of them.
  uint64_t bytes_per_second = 0;

  bool operator==(const LanePath&) const = default;
};

struct LaneOptions {
  // The number of lanes for each joined pair of NICs. Several lanes take different paths through a
  // network that spreads flows.
  uint32_t lanes_per_path = 1;
  // The number of connections between two ranks that declare no NICs. On one host there is one.
  uint32_t lanes_without_nics = 4;
};

// Returns max(m, n) paths for m and n NICs, so that every NIC on either side has one. NICs of equal
// rail are joined first, then those of equal NUMA node, then what is left in the order of the
// manifests. A rank without NICs beside one with NICs joins as if it had one without a name.
std::vector<LanePath> PlanLanes(const Manifest& sender, const Manifest& receiver,
                                const LaneOptions& options = {});

// Returns for each chunk the lane that would finish it first. All chunks are of one pair; time is
// bytes over link speed.
std::vector<uint32_t> ShareOut(absl::Span<const Chunk> chunks, absl::Span<const LanePath> lanes);

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_LANES_H_
