// SPDX-License-Identifier: Apache-2.0

#include "testing/job/time_of_day.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace {

std::atomic<int64_t> g_stepped_seconds = 0;

}  // namespace

// The shared libraries of the program call this one, too.
extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const auto result = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  if (clock == CLOCK_REALTIME) time->tv_sec += g_stepped_seconds.load(std::memory_order_relaxed);
  return result;
}

namespace waybill {

void StepTimeOfDay(absl::Duration step) {
  g_stepped_seconds.fetch_add(absl::ToInt64Seconds(step), std::memory_order_relaxed);
}

}  // namespace waybill
