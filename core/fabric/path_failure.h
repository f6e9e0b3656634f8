// SPDX-License-Identifier: Apache-2.0

// Marks the failures of lanes for which the path is to blame: the network carried some packets and
// not others, or no packets any more. That a peer closed its end, or died, is none.
#ifndef WAYBILL_CORE_FABRIC_PATH_FAILURE_H_
#define WAYBILL_CORE_FABRIC_PATH_FAILURE_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/cord.h"

namespace waybill {

inline constexpr char kPathFailure[] = "waybill/path-failure";

inline absl::Status AsPathFailure(absl::Status status) {
  status.SetPayload(kPathFailure, absl::Cord());
  return status;
}

inline bool IsPathFailure(const absl::Status& status) {
  return status.GetPayload(kPathFailure).has_value();
}

}  // namespace waybill

#endif  // WAYBILL_CORE_FABRIC_PATH_FAILURE_H_
