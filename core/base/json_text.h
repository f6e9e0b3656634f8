// SPDX-License-Identifier: Apache-2.0

// JSON of values whose texts need not be UTF-8: paths, errors of the system, names in files.
#ifndef WAYBILL_CORE_BASE_JSON_TEXT_H_
#define WAYBILL_CORE_BASE_JSON_TEXT_H_

#include <nlohmann/json.hpp>
#include <string>

namespace waybill {

// Returns the value as JSON. Bytes that are not UTF-8 become U+FFFD. `indent`: spaces for each
// level; negative: everything on one line.
inline std::string JsonText(const nlohmann::json& value, int indent = -1) {
  return value.dump(indent, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
}

}  // namespace waybill

#endif  // WAYBILL_CORE_BASE_JSON_TEXT_H_
