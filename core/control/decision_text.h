// SPDX-License-Identifier: Apache-2.0

// Decisions as lines of text, as a file and etcd keep them.
#ifndef WAYBILL_CORE_CONTROL_DECISION_TEXT_H_
#define WAYBILL_CORE_CONTROL_DECISION_TEXT_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/protocol/decision.h"

namespace waybill {

// Returns "<checksum> <epoch> <sequence> <version> <group>\n".
std::string EncodeDecision(const Decision& decision);

// Returns the decision of a line without its end, or nullopt if the line is not one.
std::optional<Decision> DecodeDecision(absl::string_view line);

// Returns the last kDecisionsKept decisions of each group, in the order in which they were given.
std::vector<Decision> KeepLast(const std::vector<Decision>& all);

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_DECISION_TEXT_H_
