// SPDX-License-Identifier: Apache-2.0

// One end of a tcp lane: a connection, what waits to be sent on it, what is being received, and
// what the peer granted.
#ifndef WAYBILL_CORE_FABRIC_TCP_TCP_LANE_H_
#define WAYBILL_CORE_FABRIC_TCP_TCP_LANE_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "core/base/unique_fd.h"
#include "core/fabric/fabric.h"
#include "core/fabric/ring.h"
#include "core/fabric/tcp/event_loop.h"
#include "core/fabric/tcp/frames.h"
#include "core/fabric/tcp/inbox.h"
#include "core/fabric/tcp/lane_address.h"
#include "core/fabric/tcp/outbox.h"
#include "core/net/silence.h"

namespace waybill::tcp {

struct TcpLane {
  // The state of the socket. Without a socket, the lane has not begun or has ended.
  enum class Stage {
    kApart,     // No connection; the peer may come.
    kHeld,      // The peer came, and we were not yet told who it has to be.
    kDialling,  // We connect.
    kGreeting,  // We said hello.
    kConnected,
    kDead,  // `status` says why.
  };

  std::string peer;
  LaneAddress own_address;

  Stage stage = Stage::kApart;
  std::optional<LaneAddress> peer_address;  // Once ConnectLane() was told.
  Secret hello_from = {};                   // Set while the arrival is held.
  Clock::time_point deadline;               // To be connected, once told.
  net::Silence silence;                     // Watches the peer's host.
  absl::Status status;
  UniqueFd socket;
  UniqueFd probe;  // Looks whether there is anybody to wait for.

  Outbox outbox;
  Inbox inbox;
  // True if the event loop reported the socket and no call has failed with EAGAIN since.
  bool is_readable = false;
  bool is_writable = false;
  bool has_ended = false;  // The end of the stream is behind what can be read.
  absl::Status lost;       // Why nothing can be sent any more; what has come is still to be read.
  int readable_at_bytes = 1;
  bool is_queued = false;  // For its turn.

  // Posts of this end.
  Ring<uint64_t> tokens;  // The posts that are not complete, in order.
  uint64_t completed = 0;
  // Posts of the peer's.
  uint64_t landed = 0;

  std::map<uint64_t, uint64_t> granted_by_peer;  // Sizes by key.
  std::string refusal;                           // Ours, while it is being sent.
  std::array<char, kMostRefusalBytes> refusal_by_peer;
};

}  // namespace waybill::tcp

#endif  // WAYBILL_CORE_FABRIC_TCP_TCP_LANE_H_
