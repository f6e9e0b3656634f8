// SPDX-License-Identifier: Apache-2.0

// Encodes decisions as lines of text, for a file and for etcd.
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

// Decodes a line without its newline. Returns nullopt if it is not a valid decision.
std::optional<Decision> DecodeDecision(absl::string_view line);

// Returns the last kDecisionsKept decisions of each group, in their order in `all`.
std::vector<Decision> KeepLast(const std::vector<Decision>& all);

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_DECISION_TEXT_H_
