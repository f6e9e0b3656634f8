// SPDX-License-Identifier: Apache-2.0

// One end of a verbs lane: its queue pair, its side channel, and what the peer granted.
#ifndef WAYBILL_CORE_FABRIC_VERBS_VERBS_LANE_H_
#define WAYBILL_CORE_FABRIC_VERBS_VERBS_LANE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/fabric/fabric.h"
#include "core/fabric/verbs/bounce_ring.h"
#include "core/fabric/verbs/completion_queues.h"
#include "core/fabric/verbs/device.h"
#include "core/fabric/verbs/lane_address.h"
#include "core/fabric/verbs/probe_memory.h"
#include "core/fabric/verbs/queue_pair.h"
#include "core/fabric/verbs/regions.h"
#include "core/fabric/verbs/send_queue.h"
#include "core/fabric/verbs/side_channel.h"
#include "core/net/silence.h"

namespace waybill::verbs {

// The settings of a lane, before the device's limits are applied. `queue_pair.sends` is set from
// `limits.depth`.
struct LaneSettings {
  SendQueueLimits limits;
  // Its receives are posted ahead: immediates that may be on the way.
  QueuePairOptions queue_pair;
  BounceLimits bounce;
};

// A region of the peer's that we may write to.
struct PeerRegion {
  uint64_t address = 0;
  uint64_t size_bytes = 0;
  uint32_t remote_key = 0;
  bool bounced = false;  // Written through the peer's ring only.
  std::string name;
};

class VerbsLane {
 public:
  // A queue pair in INIT with its receives posted: it may be promised to a peer.
  // kResourceExhausted, kUnavailable: the device gives none.
  static absl::StatusOr<std::unique_ptr<VerbsLane>> Create(Verbs* verbs, uint32_t id,
                                                           absl::string_view peer, Nic* nic,
                                                           CompletionQueues* queues,
                                                           const LaneSettings& settings,
                                                           SendCounts* counts);
  ~VerbsLane() { Quiesce(); }

  uint32_t id() const { return id_; }
  const std::string& peer() const { return peer_; }
  Nic& nic() const { return nic_; }
  SendQueue& sends() { return sends_; }
  // Null once it is quiescent.
  ibv_qp* queue_pair() const { return queue_pair_ == nullptr ? nullptr : queue_pair_->get(); }
  const CqPair* queues() const { return pair_; }

  LaneAddress Address() const;
  // Returns what makes the queue pair ready to receive and to send. Another thread may call it; the
  // lane must not be quiesced meanwhile.
  absl::StatusOr<std::function<absl::Status()>> PlanConnect(const LaneAddress& peer) const;
  std::string DescribePath() const;

  // Waits while grants are under way: they go by another connection, and nothing may overtake them.
  absl::Status Pump(bool flush) {
    return grants_under_way > 0 ? absl::OkStatus() : sends_.Pump(verbs_, queue_pair(), flush);
  }

  // Counts a receive that was used up; RefillReceives() posts as many anew. Returns false if it was
  // counted before.
  bool CountReceive(uint64_t wr_id);
  absl::Status RefillReceives();

  // Both directions are proved, and that was told.
  bool connected() const { return connected_; }
  // What came, as events for the user. The first in each direction is the probe that proves it:
  // after both kConnected is told, and only then what came before.
  bool probe_came() const { return probe_came_; }
  void Arrived(uint32_t immediate, std::vector<FabricEvent>& events);
  void Completed(uint64_t token, std::vector<FabricEvent>& events);

  // Posts the probe to where the peer says. Returns false if that makes no sense.
  bool PostProbe(const ProbeBody& to);
  // Looks at the peer's probe, of which the immediate says how many bytes it has.
  absl::Status CheckProbe(uint32_t immediate) const;

  // Describes a failed completion of this lane. Only its request, queue pair and status are valid.
  absl::Status FailureOf(const ibv_wc& done) const;

  // After this the NIC touches no memory on behalf of this lane.
  void Quiesce();

  // Returns the part of a frame that grants a region, which is registered with the device of that
  // index.
  static std::string GrantOf(const OwnRegion& region, size_t device);
  // Takes the grants from the peer's frame. Returns false if the frame is malformed.
  bool TakeGrants(absl::string_view frame);

  // --- what cannot be registered ---

  // Allocates the ring if there is none yet. kResourceExhausted: there is no memory for it.
  absl::Status MakeRing();
  // Returns the ring to announce to the peer before it bounces a write, or nullopt if it was told.
  std::optional<PeerRing> TakeNewsOfRing();
  // Takes the place of the peer's ring from its frame. Returns false if the frame is malformed, or
  // a second one.
  bool TakePeerRing(absl::string_view frame);
  // The next bounced piece has come.
  absl::Status TakePiece(Regions& regions);
  // Returns the cumulative number of delivered pieces to report to the peer, or nullopt if the peer
  // is up to date.
  std::optional<uint64_t> TakeDelivered();

  // --- the owner's ---

  bool unproved = true;            // See UsedNic::unproved.
  std::optional<ProbeSlot> probe;  // Only while it is.
  std::string rendezvous;          // The address at which the side channels meet.
  SideChannel side;
  net::Silence silence;                            // Watches the peer's host on the side channel.
  std::string pending_grants;                      // Grants that are sent with the next poll.
  uint32_t grants_under_way = 0;                   // Frames of them that the peer has not taken in.
  uint64_t last_arrival = 0;                       // UsedNic::arrived after its last immediate.
  std::optional<LaneAddress> peer_address;         // Set by ConnectLane().
  absl::Status status;                             // Not OK: dead.
  std::map<uint64_t, PeerRegion> granted_by_peer;  // By key.

 private:
  VerbsLane(Verbs* verbs, uint32_t id, absl::string_view peer, Nic* nic, CompletionQueues* queues,
            const LaneSettings& settings, SendCounts* counts)
      : verbs_(*verbs),
        id_(id),
        peer_(peer),
        nic_(*nic),
        queues_(*queues),
        settings_(settings),
        sends_(id, settings.limits, counts),
        receives_used_(settings.queue_pair.receives),
        receive_requests_(settings.queue_pair.receives) {}

  absl::Status MakeQueuePair();
  void CheckConnected(std::vector<FabricEvent>& events);
  uint32_t cq_entries() const { return settings_.queue_pair.sends + settings_.queue_pair.receives; }

  Verbs& verbs_;
  const uint32_t id_;
  const std::string peer_;
  Nic& nic_;
  CompletionQueues& queues_;
  const LaneSettings settings_;
  SendQueue sends_;
  CqPair* pair_ = nullptr;
  std::unique_ptr<QueuePair> queue_pair_;
  LaneAddress address_;  // Without the rendezvous.
  bool probe_posted_ = false;
  bool probe_done_ = false;  // Our probe came through,
  bool probe_came_ = false;  // and so did theirs.
  bool connected_ = false;
  std::vector<uint32_t> early_;  // Immediates that came before that.
  uint32_t receives_used_;
  uint32_t receives_posted_ = 0;
  uint32_t receives_taken_ = 0;  // They are used up in order.
  std::vector<ibv_recv_wr> receive_requests_;
  std::unique_ptr<BounceRing> ring_;
  bool ring_told_ = false;
  uint64_t pieces_came_ = 0;
  uint64_t pieces_told_ = 0;
};

}  // namespace waybill::verbs

#endif  // WAYBILL_CORE_FABRIC_VERBS_VERBS_LANE_H_
