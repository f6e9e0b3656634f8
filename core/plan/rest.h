// SPDX-License-Identifier: Apache-2.0

// Plans the routes that bring the data which an earlier plan failed to bring.
#ifndef WAYBILL_CORE_PLAN_REST_H_
#define WAYBILL_CORE_PLAN_REST_H_

#include <compare>
#include <cstdint>
#include <set>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/plan/plan.h"
#include "core/tensor/manifest.h"

namespace waybill {

// All routes of a plan between two ranks.
struct RankPair {
  uint32_t sender = 0;
  uint32_t receiver = 0;

  auto operator<=>(const RankPair&) const = default;
};

// Plans the boxes of the routes between the pairs in `lacking`, from the shards that `senders` hold
// now. The manifest of a sender that holds nothing has no shards. The routes name the shards of
// `receivers`, which must be the receivers of `plan`. Pure, like MakePlan().
//
// kInvalidArgument: see MakePlan(); or the number of receivers differs from that of `plan`.
// kUnimplemented: the plan quantises.
absl::StatusOr<Plan> PlanRest(const Plan& plan, const std::set<RankPair>& lacking,
                              absl::Span<const Manifest* const> senders,
                              absl::Span<const Manifest* const> receivers);

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_REST_H_
