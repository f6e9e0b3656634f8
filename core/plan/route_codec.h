// SPDX-License-Identifier: Apache-2.0

// A routing table as bytes, route by route.
//
// The encoding is our own and canonical: a header, then one column after the other, each number as
// its difference from the one before. So equal tables are equal bytes, on every host, and regular
// tables compress well.
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

// kInvalidArgument: the bytes are not such an encoding, are of another version, or describe a route
// that no plan has: one whose sizes or offsets do not fit into 63 bits, whose axes do not walk as
// many elements as its box holds, or whose transform does not fit the sizes of its elements.
//
// Whether the routes fit the memory of a rank is for CheckRankPlan().
absl::StatusOr<RouteTable> DecodeRoutes(absl::string_view bytes);

// Checks what DecodeRoutes() says of routes.
absl::Status CheckRoutes(const RouteTable& routes);

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_ROUTE_CODEC_H_
