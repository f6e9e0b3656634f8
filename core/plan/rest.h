// SPDX-License-Identifier: Apache-2.0

// Plans what a plan has not brought.
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

// Plans the boxes that the routes of `lacking` were to bring, from what `senders` hold now: one
// that holds nothing has a manifest without shards. The routes name the shards of `receivers`,
// which are those of `plan`. Pure, like MakePlan().
//
// kInvalidArgument: as MakePlan() has it, or another number of receivers than in `plan`;
// kUnimplemented: the plan quantises.
absl::StatusOr<Plan> PlanRest(const Plan& plan, const std::set<RankPair>& lacking,
                              absl::Span<const Manifest* const> senders,
                              absl::Span<const Manifest* const> receivers);

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_REST_H_
