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
  if (term == terms_.end() || !term->second->term.ends().contains(end)) return nullptr;
  MarkChanged(*term->second);
  return term->second;
}

absl::Time Coordinator::TermTime(const Group& group) const {
  const World& trainers = members_.trainers();
  if (!group.workers.whole() || trainers.size == 0 || !trainers.all_have_manifests()) {
    return absl::InfiniteFuture();
  }
  if (IsTrainerClaimed()) return absl::InfiniteFuture();
  const bool settled = group.holes.ok() || trainers_settled_at_ == absl::InfiniteFuture();
  if (!any_trainer_absent() && settled) return group.term.retry_at();
  if (any_trainer_absent() && !group.holes.ok()) return absl::InfiniteFuture();
  return std::max(group.term.retry_at(), trainers_settled_at_);
}

void Coordinator::TryBeginTerm(Group& group, absl::Time now) {
  if (group.term.phase() != Phase::kGathering) return;
  if (group.rest && now >= group.term.retry_at()) return BeginRestTerm(group);
  if (group.round != nullptr) return;
  EndLoan(group);
  if (now < group.term.retry_at()) return;
  const std::string lender = FindLender(group);
  if (!lender.empty()) group.loan_patience = now + kLoanPatience;
  if (lender.empty() && now < TermTime(group)) return;
  const bool lent = !lender.empty();
  group.term.BeginPlanning(++last_plan_ticket_, lender);
  actions_->Compute(
      [this, name = group.name, ticket = last_plan_ticket_, lent, relays = options_.relays,
       senders = lent ? ManifestsOf(groups_.at(lender).workers) : ManifestsOf(members_.trainers()),
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
  if (planned_for == nullptr || !planned_for->term.AwaitsPlan(ticket) || !halted_.ok()) return;
  Group& group = *planned_for;
  absl::StatusOr<Plan>& plan = planned.plan;
  if (group.term.lent()) {
    group.attempts.OnAsked(group.term.lender());
    Group* const lender = FindGroup(group.term.lender());
    group.lent_version = lender == nullptr ? 0 : VersionToLend(*lender);
    if (group.lent_version == 0) {
      plan = absl::AbortedError("it shows several versions");
    } else {
      group.lent_composition = lender->workers.here.begin()->second->shown_composition;
    }
  }
  if (!plan.ok()) {
    // Those of another training may be taking the places of the trainers that are here.
    const bool changing =
        trainers_settled_at_ != absl::InfiniteFuture() && now < trainers_settled_at_;
    if (group.rest) {
      group.round->OnRestUnavailable(absl::Status(
          plan.status().code(),
          absl::StrCat(plan.status().message(), group.rest->holders.size() == AllTrainers().size()
                                                    ? ""
                                                    : " (as far as they have not changed their "
                                                      "tensors since they sent them, which they do "
                                                      "not while they hold the version)")));
    } else if (group.term.lent()) {
      GiveUpLoan(group, plan.status());
    } else if (any_trainer_absent() || IsTrainerClaimed() || changing) {
      group.holes = plan.status();
      group.term.Gather();
    } else {
      RefuseTerm(group, plan.status(), now);
    }
    return Advance(now);
  }
  ResolveDoubts(group, /*everybody_is_here=*/true);
  std::vector<RankId> members;
  for (Member* member : MembersOf(group)) {
    members.push_back(member->id);
    if (!plan->relays()) member->lanes.erase({group.name, true});
  }
  terms_.erase(group.term.epoch());
  terms_[++last_epoch_] = &group;
  group.term.Begin(*std::move(plan), last_epoch_, members, now + options_.lanes_timeout);
  for (const TermEnd& end : group.term.ends()) {
    const std::vector<Table>& tables =
        group.term.IsSender(end) ? planned.tables.senders : planned.tables.workers;
    SendPlan(group, end, *tables[group.term.NumberOf(end)].bytes);
  }
  if (!group.term.lent() && !group.rest) group.tables = std::move(planned.tables);
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
  proto::ControllerMessage message;
  *message.mutable_plan() =
      group.term.PlanFor(end, table, [this](const RankId& sender, const RankId& receiver) {
        return members_.MakeLanes(sender, receiver);
      });
  message.mutable_plan()->set_lent_version(group.lent_version);
  message.mutable_plan()->set_manifest_hash(members_.Find(end.id)->manifest_hash);
  ToRank(end.id, std::move(message));
}

void Coordinator::OnOffers(const Member& member, const proto::Offers& offers) {
  const TermEnd end = {member.id, offers.relay()};
  Group* group = FindTerm(end, offers.epoch());
  if (group == nullptr || !group->term.AddOffers(end, offers)) return;
  for (auto& [id, message] : group->term.Connect()) ToRank(id, std::move(message));
}

void Coordinator::OnConnected(Member& member, const proto::Connected& connected, absl::Time now) {
  const TermEnd end = {member.id, connected.relay()};
  Group* group = FindTerm(end, connected.epoch());
  if (group == nullptr || group->term.phase() != Phase::kConnecting) return;
  const bool all = group->term.AddConnected(end);
  member.lanes[{group->name, connected.relay()}] = connected;
  OnReport(member, connected.report());
  if (!all) return;
  const bool for_one_round = group->term.lent() || group->rest;
  group->term.Establish(for_one_round ? Phase::kForOneRound : Phase::kReady);
  proto::ControllerMessage message;
  message.mutable_established()->set_epoch(group->term.epoch());
  *message.mutable_established()->mutable_oldest_shown() = oldest_shown_;
  for (Member* other : MembersOf(*group)) {
    other->established = true;
    actions_->Send(other->connection, message);
    if (other->id.role != Role::kTrainer) continue;
    TellUndecided(*group, *other);
    if (!other->hears_of_groups) SendAllGroups(*other);
  }
  if (!for_one_round) SetHere(*group, true);
  if (group->rest) return ContinueRound(*group, now);
  if (group->term.lent()) {
    return BeginCatchingUp(*group, group->lent_version, group->lent_composition, now);
  }
  ReplaceLanes(*group, now);
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
    group->term.OnNicsChanged(member.id);
    ReplaceLanes(*group, now);
  }
}

void Coordinator::OnLaneFailed(const Member& member, const proto::LaneFailed& failed,
                               absl::Time now) {
  const TermEnd end = {member.id, failed.relay()};
  Group* group = FindTerm(end, failed.epoch());
  if (group == nullptr) return;
  const Term& term = group->term;
  const bool sender = term.IsSender(end);
  if (failed.co_owner() && !sender) return;
  const bool peer_is_sender = sender == failed.co_owner();
  const uint32_t peers = peer_is_sender ? term.plan().sender_count() : term.plan().receiver_count();
  if (failed.peer() >= peers) return;
  const absl::Status status = DecodeError(failed.error());
  group->term.OnLaneLost(end, failed.peer(), failed.co_owner(), status, now);
  if (group->round == nullptr) return;
  if (failed.co_owner()) {
    group->round->OnCoOwnerLost(member.id, term.senders()[failed.peer()], status);
  } else if (sender) {
    group->round->OnLaneFailed(term.senders()[term.NumberOf(end)], failed.peer(), status);
  } else {
    group->round->OnLaneFailed(term.senders()[failed.peer()], term.NumberOf(end), status);
  }
}

// A lane between two ranks that live is dead, or NICs have changed: the group gets new lanes.
void Coordinator::ReplaceLanes(Group& group, absl::Time now) {
  if (group.round == nullptr) group.term.ReplaceLanes(now);
}

void Coordinator::CloseLateMembers(absl::Time now) {
  std::map<ConnectionId, absl::string_view> late;  // And what they have not done.
  for (const GroupNumber number : standings_.Due(now)) {
    Group& group = *numbered_.at(number);
    if (now >= group.stop_deadline) {
      for (const uint32_t rank : group.round->RunningRelays()) {
        const Member* relay = members_.Find(RankId{Role::kWorker, rank, group.name});
        if (relay != nullptr) late[relay->connection] = "it does not stop relaying";
      }
    }
    if (now < group.term.lanes_deadline()) continue;
    if (group.term.lent()) {
      GiveUpLoan(group, absl::DeadlineExceededError("there are no lanes to it"));
      continue;
    }
    for (const TermEnd& end : group.term.Awaited()) {
      late[members_.Find(end.id)->connection] = "it makes no lanes";
    }
  }
  for (const auto& [connection, what] : late) {
    HangUp(connection, WithScope(absl::DeadlineExceededError(what), Scope::kPeer), now);
  }
}

}  // namespace waybill
