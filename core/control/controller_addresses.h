// SPDX-License-Identifier: Apache-2.0

// The addresses of a job's controllers: one controller leads, and the others are standbys.
#ifndef WAYBILL_CORE_CONTROL_CONTROLLER_ADDRESSES_H_
#define WAYBILL_CORE_CONTROL_CONTROLLER_ADDRESSES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace waybill {

// Returns "a:7070" and "b:7070" for "a:7070,b:7070". The result is never empty.
std::vector<std::string> SplitAddresses(absl::string_view text);

// Returns this host's own address towards the first controller that has a route from here. If there
// is none, returns the error for the last controller.
absl::StatusOr<std::string> OwnAddressTowardsControllers(absl::string_view text);

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_CONTROLLER_ADDRESSES_H_
