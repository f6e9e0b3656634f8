// SPDX-License-Identifier: Apache-2.0

// A virtual clock: what happens, in the order of its time.
#ifndef WAYBILL_CORE_SIMULATE_VIRTUAL_TIME_H_
#define WAYBILL_CORE_SIMULATE_VIRTUAL_TIME_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace waybill::simulate {

class VirtualTime {
 public:
  using Event = std::function<void()>;

  int64_t now_ns() const { return now_ns_; }
  double now() const { return static_cast<double>(now_ns_) * 1e-9; }
  // The same for the protocol.
  absl::Time time() const { return absl::UnixEpoch() + absl::Nanoseconds(now_ns_); }

  // Runs `event` at that time, or at once if it is past. Events of one time run in the order in
  // which they were added.
  void At(int64_t ns, Event event) {
    events_.push({std::max(ns, now_ns_), ++count_, std::move(event)});
  }
  void After(double seconds, Event event) { At(now_ns_ + Nanoseconds(seconds), std::move(event)); }

  // Runs the next event; false: there is none.
  bool Step() {
    if (events_.empty()) return false;
    // The queue gives no right to move out of it; the entry is gone before anybody looks again.
    Entry entry = std::move(const_cast<Entry&>(events_.top()));
    events_.pop();
    now_ns_ = entry.at_ns;
    entry.event();
    return true;
  }
  // The number of events so far.
  uint64_t count() const { return count_; }

  static int64_t Nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

 private:
  struct Entry {
    int64_t at_ns;
    uint64_t order;
    Event event;

    bool operator<(const Entry& other) const {
      return std::pair(at_ns, order) > std::pair(other.at_ns, other.order);
    }
  };

  std::priority_queue<Entry> events_;
  int64_t now_ns_ = 0;
  uint64_t count_ = 0;
};

}  // namespace waybill::simulate

#endif  // WAYBILL_CORE_SIMULATE_VIRTUAL_TIME_H_
