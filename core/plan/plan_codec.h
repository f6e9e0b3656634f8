// What one rank is told of the plan, as bytes, and the plan's hash over all of them.
#ifndef WAYBILL_CORE_PLAN_PLAN_CODEC_H_
#define WAYBILL_CORE_PLAN_PLAN_CODEC_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/plan/exchange.h"
#include "core/plan/plan.h"
#include "core/plan/route_table.h"

namespace waybill {

struct RankPlan {
  RouteTable routes;
  Exchange exchange;  // Of a trainer.

  bool operator==(const RankPlan&) const = default;
};

// Canonical: equal plans are equal bytes.
std::string EncodeRankPlan(const RouteTable& routes, const Exchange& exchange);

// kInvalidArgument: not such an encoding, of another version, or with parts that do not fit
// together.
absl::StatusOr<RankPlan> DecodeRankPlan(absl::string_view bytes);

// What an engine takes for granted of a trainer's plan: that its parts fit together. A worker's
// routes name the tables of their trainers, which it does not have. kInvalidArgument: they do not.
absl::Status CheckTrainerPlan(const RankPlan& plan);

// Over all trainers' encodings, in order of rank.
uint64_t HashPlan(const Plan& plan);

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_PLAN_CODEC_H_
