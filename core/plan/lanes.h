// SPDX-License-Identifier: Apache-2.0

// Decides which NICs of a sender and a receiver the lanes join, and which lane carries which chunk.
//
// Pure rules, the same on every rank. A lane is bound to its two NICs when it is planned, so that
// keys and queue pairs always belong to the same NIC.
#ifndef WAYBILL_CORE_PLAN_LANES_H_
#define WAYBILL_CORE_PLAN_LANES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/plan/chunks.h"
#include "core/tensor/manifest.h"

namespace waybill {

// One lane of a pair of ranks. If a name is empty, the fabric chooses the NIC.
struct LanePath {
  std::string sender_nic;
  std::string receiver_nic;
  // The speed of the slower NIC, divided among the pair's lanes on it. 0 on all lanes of a pair if
  // the speed of one of them is unknown.
  uint64_t bytes_per_second = 0;

  bool operator==(const LanePath&) const = default;
};

struct LaneOptions {
  // The number of lanes for each joined pair of NICs. Several lanes take different paths in a
  // network that spreads flows.
  uint32_t lanes_per_path = 1;
  // The number of lanes between two ranks on different hosts that declare no NICs. Ranks on one
  // host get one lane.
  uint32_t lanes_without_nics = 4;
};

// Returns max(m, n) paths for m and n NICs, so that every NIC on either side has one. NICs of equal
// rail are joined first, then NICs of equal NUMA node, then the others in the order of the
// manifests. If only one rank declares NICs, the other is treated as having one NIC without a name.
std::vector<LanePath> PlanLanes(const Manifest& sender, const Manifest& receiver,
                                const LaneOptions& options = {});

// Returns for each chunk the lane that would finish it first, where time is bytes divided by link
// speed. All chunks must be between the same two ranks.
std::vector<uint32_t> ShareOut(absl::Span<const Chunk> chunks, absl::Span<const LanePath> lanes);

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_LANES_H_
