// SPDX-License-Identifier: Apache-2.0

// The sockets of an endpoint that are no lane's: the one it listens on, those who have connected
// and have not said to which lane they want, and those that a lane has left while the peer still
// reads.
#ifndef WAYBILL_CORE_FABRIC_TCP_DOORWAY_H_
#define WAYBILL_CORE_FABRIC_TCP_DOORWAY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/unique_fd.h"
#include "core/fabric/tcp/event_loop.h"
#include "core/fabric/tcp/frames.h"
#include "core/net/tcp_socket.h"

namespace waybill::tcp {

// Somebody who said what a lane's other end says. Whether the lane exists is not looked at yet.
struct Arrival {
  UniqueFd socket;
  Hello hello;
};

struct DoorwayCounts {
  uint64_t accepted = 0;
  uint64_t refused = 0;  // Said something else, or wanted no lane of ours.
  uint64_t silent = 0;   // Went, were crowded out or ran out of time before they had said anything.
};

class Doorway {
 public:
  // The listener's ticket. Lanes have smaller tickets, and accepted connections larger ones.
  static constexpr Ticket kListener = Ticket{1} << 32;

  Doorway(EventLoop& loop, absl::Duration patience, size_t most_guests)
      : loop_(loop), patience_(patience), most_guests_(most_guests) {}

  absl::Status Open(const net::HostPort& address);
  const net::HostPort& address() const { return listener_.address; }

  // Handles an event of a ticket above kListener. Returns an arrival if a whole hello has come.
  std::optional<Arrival> Look(Ticket ticket);
  // Accepts connections. Returns false if more may be waiting.
  bool Accept();

  // Keeps the socket until the peer has closed it too, so that it can read what it was sent.
  void SeeOff(UniqueFd socket);

  // Closes those whose time is over.
  void Expire(Clock::time_point now);

  // An arrival that wanted no lane of ours.
  void CountRefused() { ++counts.refused; }

  DoorwayCounts counts;

 private:
  struct Guest {
    UniqueFd socket;
    Clock::time_point deadline;
    bool is_leaving = false;
    size_t received_bytes = 0;
    std::array<std::byte, sizeof(Hello)> hello;
  };

  Clock::time_point Deadline();

  EventLoop& loop_;
  const absl::Duration patience_;
  const size_t most_guests_;
  net::Listener listener_;
  Ticket last_ticket_ = kListener;
  std::map<Ticket, Guest> guests_;  // The oldest one first.
};

}  // namespace waybill::tcp

#endif  // WAYBILL_CORE_FABRIC_TCP_DOORWAY_H_
