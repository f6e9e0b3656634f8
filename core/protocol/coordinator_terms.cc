// SPDX-License-Identifier: Apache-2.0

// Terms: how a coordinator brings the members of a group together, by a plan and lanes.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/deflate.h"
#include "core/base/sha256.h"
#include "core/base/status.h"
#include "core/plan/plan_codec.h"
#include "core/plan/planner.h"
#include "core/protocol/coordinator.h"
#include "core/protocol/message_codec.h"
#include "core/tensor/verbatim.h"

namespace waybill {

namespace {

// How long publishes wait for a group that catches up: a small model has moved by then, and a large
// one is not worth waiting for.
constexpr absl::Duration kLoanPatience = absl::Milliseconds(250);

absl::StatusOr<Plan> PlanOf(const std::vector<std::shared_ptr<const Manifest>>& senders,
                            const std::vector<std::shared_ptr<const Manifest>>& workers, bool lent,
                            Relays relays) {
  std::vector<const Manifest*> from, to;
  std::vector<Manifest> verbatim;
  verbatim.reserve(senders.size() + workers.size());
  const Manifest* last = nullptr;
  const auto add = [&](const std::shared_ptr<const Manifest>& manifest,
                       std::vector<const Manifest*>& side) {
    if (!lent) return side.push_back(manifest.get());
    // Replicas share their manifest here, too.
    const bool same = last != nullptr && manifest->SharesHoldingsWith(*last);
    verbatim.push_back(same ? verbatim.back() : Verbatim(*manifest));
    verbatim.back().set_host(manifest->host());
    verbatim.back().set_rack(manifest->rack());
    verbatim.back().nics() = manifest->nics();
    side.push_back(&verbatim.back());
    last = manifest.get();
  };
  for (const auto& manifest : senders) add(manifest, from);
  for (const auto& manifest : workers) add(manifest, to);
  return MakePlan(from, to, {.relays = lent ? Relays::kNever : relays});
}

}  // namespace

// Makes every rank's own table while nobody waits for this thread: they are large.
Coordinator::Planned Coordinator::EncodeTables(absl::StatusOr<Plan> plan, const Tables& earlier,
                                               const CoordinatorActions::ForEach& for_each) {
  Planned planned{.plan = std::move(plan), .tables = {}};
  if (!planned.plan.ok()) return planned;
  const Plan& of = *planned.plan;
  planned.tables.senders.resize(of.sender_count());
  planned.tables.workers.resize(of.receiver_count());
  const auto make = [](Table& table, const std::string& encoded, const std::vector<Table>& before,
                       uint32_t i) {
    table.digest = Sha256(encoded);
    const bool same = i < before.size() && before[i].digest == table.digest;
    table.bytes = same ? before[i].bytes : std::make_shared<const std::string>(Deflate(encoded));
  };
  for_each(of.sender_count() + of.receiver_count(), [&](uint32_t i) {
    if (i < of.sender_count()) {
      make(planned.tables.senders[i], EncodeRankPlan(of.SenderBundles(i), of.SenderExchange(i)),
           earlier.senders, i);
    } else {
      const uint32_t w = i - of.sender_count();
      make(planned.tables.workers[w], EncodeRankPlan(of.ReceiverBundles(w), {}), earlier.workers,
           w);
    }
  });
  return planned;
}

Coordinator::Group* Coordinator::FindTerm(const TermEnd& end, uint64_t epoch) {
  const auto term = terms_.find(epoch);
  if (term == terms_.end() || !term->second->ends.contains(end)) return nullptr;
  MarkChanged(*term->second);
  return term->second;
}

// Drops the plan. A round that is going on ends first.
void Coordinator::BeginGathering(Group& group) {
  group.phase = Phase::kGathering;
  group.lanes_deadline = absl::InfiniteFuture();
  group.plan_ticket = 0;
}

std::vector<RankId> Coordinator::SendersOf(const Group& group) {
  std::vector<RankId> senders;
  for (uint32_t s = 0; s < group.plan.holder_count(); ++s) {
    senders.push_back(group.lender.empty() ? RankId{Role::kTrainer, s}
                                           : RankId{Role::kWorker, s, group.lender});
  }
  for (uint32_t r = 0; group.plan.relays() && r < group.plan.receiver_count(); ++r) {
    senders.push_back({Role::kWorker, r, group.name});
  }
  return senders;
}

std::set<Coordinator::TermEnd> Coordinator::EndsOf(const Group& group) {
  std::set<TermEnd> ends;
  for (const Member* member : MembersOf(group)) {
    ends.insert({member->id});
    if (group.plan.relays() && !group.IsSender(member->id)) {
      ends.insert({member->id, /*relays=*/true});
    }
  }
  return ends;
}

absl::Time Coordinator::TermTime(const Group& group) const {
  const World& trainers = members_.trainers();
  if (!group.workers.whole() || trainers.size == 0 || !trainers.all_have_manifests()) {
    return absl::InfiniteFuture();
  }
  if (!any_trainer_absent()) return group.retry_at;
  if (!group.holes.ok()) return absl::InfiniteFuture();
  return std::max(group.retry_at, trainers_settled_at_);
}

void Coordinator::TryBeginTerm(Group& group, absl::Time now) {
  if (group.phase != Phase::kGathering) return;
  if (group.rest && now >= group.retry_at) return BeginRestTerm(group);
  if (group.round != nullptr) return;
  EndLoan(group);
  if (now < group.retry_at) return;
  group.lender = FindLender(group);
  if (!group.lender.empty()) group.loan_patience = now + kLoanPatience;
  if (group.lender.empty() && now < TermTime(group)) return;
  group.phase = Phase::kPlanning;
  group.nics_changed = false;
  const bool lent = !group.lender.empty();
  group.plan_ticket = ++last_plan_ticket_;
  actions_->Compute([this, name = group.name, ticket = group.plan_ticket, lent,
                     relays = options_.relays,
                     senders = lent ? ManifestsOf(groups_.at(group.lender).workers)
                                    : ManifestsOf(members_.trainers()),
                     workers = ManifestsOf(group.workers),
                     tables = group.tables](const CoordinatorActions::ForEach& for_each) {
    auto planned = std::make_shared<Planned>(
        EncodeTables(PlanOf(senders, workers, lent, relays), tables, for_each));
    return [this, name, ticket, planned](absl::Time later) {
      OnPlanned(name, ticket, std::move(*planned), later);
    };
  });
}

void Coordinator::OnPlanned(const std::string& name, uint64_t ticket, Planned planned,
                            absl::Time now) {
  Group* const planned_for = FindGroup(name);
  if (planned_for == nullptr || ticket != planned_for->plan_ticket || !halted_.ok()) return;
  Group& group = *planned_for;
  absl::StatusOr<Plan>& plan = planned.plan;
  if (!group.lender.empty()) {
    ++group.loans_tried[group.lender];
    Group* const lender = FindGroup(group.lender);
    group.lent_version = lender == nullptr ? 0 : VersionToLend(*lender);
    if (group.lent_version == 0) plan = absl::AbortedError("it shows several versions");
  }
  if (!plan.ok()) {
    if (group.rest) {
      group.round->OnNoRest(absl::Status(
          plan.status().code(),
          absl::StrCat(plan.status().message(), group.rest->holders.size() == AllTrainers().size()
                                                    ? ""
                                                    : " (as far as they have not changed their "
                                                      "tensors since they sent them, which they do "
                                                      "not while they hold the version)")));
    } else if (!group.lender.empty()) {
      GiveUpLoan(group, plan.status());
    } else if (any_trainer_absent()) {
      group.holes = plan.status();
      BeginGathering(group);
    } else {
      RefuseTerm(group, plan.status(), now);
    }
    return Advance(now);
  }
  group.plan = *std::move(plan);
  group.senders = SendersOf(group);
  terms_.erase(group.epoch);
  group.epoch = ++last_epoch_;
  terms_[group.epoch] = &group;
  group.offers.clear();
  group.connected.clear();
  if (!group.lender.empty()) group.lanes.clear();  // The numbers are those of other senders now.
  ResolveDoubts(group, /*everybody_is_here=*/true);
  group.phase = Phase::kOffering;
  group.lanes_deadline = now + options_.lanes_timeout;
  group.ends = EndsOf(group);
  for (const TermEnd& end : group.ends) {
    if (!group.plan.relays()) members_.Find(end.id)->lanes.erase({group.name, true});
    const std::vector<Table>& tables =
        group.IsSender(end) ? planned.tables.senders : planned.tables.workers;
    SendPlan(group, end, *tables[group.NumberOf(end)].bytes);
  }
  if (group.lender.empty() && !group.rest) group.tables = std::move(planned.tables);
  Advance(now);
}

// A newcomer that does not fit is no reason to lose the others: the group's come first, then the
// trainers, if no other group needs them. Without any newcomer the group does not fit.
void Coordinator::RefuseTerm(Group& group, const absl::Status& status, absl::Time now) {
  const bool another = std::any_of(groups_.begin(), groups_.end(), [&](const auto& other) {
    return other.first != group.name && !IsMissingRanks(other.second);
  });
  std::vector<ConnectionId> newcomers, workers;
  for (const Member* member : MembersOf(group)) {
    const bool worker = member->id.role == Role::kWorker;
    if (worker) workers.push_back(member->connection);
    if (!member->established && (worker || !another)) newcomers.push_back(member->connection);
  }
  for (const ConnectionId connection : newcomers.empty() ? workers : newcomers) {
    DismissMember(connection, status, now);
  }
}

void Coordinator::SendPlan(const Group& group, const TermEnd& end, const std::string& table) {
  const bool sender = group.IsSender(end);
  const uint32_t number = group.NumberOf(end);
  proto::ControllerMessage message;
  proto::Plan* plan = message.mutable_plan();
  plan->set_group(group.name);
  plan->set_epoch(group.epoch);
  plan->set_plan_hash(group.plan.hash());
  plan->set_lender(group.lender);
  plan->set_lent_version(group.lent_version);
  plan->set_relay(end.relays);
  plan->set_manifest_hash(members_.Find(end.id)->manifest_hash);
  plan->set_routes(table);
  std::set<RankPair> pairs;
  const uint32_t peers = sender ? group.plan.receiver_count() : group.plan.sender_count();
  for (uint32_t peer = 0; peer < peers; ++peer) {
    const RankPair pair = sender ? RankPair{number, peer} : RankPair{peer, number};
    if (group.plan.route_count(pair.sender, pair.receiver) > 0) pairs.insert(pair);
  }
  for (const RankPair& pair : group.lanes) {
    if ((sender ? pair.sender : pair.receiver) == number) pairs.insert(pair);
  }
  for (const RankPair& pair : pairs) {
    const RankId receiver = {Role::kWorker, pair.receiver, group.name};
    EncodeLanes({.peer = sender ? pair.receiver : pair.sender,
                 .id = sender ? receiver : group.senders[pair.sender],
                 .lanes = members_.MakeLanes(group.senders[pair.sender], receiver),
                 .kept = group.lanes.contains(pair),
                 .first_ledger_entry = group.plan.first_ledger_entry(pair.sender, pair.receiver)},
                plan->add_lanes());
  }
  ToRank(end.id, std::move(message));
}

// Those by which workers relay are opened again in each term.
void Coordinator::NoteLanes(Group& group) {
  if (!group.lender.empty() || group.nics_changed) return;  // These end with the term.
  for (uint32_t t = 0; t < group.plan.holder_count(); ++t) {
    for (uint32_t w = 0; w < group.plan.receiver_count(); ++w) {
      if (group.plan.route_count(t, w) > 0) group.lanes.insert({t, w});
    }
  }
}

void Coordinator::Group::ForgetLanesOf(const RankId& id) {
  if (id.role == Role::kWorker && id.group != name) return;
  std::erase_if(lanes, [&](const RankPair& pair) {
    return (id.role == Role::kTrainer ? pair.sender : pair.receiver) == id.rank;
  });
}

void Coordinator::OnOffers(const Member& member, const proto::Offers& offers) {
  const TermEnd end = {member.id, offers.relay()};
  Group* group = FindTerm(end, offers.epoch());
  if (group == nullptr || group->phase != Phase::kOffering) return;
  group->offers[end] = offers;
  if (group->offers.size() < group->ends.size()) return;
  group->phase = Phase::kConnecting;
  SendConnect(*group);
}

// Every rank learns the lanes that end at it; senders also learn where the workers' buffers and
// their co-owners' mailboxes are.
void Coordinator::SendConnect(Group& group) {
  struct TheirLane {
    const TermEnd* end;
    const proto::Offers* offers;
    const proto::Lane* lane;
  };
  // By where they end: whether a sender is there, and its number. In the order of those who offer.
  std::map<std::pair<bool, uint32_t>, std::vector<TheirLane>> ending_at;
  for (const auto& [end, offers] : group.offers) {
    for (const proto::Lane& lane : offers.lanes()) {
      const bool at_sender = lane.co_owner() || !group.IsSender(end);
      ending_at[{at_sender, lane.peer()}].push_back({&end, &offers, &lane});
    }
  }
  for (const auto& [end, own] : group.offers) {
    proto::ControllerMessage message;
    message.mutable_connect()->set_epoch(group.epoch);
    message.mutable_connect()->set_relay(end.relays);
    const TermEnd* other = nullptr;
    bool co_owner = false;
    proto::Peer* peer = nullptr;
    for (const TheirLane& theirs : ending_at[{group.IsSender(end), group.NumberOf(end)}]) {
      if (theirs.end != other || theirs.lane->co_owner() != co_owner) {
        other = theirs.end;
        co_owner = theirs.lane->co_owner();
        peer = message.mutable_connect()->add_peers();
        peer->set_rank(group.NumberOf(*other));
        *peer->mutable_buffers() = theirs.offers->buffers();
        peer->set_co_owner(co_owner);
        if (co_owner) peer->set_mailbox(theirs.offers->mailbox());
      }
      peer->add_lane_addresses(theirs.lane->address());
    }
    ToRank(end.id, std::move(message));
  }
  group.offers.clear();
}

void Coordinator::OnConnected(Member& member, const proto::Connected& connected, absl::Time now) {
  const TermEnd end = {member.id, connected.relay()};
  Group* group = FindTerm(end, connected.epoch());
  if (group == nullptr || group->phase != Phase::kConnecting) return;
  group->connected.insert(end);
  member.lanes[{group->name, connected.relay()}] = connected;
  OnReport(member, connected.report());
  if (group->connected.size() < group->ends.size()) return;
  group->lanes_deadline = absl::InfiniteFuture();
  group->phase = group->lender.empty() && !group->rest ? Phase::kReady : Phase::kForOneRound;
  NoteLanes(*group);
  // Counted now, because a rank that was killed is known to be gone only after its lanes have died.
  group->lanes_lost += std::exchange(group->lane_lost, false) ? 1 : 0;
  proto::ControllerMessage message;
  message.mutable_established()->set_epoch(group->epoch);
  for (Member* other : MembersOf(*group)) {
    other->established = true;
    actions_->Send(other->connection, message);
    if (other->id.role != Role::kTrainer) continue;
    TellUndecided(*group, *other);
    if (!other->hears_of_groups) TellOfAllGroups(*other);
  }
  if (group->phase == Phase::kReady) SetHere(*group, true);
  if (group->rest) return ContinueRound(*group, now);
  if (!group->lender.empty()) return BeginCatchingUp(*group, group->lent_version, now);
  ReplaceLanes(*group, now);
}

void Coordinator::OnConnectFailed(Group& group, const Member& member, const absl::Status& why,
                                  absl::Time now) {
  if (group.phase != Phase::kOffering && group.phase != Phase::kConnecting) return;
  group.last_lane_trouble = While(ToString(member.id), why);
  RetryLanesLater(group, now);
  BeginGathering(group);
}

// A NIC went away or came back: the lanes are planned again between two updates.
void Coordinator::OnNics(Member& member, const proto::Nics& nics, absl::Time now) {
  if (member.manifest == nullptr) return;
  std::vector<Nic> usable;
  for (const proto::UsableNic& nic : nics.nics()) {
    usable.push_back({nic.name(), nic.rail(), nic.numa_node(), nic.bytes_per_second()});
  }
  if (usable == member.manifest->nics()) return;
  auto changed = std::make_shared<Manifest>(*member.manifest);
  changed->nics() = std::move(usable);
  members_.SetManifest(member, std::move(changed));
  for (Group* group : GroupsOf(member.id)) {
    group->nics_changed = true;
    group->ForgetLanesOf(member.id);
    ReplaceLanes(*group, now);
  }
}

void Coordinator::OnLaneFailed(const Member& member, const proto::LaneFailed& failed,
                               absl::Time now) {
  const TermEnd end = {member.id, failed.relay()};
  Group* group = FindTerm(end, failed.epoch());
  if (group == nullptr) return;
  const bool sender = group->IsSender(end);
  const uint32_t number = group->NumberOf(end);
  if (failed.co_owner() && !sender) return;
  const bool peer_is_sender = sender == failed.co_owner();
  const uint32_t peers = peer_is_sender ? group->plan.sender_count() : group->plan.receiver_count();
  if (failed.peer() >= peers) return;
  const absl::Status status = DecodeError(failed.error());
  if (!failed.co_owner()) {
    group->lanes.erase(sender ? RankPair{number, failed.peer()} : RankPair{failed.peer(), number});
  }
  if (group->phase == Phase::kReady) {
    group->lane_lost = true;
    group->last_lane_trouble = While(ToString(member.id), status);
  } else {
    OnConnectFailed(*group, member, status, now);
  }
  if (group->round == nullptr) return;
  if (failed.co_owner()) {
    group->round->OnCoOwnerLost(member.id, group->senders[failed.peer()], status);
  } else if (sender) {
    group->round->OnLaneFailed(group->senders[number], failed.peer(), status);
  } else {
    group->round->OnLaneFailed(group->senders[failed.peer()], number, status);
  }
}

// The first time at once, then at growing distances.
void Coordinator::RetryLanesLater(Group& group, absl::Time now) {
  constexpr absl::Duration kFirst = absl::Milliseconds(50);
  constexpr uint32_t kMostDoublings = 6;
  const uint32_t troubles = group.lane_troubles++;
  if (troubles > 0) group.retry_at = now + kFirst * (1 << std::min(troubles - 1, kMostDoublings));
}

// A lane between two ranks that live is dead, or NICs have changed: the group gets new lanes.
void Coordinator::ReplaceLanes(Group& group, absl::Time now) {
  if (!(group.lane_lost || group.nics_changed)) return;
  if (group.round != nullptr || group.phase != Phase::kReady) return;
  if (group.lane_lost) RetryLanesLater(group, now);
  BeginGathering(group);
}

void Coordinator::HangUpWhoIsLate(absl::Time now) {
  std::map<ConnectionId, absl::string_view> late;  // And what they have not done.
  for (const GroupNumber number : standings_.Due(now)) {
    Group& group = *numbered_.at(number);
    if (now >= group.stop_deadline) {
      for (const uint32_t rank : group.round->RelaysThatRun()) {
        const Member* relay = members_.Find(RankId{Role::kWorker, rank, group.name});
        if (relay != nullptr) late[relay->connection] = "it does not stop relaying";
      }
    }
    if (now < group.lanes_deadline) continue;
    if (!group.lender.empty()) {
      GiveUpLoan(group, absl::DeadlineExceededError("there are no lanes to it"));
      continue;
    }
    for (const TermEnd& end : group.ends) {
      const bool done = group.phase == Phase::kOffering ? group.offers.contains(end)
                                                        : group.connected.contains(end);
      if (!done) late[members_.Find(end.id)->connection] = "it makes no lanes";
    }
  }
  for (const auto& [connection, what] : late) {
    HangUp(connection, WithScope(absl::DeadlineExceededError(what), Scope::kPeer), now);
  }
}

}  // namespace waybill
