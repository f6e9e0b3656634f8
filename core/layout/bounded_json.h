// SPDX-License-Identifier: Apache-2.0

// Parses JSON from files that nobody vouches for.
#ifndef WAYBILL_CORE_LAYOUT_BOUNDED_JSON_H_
#define WAYBILL_CORE_LAYOUT_BOUNDED_JSON_H_

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace waybill {

// Printing, copying and comparing a document recurse as deep as its brackets are nested.
inline constexpr int kMaxJsonDepth = 64;

// Parses `text`. `look`, if set, sees each event of the parser with its depth.
//
// kInvalidArgument: the text is not JSON, or its brackets are nested deeper than kMaxJsonDepth.
absl::StatusOr<nlohmann::json> ParseBoundedJson(
    absl::string_view text, const std::function<void(int depth, nlohmann::json::parse_event_t event,
                                                     const nlohmann::json& value)>& look = nullptr);

// Describes a value for an error message in at most about 64 characters of ASCII: "a list" or
// "an object" for a container, the value itself otherwise.
std::string ShortText(const nlohmann::json& value);

}  // namespace waybill

#endif  // WAYBILL_CORE_LAYOUT_BOUNDED_JSON_H_
