// SPDX-License-Identifier: Apache-2.0

// The addresses of a job's controllers, of which one leads and the others do not listen.
#ifndef WAYBILL_CORE_CONTROL_CONTROLLER_ADDRESSES_H_
#define WAYBILL_CORE_CONTROL_CONTROLLER_ADDRESSES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace waybill {

// Returns "a:7070" and "b:7070" for "a:7070,b:7070"; never nothing.
std::vector<std::string> SplitAddresses(absl::string_view text);

// Returns the address from which this host reaches the first of the controllers to which there is a
// way. The error is that of the last one.
absl::StatusOr<std::string> OwnAddressTowardsControllers(absl::string_view text);

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_CONTROLLER_ADDRESSES_H_
