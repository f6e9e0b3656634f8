// SPDX-License-Identifier: Apache-2.0

// The lanes of one tcp endpoint: how they come to be connected, whose turn it is, and how they end.
#ifndef WAYBILL_CORE_FABRIC_TCP_LANE_SET_H_
#define WAYBILL_CORE_FABRIC_TCP_LANE_SET_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/fabric/fabric.h"
#include "core/fabric/ring.h"
#include "core/fabric/tcp/doorway.h"
#include "core/fabric/tcp/event_loop.h"
#include "core/fabric/tcp/tcp_lane.h"

namespace waybill::tcp {

struct TrafficCounts {
  uint64_t sent_bytes = 0;
  uint64_t received_bytes = 0;
  uint64_t send_calls = 0;
  uint64_t receive_calls = 0;
  uint64_t setting_calls = 0;  // Calls that set when to wake.
  uint64_t connected_lanes = 0;
  uint64_t failed_lanes = 0;
  uint64_t refused_writes = 0;
};

struct LaneSetOptions {
  net::HostPort listener;
  absl::Duration connect_timeout;
  int dead_peer_seconds = 1;
  absl::Duration stranger_timeout;
  size_t most_strangers = 0;
};

class LaneSet {
 public:
  explicit LaneSet(const LaneSetOptions& options)
      : options_(options), doorway_(loop_, options.stranger_timeout, options.most_strangers) {}

  absl::Status Start();

  absl::StatusOr<LaneId> Open(absl::string_view peer);
  absl::Status Connect(LaneId id, absl::string_view peer_address);
  absl::Status Close(LaneId id);

  // kNotFound: no such lane.
  absl::StatusOr<TcpLane*> Find(LaneId id);
  absl::StatusOr<const TcpLane*> Find(LaneId id) const;
  // Why it failed, or kFailedPrecondition: it is not connected.
  absl::StatusOr<TcpLane*> FindConnected(LaneId id);
  std::map<LaneId, TcpLane>& all() { return lanes_; }

  // Call this when the other end is there.
  void Connected(LaneId id, TcpLane& lane);
  // Kills the lane with `status` and queues its kFailed event. The lane stays until Close().
  void Fail(LaneId id, TcpLane& lane, absl::Status status);
  // Ends it too, and tells the peer why.
  void Refuse(LaneId id, TcpLane& lane, absl::Status status);

  // Sends what the socket takes, within a turn's bytes. What is left is sent in turns.
  void SendSome(LaneId id, TcpLane& lane);
  // Delays the next wake in the middle of a long payload until much of it is there: each wake costs
  // about as much as copying 30 KB.
  void WakeWhenWorthIt(TcpLane& lane);
  // Queues the lane for a turn.
  void Enqueue(LaneId id, TcpLane& lane);

  // Takes the events of sockets and timers.
  void TakeEvents();
  // Returns the lane whose turn it is, or nullopt if all had theirs.
  std::optional<LaneId> TakeTurn();
  size_t turns() const { return turns_.size(); }
  bool HasWork() const { return !turns_.empty() || !events.empty() || door_is_open_; }

  EventLoop& loop() { return loop_; }
  int descriptor() const { return loop_.descriptor(); }
  const DoorwayCounts& doorway_counts() const { return doorway_.counts; }

  std::vector<FabricEvent> events;  // For Poll().
  TrafficCounts counts;

  // A lane's bytes in a turn, of each direction: enough to be worth the call, few enough that
  // others do not wait long. A post of 1 MiB in 512 writes fits, with its frames.
  static constexpr uint64_t kTurnBytes = (1 << 20) + (16 << 10);

 private:
  absl::Status Dial(LaneId id, TcpLane& lane);
  void FinishDialling(LaneId id, TcpLane& lane);
  void Probe(LaneId id, TcpLane& lane);
  void TakeProbe(LaneId id);
  void TakeArrival(Arrival arrival);
  void LookAtHeld(TcpLane& lane);
  void Welcome(LaneId id, TcpLane& lane);
  void Expire();
  void LookForSilence(LaneId id, TcpLane& lane, Clock::time_point now);

  const LaneSetOptions options_;
  EventLoop loop_;
  Doorway doorway_;
  bool door_is_open_ = false;  // Somebody may be waiting there.
  uint32_t last_lane_ = 0;
  std::map<LaneId, TcpLane> lanes_;
  Ring<LaneId> turns_;
};

}  // namespace waybill::tcp

#endif  // WAYBILL_CORE_FABRIC_TCP_LANE_SET_H_
