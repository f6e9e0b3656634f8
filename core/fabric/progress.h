// SPDX-License-Identifier: Apache-2.0

// Shared parts of the fabrics' Poll() and Wait().
#ifndef WAYBILL_CORE_FABRIC_PROGRESS_H_
#define WAYBILL_CORE_FABRIC_PROGRESS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "core/base/steady_now.h"
#include "core/fabric/fabric.h"

namespace waybill {

// Room for as many events as one poll usually finds, so that Poll() allocates nothing.
inline constexpr size_t kUsualEvents = 1024;

// Moves the oldest of `own` to `events`, as many as Poll() may append.
template <typename Events>
void HandOut(Events& own, std::vector<FabricEvent>& events) {
  const size_t room = events.capacity() == 0              ? own.size()
                      : events.size() < events.capacity() ? events.capacity() - events.size()
                                                          : 0;
  const auto end = own.begin() + static_cast<std::ptrdiff_t>(std::min(room, own.size()));
  events.insert(events.end(), own.begin(), end);
  own.erase(own.begin(), end);
}

// Returns a timeout for poll() and epoll_wait() that never ends before the deadline, and is an hour
// at most.
inline int MillisecondsUntil(absl::Time deadline) {
  const int64_t left = absl::ToInt64Milliseconds(
      std::min(absl::Ceil(deadline - SteadyNow(), absl::Milliseconds(1)), absl::Hours(1)));
  return static_cast<int>(std::max<int64_t>(left, 0));
}

}  // namespace waybill

#endif  // WAYBILL_CORE_FABRIC_PROGRESS_H_
