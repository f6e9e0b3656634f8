// SPDX-License-Identifier: Apache-2.0

// The time for deadlines, ages and durations, which nobody sets.
#ifndef WAYBILL_CORE_BASE_STEADY_NOW_H_
#define WAYBILL_CORE_BASE_STEADY_NOW_H_

#include <chrono>

#include "absl/time/time.h"

namespace waybill {

// Returns the time of CLOCK_MONOTONIC, counted from absl::UnixEpoch(). It is the clock of the C
// ABI's deadlines and of the system's timeouts, and a step of the time of day does not move it.
absl::Time SteadyNow();

// Returns such a time for std::condition_variable::wait_until().
std::chrono::steady_clock::time_point ToSteadyTimePoint(absl::Time time);

}  // namespace waybill

#endif  // WAYBILL_CORE_BASE_STEADY_NOW_H_
