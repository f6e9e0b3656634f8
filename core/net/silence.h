// SPDX-License-Identifier: Apache-2.0

// How long the host at the other end of a connection has owed an answer. Not left to
// TCP_USER_TIMEOUT, to which a peer that reads nothing for a while is as good as dead; while
// nothing is under way SetKeepAlive() looks after the connection.
#ifndef WAYBILL_CORE_NET_SILENCE_H_
#define WAYBILL_CORE_NET_SILENCE_H_

#include <algorithm>
#include <chrono>
#include <optional>

#include "core/net/tcp_socket.h"

namespace waybill::net {

// Watches one connection. Call it now and then.
class Silence {
 public:
  using Clock = std::chrono::steady_clock;

  // Whether it has lasted for longer than `most`.
  bool IsBeyond(Clock::duration most, int socket, Clock::time_point now) {
    const Answers answers = AnswersOf(socket);
    if (!answers.are_owed) {
      owed_since_.reset();
      return false;
    }
    // An acknowledgement may have been owed only since the last check; then an old answer says
    // nothing.
    owed_since_ = std::max(owed_since_.value_or(now), now - answers.last_ago);
    return now - *owed_since_ >= most;
  }

 private:
  std::optional<Clock::time_point> owed_since_;
};

}  // namespace waybill::net

#endif  // WAYBILL_CORE_NET_SILENCE_H_
