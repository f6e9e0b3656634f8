// SPDX-License-Identifier: Apache-2.0

// Spreads what a rank sends over time, so that it leaves room on its NICs for others.
#ifndef WAYBILL_CORE_FABRIC_CHOICE_PACE_H_
#define WAYBILL_CORE_FABRIC_CHOICE_PACE_H_

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace waybill::choice {

// In any time T it sends at most rate * (T + kCredit) bytes, and one post more. Not thread-safe.
class Pace {
 public:
  // The most lateness that later posts make up for. On a busy host the progress thread wakes some
  // milliseconds late, and each post would lose this time. A pause in which no post waited is not
  // made up for.
  static constexpr absl::Duration kCredit = absl::Milliseconds(20);

  // 0: without limit.
  explicit Pace(uint64_t bytes_per_second) : rate_(static_cast<double>(bytes_per_second)) {}

  bool is_limited() const { return rate_ > 0; }
  // Returns when the next post may begin.
  absl::Time next() const { return next_; }
  // Returns true if the next post may begin now. Otherwise notes that it waits.
  bool Allows(absl::Time now) {
    waits_ = waits_ || now < next_;
    return now >= next_;
  }
  // Counts a post that has begun.
  void Count(uint64_t bytes, absl::Time now) {
    if (!is_limited()) return;
    const absl::Time begin = std::max(next_, waits_ ? now - kCredit : now);
    next_ = begin + absl::Seconds(static_cast<double>(bytes) / rate_);
    waits_ = false;
  }

 private:
  const double rate_;  // In bytes a second.
  absl::Time next_ = absl::InfinitePast();
  bool waits_ = false;
};

}  // namespace waybill::choice

#endif  // WAYBILL_CORE_FABRIC_CHOICE_PACE_H_
