// SPDX-License-Identifier: Apache-2.0

// Encodes a routing table, route by route.
//
// The encoding is our own: a header, then one column after the other, each number as its difference
// from the previous one. It is canonical, so equal tables have equal bytes on every host, and
// regular tables compress well.
#ifndef WAYBILL_CORE_PLAN_ROUTE_CODEC_H_
#define WAYBILL_CORE_PLAN_ROUTE_CODEC_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/plan/route_table.h"

namespace waybill {

std::string EncodeRoutes(const RouteTable& routes);

// The most that the routes of one rank may write in an update, which bounds the number of chunks.
inline constexpr uint64_t kMaxPlanBytes = uint64_t{1} << 46;

// kInvalidArgument: the bytes are not such an encoding, are of another version, or describe an
// invalid route: its sizes or offsets do not fit into 63 bits, its axes do not walk as many
// elements as its box holds, or its transform does not fit its element sizes.
//
// CheckRankPlan() checks whether the routes fit the memory of a rank.
absl::StatusOr<RouteTable> DecodeRoutes(absl::string_view bytes);

// Checks that the routes are valid, as DecodeRoutes() does.
absl::Status CheckRoutes(const RouteTable& routes);

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_ROUTE_CODEC_H_
