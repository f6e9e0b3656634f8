// SPDX-License-Identifier: Apache-2.0

// Encodes and decodes the part of the plan that one rank gets.
#ifndef WAYBILL_CORE_PLAN_PLAN_CODEC_H_
#define WAYBILL_CORE_PLAN_PLAN_CODEC_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/plan/bundled_routes.h"
#include "core/plan/exchange.h"
#include "core/plan/route_table.h"

namespace waybill {

struct RankPlan {
  RouteTable routes;
  Exchange exchange;  // Empty for a receiver.

  bool operator==(const RankPlan&) const = default;
};

// Canonical: equal plans are equal bytes.
std::string EncodeRankPlan(const BundledRoutes& routes, const Exchange& exchange);

// kInvalidArgument: not such an encoding, of another version, or with parts that do not fit
// together.
absl::StatusOr<RankPlan> DecodeRankPlan(absl::string_view bytes);

// Checks that the parts of a sender's plan fit together, which the engine relies on. Do not call
// it for a receiver: its routes name the tables of their senders, which it does not have.
//
// kInvalidArgument: they do not fit together.
absl::Status CheckSenderPlan(const RankPlan& plan);

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_PLAN_CODEC_H_
