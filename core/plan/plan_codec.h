// SPDX-License-Identifier: Apache-2.0

// Encodes and decodes one rank's part of the plan.
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

// kInvalidArgument: the bytes are not such an encoding, are of another version, or have parts that
// do not fit together.
absl::StatusOr<RankPlan> DecodeRankPlan(absl::string_view bytes);

// Append a box, or all that a scale table is computed from and where, as they are encoded.
void AppendBox(std::string& out, const Box& box);
void AppendTable(std::string& out, const ScaleTable& table);

// Checks that the parts of a sender's plan fit together, which the engine relies on. Do not call it
// for a receiver's plan, whose routes name scale tables of their senders that are not part of the
// plan.
//
// kInvalidArgument: the parts do not fit together.
absl::Status CheckSenderPlan(const RankPlan& plan);

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_PLAN_CODEC_H_
