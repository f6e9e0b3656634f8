// SPDX-License-Identifier: Apache-2.0

// Whether a rank can use a plan that it was sent. The plan may come from anybody who plays the
// controller, so nothing in it is believed.
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

// Checks a decoded plan against the rank's own manifest, which has passed CheckManifest(). Pure.
//
// A sender reads only from its shards, in their element type, and has one scale table for each
// shard and quantisation, as the planner makes it. A receiver has its shards written, each byte
// once at most in sum.
//
// kInvalidArgument: names the route, the shard and what does not fit.
absl::Status CheckRankPlan(const RankPlan& plan, const Manifest& manifest, Role role);

// Checks what a sender cannot know from its own manifest: that routes [first, last), all of them
// to one receiver, write within the receiver's regions. `region_bytes` are the sizes of these
// regions as they were imported or mapped; ~0 for a size that only the other end checks.
//
// kInvalidArgument: names the route and the region.
absl::Status CheckDestinations(const RouteTable& routes, uint32_t first, uint32_t last,
                               absl::Span<const uint64_t> region_bytes);

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_PLAN_CHECK_H_
