// SPDX-License-Identifier: Apache-2.0

// Rounds: how a group gets a version that is published to it.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/protocol/coordinator.h"
#include "core/protocol/message_codec.h"

namespace waybill {
namespace {

// How long a worker may take to say that it relays nothing more of what was given up. Its lanes are
// closed by force after kQuiescenceTimeout.
constexpr absl::Duration kRelayStopTimeout = absl::Seconds(5);

}  // namespace

UpdateId Coordinator::NextUpdate(Group& group, uint64_t version, uint64_t composition) {
  group.sequence = group.sequence % kSequenceMask + 1;  // Never 0.
  return {.version = version,
          .sequence = group.sequence,
          .epoch = group.term.epoch(),
          .plan_hash = group.term.plan().hash(),
          .composition = composition};
}

RoundMembers Coordinator::MembersOfRound(const Group& group, uint64_t version) {
  RoundMembers members;
  members.senders = group.term.senders();
  for (uint32_t s = 0; s < group.term.senders().size(); ++s) {
    if (members_.Find(group.term.senders()[s]) == nullptr) members.absent.insert(s);
  }
  for (const auto& [rank, worker] : group.workers.here) {
    if (NewestVersion(*worker) < version) members.workers.insert(rank);
  }
  return members;
}

void Coordinator::BeginRound(Group& group, Publication& publication, absl::Time now) {
  RoundMembers members = MembersOfRound(group, publication.version);
  if (members.workers.empty()) {
    return GiveUpPart(publication, group.name, NotLater(publication.version));
  }
  publication.SetPart(group.name, {Part::State::kOpen});
  group.round = std::make_unique<UpdateRound>(
      NextUpdate(group, publication.version, publication.composition), std::move(members),
      publication.digests_off, publication.deadline, group.term.plan(),
      group.term.plan().quantises() ? IfLanesDie::kAbort : IfLanesDie::kPlanRest, &group);
  if (publication.waits_for_word()) group.round->HoldCommit();
  group.catching_up = false;
  group.round->Begin(/*catch_up=*/false, /*continued=*/nullptr, now);
  for (const auto& [trainer, publish] : publication.publishes) {
    group.round->OnPublish({Role::kTrainer, trainer}, publish.attempt, publish.deadline);
  }
  for (uint32_t s = group.term.plan().holder_count(); s < group.term.plan().sender_count(); ++s) {
    group.round->OnPublish(group.term.senders()[s], /*attempt=*/0, publication.deadline);
  }
}

void Coordinator::Group::TellOutcome(bool committed, const absl::Status& status) {
  coordinator.OnOutcome(*this, committed, status);
}

uint64_t Coordinator::Group::OtherVersionOf(const RankId& trainer) const {
  for (const auto& [version, publication] : coordinator.publications_.all()) {
    if (version != round->update().version && publication.publishes.contains(trainer.rank)) {
      return version;
    }
  }
  return 0;
}

void Coordinator::OnOutcome(Group& group, bool committed, const absl::Status& status) {
  // A version that is given up needs neither its missing routes nor a term that brings them.
  if (!committed && group.rest) {
    group.rest.reset();
    group.term.Gather();
  }
  if (group.catching_up) {
    if (!committed) GiveUpLoan(group, status);
    return;
  }
  Publication& publication = *publications_.Find(group.round->update().version);
  if (!committed && group.round->again()) {
    return publication.SetPart(group.name, {Part::State::kQueued});
  }
  EndPart(publication, group.name,
          {committed ? Part::State::kCommitted : Part::State::kGivenUp, status,
           committed && group.round->unchanged()});
}

void Coordinator::FinishRoundIfOver(Group& group, absl::Time now) {
  if (group.round == nullptr) return;
  // A group shows what it has caught up on when it likes: nobody waits for the outcome.
  const bool caught_up = group.catching_up && group.round->committed();
  if (!group.round->over() && !caught_up) {
    // All other states of a round have its deadline.
    const bool stops = group.stop_deadline == absl::InfiniteFuture() && group.round->aborted();
    if (stops) group.stop_deadline = now + kRelayStopTimeout;
    return;
  }
  group.stop_deadline = absl::InfiniteFuture();
  if (group.round->committed()) {
    group.term.OnCommitted();
    group.attempts.ForgetLenders();
  }
  if (caught_up) group.attempts.OnCaughtUp();
  group.round.reset();
  if (group.term.phase() == Phase::kForOneRound) group.term.Gather();
  ResolveDoubts(group, /*everybody_is_here=*/false);
}

// A renewed buffer is told to every sender that writes to it, before any START that names it, and
// also if the update is over: a trainer that is not started in it needs the address in a later one.
void Coordinator::TellRenewal(const Group& group, const Member& member, const proto::Ready& ready) {
  if (!ready.has_buffer() || !group.term.ends().contains({member.id})) return;
  proto::ControllerMessage message;
  proto::Renewed* renewed = message.mutable_renewed();
  renewed->set_epoch(group.term.epoch());
  renewed->set_worker(member.id.rank);
  renewed->set_buffer_index(ready.buffer_index());
  *renewed->mutable_buffer() = ready.buffer();
  for (uint32_t sender = 0; sender < group.term.plan().sender_count(); ++sender) {
    if (group.term.plan().route_count(sender, member.id.rank) == 0) continue;
    ToRank(group.term.senders()[sender], message);
  }
}

void Coordinator::OnRoundMessage(Member& member, const proto::RankMessage& message,
                                 absl::Time now) {
  const uint32_t rank = member.id.rank;
  if (message.has_failed()) {
    NoteUnusable(member, message.failed());
    if (member.id.role == Role::kWorker) TellUndecidedLater(GroupNamed(member.id.group));
    const Group* term = FindTerm({member.id}, message.failed().round().epoch());
    if (term == nullptr || term->round == nullptr ||
        !IsOf(message.failed().round(), term->round->update())) {
      return;
    }
    const absl::Status why = DecodeError(message.failed().error());
    if (term->round->committed()) member.committed_version = member.shown_version;
    return term->term.IsSender(member.id)
               ? term->round->OnSenderFailed(member.id, why)
               : term->round->OnWorkerFailed(rank, why, message.failed().wrong_base());
  }
  if (message.has_kept()) {
    const Group* term = FindTerm({member.id}, message.kept().round().epoch());
    if (term == nullptr || term->round == nullptr || !term->term.IsSender(member.id) ||
        !IsOf(message.kept().round(), term->round->update())) {
      return;
    }
    return term->round->OnKept(member.id, message.kept().kept());
  }
  if (member.id.role == Role::kTrainer) return;
  Group& group = GroupNamed(member.id.group);
  const auto current = [&](const proto::Round& round) {
    return group.round != nullptr && IsOf(round, group.round->update());
  };
  if (message.has_shown()) {
    // Also after the round: it is what settles others' doubts.
    if (message.shown().version() >= member.shown_version) {
      if (message.shown().version() > member.shown_version) {
        member.shown_at = group.catching_up ? absl::InfinitePast() : now;
      }
      members_.SetShown(member, message.shown());
      group.to_lend.reset();
      member.unusable.reset();
      TellUndecidedLater(group);
    }
    OnReport(member, message.shown().report());
    if (current(message.shown().round())) {
      group.round->OnShown(rank, message.shown().unchanged());
    }
  } else if (message.has_ready() && message.ready().round().epoch() == group.term.epoch()) {
    TellRenewal(group, member, message.ready());
    if (!current(message.ready().round())) return;
    group.round->OnReady(rank, message.ready());
    if (group.catching_up) group.round->ExtendTo(now + kCatchUpTimeout);
  } else if (message.has_refused() && current(message.refused().round())) {
    group.round->OnRefused(rank, DecodeError(message.refused().error()));
  } else if (message.has_arrived() && current(message.arrived().round())) {
    message.arrived().unvoted() ? group.round->OnReceived(rank) : group.round->OnArrived(rank);
  } else if (message.has_relay_stopped() && current(message.relay_stopped().round())) {
    group.round->OnRelayStopped(rank);
  } else if (message.has_lacking() && current(message.lacking().round())) {
    const auto& senders = message.lacking().senders();
    group.round->OnLacking(rank, {senders.begin(), senders.end()});
  }
}

}  // namespace waybill
