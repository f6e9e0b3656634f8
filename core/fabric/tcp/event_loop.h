// What a tcp endpoint waits for: its sockets, a deadline of its own, and Wake().
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

// Who a socket's events are for. Never used again, unlike the numbers of sockets.
using Ticket = uint64_t;

class EventLoop {
 public:
  static constexpr Ticket kNobody = 0;  // Events that only end a wait.

  absl::Status Start();

  // Tells once each time that the socket becomes readable or writable, until it is closed; what it
  // is already is told too.
  absl::Status Watch(int socket, Ticket ticket);
  // Its events are for another one from now on.
  absl::Status Rewatch(int socket, Ticket ticket);

  // What has happened: how many of `events` were filled. Never blocks.
  size_t Take(absl::Span<epoll_event> events);
  // Until there is something to take, the deadline, or Wake().
  void Wait(absl::Time deadline);
  void Wake() { waker_.Wake(); }  // From any thread.
  int descriptor() const { return epoll_.get(); }

  // There is something to take at `when`, at the latest.
  void TellAt(Clock::time_point when);
  // True when the time has come that TellAt() was told; it has to be told the next one then.
  bool TakeTold();

 private:
  UniqueFd epoll_;
  Waker waker_;
  UniqueFd timer_;
  Clock::time_point told_at_ = Clock::time_point::max();
};

}  // namespace waybill::tcp

#endif  // WAYBILL_CORE_FABRIC_TCP_EVENT_LOOP_H_
