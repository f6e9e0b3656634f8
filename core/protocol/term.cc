// SPDX-License-Identifier: Apache-2.0

#include "core/protocol/term.h"

#include <algorithm>
#include <utility>

#include "core/base/status.h"
#include "core/protocol/message_codec.h"

namespace waybill {
namespace {

std::vector<RankId> SendersOf(const Plan& plan, const std::string& group,
                              const std::string& lender) {
  std::vector<RankId> senders;
  senders.reserve(plan.holder_count() + (plan.relays() ? plan.receiver_count() : 0));
  for (uint32_t s = 0; s < plan.holder_count(); ++s) {
    senders.push_back(lender.empty() ? RankId{Role::kTrainer, s}
                                     : RankId{Role::kWorker, s, lender});
  }
  for (uint32_t r = 0; plan.relays() && r < plan.receiver_count(); ++r) {
    senders.push_back({Role::kWorker, r, group});
  }
  return senders;
}

}  // namespace

void Term::Gather() {
  phase_ = Phase::kGathering;
  lanes_deadline_ = absl::InfiniteFuture();
  plan_ticket_ = 0;
}

void Term::BeginPlanning(uint64_t ticket, std::string lender) {
  phase_ = Phase::kPlanning;
  nics_changed_ = false;
  plan_ticket_ = ticket;
  lender_ = std::move(lender);
}

void Term::Begin(Plan plan, uint64_t epoch, const std::vector<RankId>& members,
                 absl::Time lanes_deadline) {
  plan_ = std::move(plan);
  epoch_ = epoch;
  senders_ = SendersOf(plan_, group_, lender_);
  offers_.clear();
  connected_.clear();
  if (lent()) lanes_.clear();  // The numbers are those of other senders now.
  phase_ = Phase::kOffering;
  lanes_deadline_ = lanes_deadline;
  ends_.clear();
  for (const RankId& id : members) {
    ends_.insert({id});
    if (plan_.relays() && !IsSender(id)) ends_.insert({id, /*relays=*/true});
  }
}

proto::Plan Term::PlanFor(const TermEnd& end, const std::string& table,
                          const MakeLanes& make_lanes) const {
  const bool sender = IsSender(end);
  const uint32_t number = NumberOf(end);
  proto::Plan plan;
  plan.set_group(group_);
  plan.set_epoch(epoch_);
  plan.set_plan_hash(plan_.hash());
  plan.set_lender(lender_);
  plan.set_relay(end.relays);
  plan.set_routes(table);
  std::set<RankPair> pairs;
  const uint32_t peers = sender ? plan_.receiver_count() : plan_.sender_count();
  for (uint32_t peer = 0; peer < peers; ++peer) {
    const RankPair pair = sender ? RankPair{number, peer} : RankPair{peer, number};
    if (plan_.route_count(pair.sender, pair.receiver) > 0) pairs.insert(pair);
  }
  for (const RankPair& pair : lanes_) {
    if ((sender ? pair.sender : pair.receiver) == number) pairs.insert(pair);
  }
  for (const RankPair& pair : pairs) {
    const RankId receiver = {Role::kWorker, pair.receiver, group_};
    EncodeLanes({.peer = sender ? pair.receiver : pair.sender,
                 .id = sender ? receiver : senders_[pair.sender],
                 .lanes = make_lanes(senders_[pair.sender], receiver),
                 .kept = lanes_.contains(pair),
                 .first_ledger_entry = plan_.first_ledger_entry(pair.sender, pair.receiver)},
                plan.add_lanes());
  }
  return plan;
}

bool Term::AddOffers(const TermEnd& end, const proto::Offers& offers) {
  if (phase_ != Phase::kOffering) return false;
  offers_[end] = offers;
  return offers_.size() >= ends_.size();
}

// Every rank learns the lanes that end at it; senders also learn where the receivers' buffers and
// their co-owners' mailboxes are.
Term::Messages Term::Connect() {
  phase_ = Phase::kConnecting;
  struct TheirLane {
    const TermEnd* end;
    const proto::Offers* offers;
    const proto::Lane* lane;
  };
  // By where they end: whether a sender is there, and its number. In the order of those who offer.
  std::map<std::pair<bool, uint32_t>, std::vector<TheirLane>> ending_at;
  for (const auto& [end, offers] : offers_) {
    for (const proto::Lane& lane : offers.lanes()) {
      const bool at_sender = lane.co_owner() || !IsSender(end);
      ending_at[{at_sender, lane.peer()}].push_back({&end, &offers, &lane});
    }
  }
  Messages messages;
  for (const auto& [end, own] : offers_) {
    proto::ControllerMessage message;
    message.mutable_connect()->set_epoch(epoch_);
    message.mutable_connect()->set_relay(end.relays);
    const TermEnd* other = nullptr;
    bool co_owner = false;
    proto::Peer* peer = nullptr;
    for (const TheirLane& theirs : ending_at[{IsSender(end), NumberOf(end)}]) {
      if (theirs.end != other || theirs.lane->co_owner() != co_owner) {
        other = theirs.end;
        co_owner = theirs.lane->co_owner();
        peer = message.mutable_connect()->add_peers();
        peer->set_rank(NumberOf(*other));
        *peer->mutable_buffers() = theirs.offers->buffers();
        peer->set_co_owner(co_owner);
        if (co_owner) peer->set_mailbox(theirs.offers->mailbox());
      }
      peer->add_lane_addresses(theirs.lane->address());
    }
    messages.emplace_back(end.id, std::move(message));
  }
  offers_.clear();
  return messages;
}

bool Term::AddConnected(const TermEnd& end) {
  connected_.insert(end);
  return connected_.size() >= ends_.size();
}

void Term::Establish(Phase phase) {
  phase_ = phase;
  lanes_deadline_ = absl::InfiniteFuture();
  // Counted now, because a rank that was killed is known to be gone only after its lanes have died.
  if (lane_lost_ != absl::StatusCode::kOk) {
    ++lanes_lost_[std::exchange(lane_lost_, absl::StatusCode::kOk)];
  }
  // Those of a lender, and those that other NICs are to replace, end with the term. Those by which
  // workers relay are opened again in each.
  if (lent() || nics_changed_) return;
  for (uint32_t s = 0; s < plan_.holder_count(); ++s) {
    for (uint32_t r = 0; r < plan_.receiver_count(); ++r) {
      if (plan_.route_count(s, r) > 0) lanes_.insert({s, r});
    }
  }
}

Plan Term::TakePlan() {
  senders_.clear();
  return std::exchange(plan_, Plan());
}

void Term::EndLoan() {
  std::erase_if(ends_, [&](const TermEnd& end) { return IsSender(end.id); });
  lender_.clear();
}

void Term::Remove(const RankId& id) {
  ForgetLanesOf(id);
  ends_.erase({id});
  ends_.erase({id, /*relays=*/true});
  lane_lost_ = absl::StatusCode::kOk;  // It died with the rank.
}

std::vector<TermEnd> Term::Awaited() const {
  std::vector<TermEnd> awaited;
  for (const TermEnd& end : ends_) {
    const bool there =
        phase_ == Phase::kOffering ? offers_.contains(end) : connected_.contains(end);
    if (!there) awaited.push_back(end);
  }
  return awaited;
}

// --- lanes that fail ---

void Term::OnConnectFailed(const RankId& id, const absl::Status& why, absl::Time now) {
  if (phase_ != Phase::kOffering && phase_ != Phase::kConnecting) return;
  last_trouble_ = While(ToString(id), why);
  RetryLater(now);
  Gather();
}

void Term::OnLaneLost(const TermEnd& end, uint32_t peer, bool co_owner, const absl::Status& why,
                      absl::Time now) {
  const uint32_t number = NumberOf(end);
  if (!co_owner) lanes_.erase(IsSender(end) ? RankPair{number, peer} : RankPair{peer, number});
  if (phase_ != Phase::kReady) return OnConnectFailed(end.id, why, now);
  if (lane_lost_ == absl::StatusCode::kOk) {
    lane_lost_ = why.ok() ? absl::StatusCode::kUnknown : why.code();  // It is a rank's word.
  }
  last_trouble_ = While(ToString(end.id), why);
}

void Term::OnNicsChanged(const RankId& id) {
  nics_changed_ = true;
  ForgetLanesOf(id);
}

void Term::ReplaceLanes(absl::Time now) {
  const bool lane_lost = lane_lost_ != absl::StatusCode::kOk;
  if (phase_ != Phase::kReady || !(lane_lost || nics_changed_)) return;
  if (lane_lost) RetryLater(now);
  Gather();
}

void Term::ForgetLanesOf(const RankId& id) {
  if (id.role == Role::kWorker && id.group != group_) return;
  std::erase_if(lanes_, [&](const RankPair& pair) {
    return (id.role == Role::kTrainer ? pair.sender : pair.receiver) == id.rank;
  });
}

void Term::RetryLater(absl::Time now) {
  constexpr absl::Duration kFirst = absl::Milliseconds(50);
  constexpr uint32_t kMostDoublings = 6;
  const uint32_t earlier = troubles_++;
  if (earlier > 0) retry_at_ = now + kFirst * (1 << std::min(earlier - 1, kMostDoublings));
}

}  // namespace waybill
