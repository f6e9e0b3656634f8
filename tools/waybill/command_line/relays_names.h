// SPDX-License-Identifier: Apache-2.0

// The names of Relays in options and descriptions.
#ifndef WAYBILL_TOOLS_WAYBILL_COMMAND_LINE_RELAYS_NAMES_H_
#define WAYBILL_TOOLS_WAYBILL_COMMAND_LINE_RELAYS_NAMES_H_

#include <string>
#include <utility>
#include <vector>

#include "core/plan/assignment.h"

namespace waybill {

inline std::vector<std::pair<std::string, Relays>> RelaysByName() {
  return {{"auto", Relays::kWherePredictedFaster},
          {"never", Relays::kNever},
          {"always", Relays::kAlways}};
}

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_COMMAND_LINE_RELAYS_NAMES_H_
