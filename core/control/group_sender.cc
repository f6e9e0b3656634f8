// SPDX-License-Identifier: Apache-2.0

#include "core/control/group_sender.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/protocol/message_codec.h"

namespace waybill {

absl::StatusOr<proto::Offers> GroupSender::SetPlan(TermPlan plan, std::vector<MemorySpan> sources) {
  WAYBILL_ASSIGN_OR_RETURN(
      const SenderOffers made,
      engine_->SetPlan(std::move(plan.routes), std::move(sources), plan.lanes));
  proto::Offers offers;
  const auto add = [&](const LaneOffer& lane, bool co_owner) {
    proto::Lane* out = offers.add_lanes();
    out->set_peer(lane.peer);
    out->set_address(lane.address);
    out->set_co_owner(co_owner);
  };
  for (const LaneOffer& lane : made.lanes) add(lane, /*co_owner=*/false);
  for (const LaneOffer& lane : made.co_owners) add(lane, /*co_owner=*/true);
  offers.set_mailbox(made.mailbox);
  return offers;
}

absl::Status GroupSender::Connect(const proto::Connect& connect) {
  std::vector<ReceiverAddress> receivers;
  std::vector<CoOwnerAddress> co_owners;
  for (const proto::Peer& peer : connect.peers()) {
    if (peer.co_owner()) {
      if (peer.lane_addresses().size() != 1) {
        return absl::InvalidArgumentError(absl::StrCat("trainer ", peer.rank(), " has ",
                                                       peer.lane_addresses().size(),
                                                       " lanes for maxima, the plan has 1"));
      }
      co_owners.push_back({peer.rank(), peer.lane_addresses(0), peer.mailbox()});
      continue;
    }
    ReceiverAddress& receiver = receivers.emplace_back();
    receiver.receiver = peer.rank();
    receiver.lane_addresses.assign(peer.lane_addresses().begin(), peer.lane_addresses().end());
    for (const proto::Buffer& buffer : peer.buffers()) {
      receiver.buffers.push_back(DecodeBuffer(buffer));
    }
  }
  return engine_->Connect(receivers, co_owners);
}

absl::Status GroupSender::SetBufferAddress(uint32_t worker, uint32_t buffer_index,
                                           const proto::Buffer& buffer) {
  return engine_->SetBufferAddress(worker, buffer_index, DecodeBuffer(buffer));
}

absl::Status GroupSender::Start(const UpdateId& update, const proto::Start& start,
                                NonFiniteRule rule, SourcesAre sources,
                                const VersionsInMemory& versions) {
  std::vector<StartTarget> targets;
  for (const proto::Target& target : start.targets()) {
    targets.push_back({.receiver = target.worker(),
                       .buffer_index = target.buffer_index(),
                       .generation = target.generation(),
                       .base = target.base()});
  }
  return engine_->Start(update, start.digests_off() ? Digests::kOff : Digests::kOn, targets, rule,
                        sources, versions);
}

}  // namespace waybill
