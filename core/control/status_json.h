// SPDX-License-Identifier: Apache-2.0

// Encodes a controller's status as JSON, for programs. A rank's counters, stages and lanes come
// from its last report.
#ifndef WAYBILL_CORE_CONTROL_STATUS_JSON_H_
#define WAYBILL_CORE_CONTROL_STATUS_JSON_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "core/protocol/messages.pb.h"

namespace waybill {

std::string StatusToJson(const proto::StatusReply& status);

// Returns the counter `name` of a report, or 0 if the report does not have it.
uint64_t CounterOf(const proto::RankReport& report, absl::string_view name);

// Returns how many terms of the group ended because lanes had died.
uint64_t LanesLost(const proto::GroupStatus& group);

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_STATUS_JSON_H_
