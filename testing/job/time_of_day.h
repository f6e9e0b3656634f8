// SPDX-License-Identifier: Apache-2.0

// A time of day that a test can step. It stands for the system's clock_gettime() in programs that
// link it; other clocks go on.
#ifndef WAYBILL_TESTING_JOB_TIME_OF_DAY_H_
#define WAYBILL_TESTING_JOB_TIME_OF_DAY_H_

#include "absl/time/time.h"

namespace waybill {

// Steps the time of day forward, or back. Thread-safe.
void StepTimeOfDay(absl::Duration step);

}  // namespace waybill

#endif  // WAYBILL_TESTING_JOB_TIME_OF_DAY_H_
