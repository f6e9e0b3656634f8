// SPDX-License-Identifier: Apache-2.0

// Checks whether a rank can use the plan that it received. An impostor may have sent the plan in
// the controller's place, so nothing in it is trusted.
#ifndef WAYBILL_CORE_PLAN_PLAN_CHECK_H_
#define WAYBILL_CORE_PLAN_PLAN_CHECK_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/base/rank_id.h"
#include "core/plan/plan_codec.h"
#include "core/plan/route_table.h"
#include "core/tensor/manifest.h"

namespace waybill {

// Checks a decoded plan against the rank's own manifest, which must have passed CheckManifest().
// Pure.
//
// A sender's routes must read only from its shards, in their element type, and its exchange must
// have one scale table for each shard and quantisation. A receiver's routes must write only to its
// shards, and no more bytes in sum than the shards have.
//
// kInvalidArgument: names the route, the shard and the mismatch.
absl::Status CheckRankPlan(const RankPlan& plan, const Manifest& manifest, Role role);

// Checks that routes [first, last), all to one receiver, write within the receiver's regions, which
// are not in the sender's manifest. `region_bytes` are the sizes of these regions when imported or
// mapped; ~0 for a size that only the receiver's network checks.
//
// kInvalidArgument: names the route and the region.
absl::Status CheckDestinations(const RouteTable& routes, uint32_t first, uint32_t last,
                               absl::Span<const uint64_t> region_bytes);

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_PLAN_CHECK_H_
