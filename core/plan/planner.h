// SPDX-License-Identifier: Apache-2.0

// Computes the plan from the manifests of all ranks.
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

// The most senders, or receivers, of a plan. A plan stores a number for each pair of ranks.
inline constexpr size_t kMostRanks = size_t{1} << 16;

struct PlanOptions {
  // A box that several senders hold is divided among them into pieces of at least this size.
  uint64_t smallest_piece_bytes = 64 << 10;
  // Whether receivers relay data that several of them want. kWherePredictedFaster has an effect
  // only if all ranks declare the speeds of their NICs and are on several hosts.
  Relays relays = Relays::kNever;
};

// Makes a plan in which exactly one route writes each byte of every receiver's shards. Pure: reads
// only its arguments. The same manifests in the same order give the same plan, byte for byte, on
// every host. The manifests must have passed CheckManifest(); their index is the rank.
//
// kInvalidArgument, with the tensor, the receiver and both ranges: no sender holds a tensor; the
// senders hold it only in part, or with different shapes; its format cannot be made from theirs; a
// receiver's part has no neighbouring elements; a quantised part comes without its scales, or
// belongs to a block that the senders hold only in part; CheckOrder() fails; there are more than
// kMostRanks on one side.
absl::StatusOr<Plan> MakePlan(absl::Span<const Manifest* const> senders,
                              absl::Span<const Manifest* const> receivers,
                              const PlanOptions& options = {});

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_PLANNER_H_
