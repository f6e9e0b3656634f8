// A routing table as bytes.
//
// The encoding is our own and canonical: a header, then a fixed record, axes and bounds for each
// route, little-endian. So equal tables are equal bytes, on every host.
#ifndef WAYBILL_CORE_PLAN_ROUTE_CODEC_H_
#define WAYBILL_CORE_PLAN_ROUTE_CODEC_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/plan/route_table.h"

namespace waybill {

std::string EncodeRoutes(const RouteTable& routes);

// kInvalidArgument: not such an encoding, or of another version.
absl::StatusOr<RouteTable> DecodeRoutes(absl::string_view bytes);

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_ROUTE_CODEC_H_
