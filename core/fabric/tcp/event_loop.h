// SPDX-License-Identifier: Apache-2.0

// The event loop of a tcp endpoint: it waits for sockets, a deadline and Wake().
#ifndef WAYBILL_CORE_FABRIC_TCP_EVENT_LOOP_H_
#define WAYBILL_CORE_FABRIC_TCP_EVENT_LOOP_H_

#include <sys/epoll.h>

#include <chrono>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/base/unique_fd.h"
#include "core/fabric/waker.h"

namespace waybill::tcp {

using Clock = std::chrono::steady_clock;

// Names the receiver of a socket's events. Tickets are never reused, unlike the numbers of sockets.
using Ticket = uint64_t;

class EventLoop {
 public:
  static constexpr Ticket kNobody = 0;  // Events that only end a wait.

  absl::Status Start();

  // Reports once each time that the socket becomes readable or writable, until it is closed, and
  // also what it is already.
  absl::Status Watch(int socket, Ticket ticket);
  // Assigns the socket's events to another ticket.
  absl::Status Rewatch(int socket, Ticket ticket);

  // Takes what has happened. Returns how many of `events` were filled. Never blocks.
  size_t Take(absl::Span<epoll_event> events);
  // Until there is something to take, the deadline, or Wake().
  void Wait(absl::Time deadline);
  void Wake() { waker_.Wake(); }  // [any thread]
  int descriptor() const { return epoll_.get(); }

  // Ends a wait at `when`, unless it ends earlier.
  void TellAt(Clock::time_point when);
  // Returns true once the TellAt() deadline has passed. Call TellAt() again to re-arm it.
  bool TakeTold();

 private:
  UniqueFd epoll_;
  Waker waker_;
  UniqueFd timer_;
  Clock::time_point told_at_ = Clock::time_point::max();
};

}  // namespace waybill::tcp

#endif  // WAYBILL_CORE_FABRIC_TCP_EVENT_LOOP_H_
