// SPDX-License-Identifier: Apache-2.0

// Trades maxima with the senders that own parts of the same blocks, over lanes of its own.
#ifndef WAYBILL_CORE_ENGINE_MAXIMA_EXCHANGE_H_
#define WAYBILL_CORE_ENGINE_MAXIMA_EXCHANGE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/fabric/fabric.h"
#include "core/plan/exchange.h"
#include "core/protocol/update.h"
#include "core/stage/scale_values.h"

namespace waybill {

// The addresses of a co-owner: its end of the lane, and the mailbox where it receives messages.
struct CoOwnerAddress {
  uint32_t sender = 0;
  std::string lane_address;
  std::string mailbox;  // For Fabric::Import().
};

// Lives on the progress thread. Allocates nothing during an update.
class MaximaExchange {
 public:
  // Called with the reason when the lane to a co-owner fails.
  using FailureSink = std::function<void(uint32_t sender, absl::Status status)>;

  MaximaExchange(Fabric* fabric, FailureSink failed)
      : fabric_(*fabric), failed_(std::move(failed)) {}
  ~MaximaExchange();
  MaximaExchange(const MaximaExchange&) = delete;
  MaximaExchange& operator=(const MaximaExchange&) = delete;

  // Replaces the plan: closes the lanes of the old plan, opens those of the new one and returns
  // them. `values` has an entry for each of the exchange's tables. Both arguments must outlive the
  // plan.
  absl::StatusOr<std::vector<LaneOffer>> SetPlan(const Exchange* exchange,
                                                 std::deque<ScaleValues>* values);
  // Returns the mailbox's descriptor, with which co-owners write to it; empty without co-owners.
  const std::string& mailbox() const { return mailbox_descriptor_; }
  absl::Status Connect(absl::Span<const CoOwnerAddress> co_owners);
  // Returns whether every lane works in both directions.
  bool up() const;

  // Returns `reports` plus the reports of the lanes to co-owners.
  std::vector<LaneReport> AddTo(std::vector<LaneReport> reports) const;

  // Handles an event of one of the exchange's lanes. Returns false for other lanes.
  bool Handle(const FabricEvent& event);

  void Begin(const UpdateId& update);
  // Sends the messages that can be sent and combines the messages that have arrived. Call it once
  // this sender's own maxima are computed.
  void Step(TransferCounts& counts);
  // Returns whether every message has arrived and every message that was sent is complete.
  bool done() const { return all_come() && posts_outstanding() == 0; }
  bool all_come() const {
    return sent_ == exchange_->outgoing.size() && taken_ == incoming_count();
  }
  uint32_t posts_outstanding() const;
  // Closes the lanes that have writes outstanding.
  void StopNow();

 private:
  struct CoOwner {
    uint32_t sender = 0;
    LaneId lane = LaneId::kNone;
    std::string mailbox_address;
    RemoteRegionId mailbox = RemoteRegionId::kNone;
    bool up = false;
    bool failed = false;
    uint32_t posts_outstanding = 0;
    // The number of arrived messages that have the newest sequence. Immediates of a lane arrive in
    // order.
    uint32_t arrived_sequence = ~uint32_t{0};
    uint32_t arrived = 0;
    std::vector<uint32_t> incoming;  // The indices of this co-owner's messages, in order.
    uint32_t taken = 0;              // The number of these messages that were taken in this update.
  };

  CoOwner& Find(uint32_t sender);
  size_t incoming_count() const { return exchange_->incoming.size(); }
  void Handle(CoOwner& peer, const FabricEvent& event);
  absl::Status Grant(const CoOwner& peer);
  void Answer(CoOwner& peer);
  void Fail(CoOwner& peer, absl::Status status);
  bool CanSend(const MaximaMessage& message) const;
  bool Send(uint32_t index, TransferCounts& counts);
  void TakeArrived(CoOwner& peer);
  bool Take(const MaximaMessage& message);
  void CombineHere(const MaximaMessage& message);
  void Release();

  Fabric& fabric_;
  const FailureSink failed_;
  const Exchange* exchange_ = &kNothing;
  std::deque<ScaleValues>* values_ = nullptr;
  std::vector<CoOwner> peers_;
  Region mailbox_;
  std::string mailbox_descriptor_;
  Region outbox_;
  std::vector<uint64_t> outbox_offsets_;
  std::vector<float> scratch_;
  UpdateId update_;
  size_t sent_ = 0;   // The number of outgoing messages that are sent. They go out in order.
  size_t taken_ = 0;  // The number of incoming messages that are taken.

  static const Exchange kNothing;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_MAXIMA_EXCHANGE_H_
