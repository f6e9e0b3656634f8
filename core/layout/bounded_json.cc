// SPDX-License-Identifier: Apache-2.0

#include "core/layout/bounded_json.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace waybill {

using nlohmann::json;

absl::StatusOr<json> ParseBoundedJson(
    absl::string_view text,
    const std::function<void(int, json::parse_event_t, const json&)>& look) {
  bool too_deep = false;
  const auto visit = [&](int depth, json::parse_event_t event, const json& value) {
    // What is inside the innermost brackets, and the start of further ones, have the same depth.
    const bool opens =
        event == json::parse_event_t::array_start || event == json::parse_event_t::object_start;
    if (opens && depth >= kMaxJsonDepth) too_deep = true;
    if (look && !too_deep) look(depth, event, value);
    return !too_deep;  // From then on the parser keeps nothing.
  };
  json document = json::parse(text.begin(), text.end(), visit, /*allow_exceptions=*/false);
  if (too_deep) {
    return absl::InvalidArgumentError(
        absl::StrCat("brackets are nested more than ", kMaxJsonDepth, " deep"));
  }
  if (document.is_discarded()) return absl::InvalidArgumentError("not JSON");
  return document;
}

std::string ShortText(const json& value) {
  constexpr size_t kMaxLength = 60;
  if (value.is_array()) return "a list";
  if (value.is_object()) return "an object";
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true);
  if (text.size() > kMaxLength) text = absl::StrCat(text.substr(0, kMaxLength), "...");
  return text;
}

}  // namespace waybill
