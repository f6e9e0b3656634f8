// SPDX-License-Identifier: Apache-2.0

// A clock for the deadlines of lanes.
#ifndef WAYBILL_CORE_FABRIC_POLLED_CLOCK_H_
#define WAYBILL_CORE_FABRIC_POLLED_CLOCK_H_

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/time/time.h"
#include "core/base/steady_now.h"

namespace waybill {

// Counts the time in which a thread polled. A thread that registers memory or opens lanes hears of
// nothing meanwhile, so that what it waits for would be given up unheard: of the time between two
// looks, only kMostBetweenLooks count. Callers wait for less between two polls.
class PolledClock {
 public:
  static constexpr absl::Duration kMostBetweenLooks = absl::Milliseconds(200);

  // `now` is SteadyNow, or a test's time.
  explicit PolledClock(std::function<absl::Time()> now)
      : now_(std::move(now)), last_(now_()), time_(last_) {}

  // Call it in each poll.
  absl::Time Look() {
    const absl::Time now = now_();
    time_ += std::clamp(now - std::exchange(last_, now), absl::ZeroDuration(), kMostBetweenLooks);
    return time_;
  }

 private:
  const std::function<absl::Time()> now_;
  absl::Time last_;
  absl::Time time_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_FABRIC_POLLED_CLOCK_H_
