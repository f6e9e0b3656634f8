// SPDX-License-Identifier: Apache-2.0

// Computes the plan from all manifests.
#ifndef WAYBILL_CORE_PLAN_PLANNER_H_
#define WAYBILL_CORE_PLAN_PLANNER_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/plan/assignment.h"
#include "core/plan/plan.h"
#include "core/tensor/manifest.h"

namespace waybill {

// The most senders, or receivers, of a plan. It has a number for each pair of ranks.
inline constexpr size_t kMostRanks = size_t{1} << 16;

struct PlanOptions {
  // A box that several senders hold is shared out between them in pieces of at least this size.
  uint64_t smallest_piece_bytes = 64 << 10;
  // Whether receivers relay what several of them want alike. kWherePredictedFaster needs the speeds
  // of all ranks' NICs, and ranks on several hosts.
  Relays relays = Relays::kNever;
};

// Every byte of every receiver's shards is written by exactly one route. Pure: reads only its
// arguments; the same manifests in the same order give the same plan, byte for byte, on every host.
// The manifests have passed CheckManifest(); index is rank.
//
// kInvalidArgument, naming the tensor, the receiver and both ranges: a tensor that no sender holds,
// or that they hold only in part, or with different shapes; a format that cannot be made from
// theirs; a receiver's part whose elements are nowhere neighbours; a quantised part without its
// scales, or of a block that the senders hold only in part; what CheckOrder() refuses; more than
// kMostRanks on one side.
absl::StatusOr<Plan> MakePlan(absl::Span<const Manifest* const> senders,
                              absl::Span<const Manifest* const> receivers,
                              const PlanOptions& options = {});

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_PLANNER_H_
