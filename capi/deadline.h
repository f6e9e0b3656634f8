// SPDX-License-Identifier: Apache-2.0

// Deadlines of the C ABI, which are points of the monotonic clock.
#ifndef WAYBILL_CAPI_DEADLINE_H_
#define WAYBILL_CAPI_DEADLINE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "capi/waybill.h"

namespace waybill::capi {

// Returns the time until a deadline, or `by_default` if it is 0. kDeadlineExceeded: it has passed.
inline absl::StatusOr<absl::Duration> TimeLeft(int64_t deadline_ns, absl::Duration by_default) {
  if (deadline_ns == 0) return by_default;
  const absl::Duration left = absl::Nanoseconds(deadline_ns - waybill_now_ns());
  if (left > absl::ZeroDuration()) return left;
  return absl::DeadlineExceededError(
      absl::StrCat("the deadline was ", absl::FormatDuration(-left), " ago"));
}

}  // namespace waybill::capi

#endif  // WAYBILL_CAPI_DEADLINE_H_
