// SPDX-License-Identifier: Apache-2.0

// Catching up: how a group that has missed a version gets it from another that shows it.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/protocol/coordinator.h"

namespace waybill {

uint64_t Coordinator::VersionToLend(Group& group) {
  if (group.to_lend) return *group.to_lend;
  uint64_t& lent = group.to_lend.emplace(0);
  if (!group.workers.whole() || group.workers.shown.size() > 1) return lent;
  const uint64_t version = group.workers.shown.begin()->first;
  const auto& workers = group.workers.here;
  const bool all = std::all_of(workers.begin(), workers.end(), [&](const auto& worker) {
    // Memory that is written directly is written over by the next update.
    if (worker.second->mode == Mode::kInPlace) return false;
    // A worker that has come from another job shows other bytes by the same number.
    return group.decisions.Contains(worker.second->shown_round, version);
  });
  if (all) lent = version;
  return lent;
}

uint64_t Coordinator::NewestVersion(const Member& worker) const {
  const uint64_t version = std::max(worker.shown_version, worker.committed_version);
  return version <= decisions_.newest_version() ? version : 0;
}

uint64_t Coordinator::NewestToGet() const {
  const uint64_t committed = decisions_.newest_version();
  const bool available = held_version_ > committed && !publications_.IsGivenUp(held_version_) &&
                         !publications_.all().contains(held_version_);
  return available ? held_version_ : committed;
}

// Called when a trainer holds another version, comes or goes.
void Coordinator::NoteHeld() {
  const auto& trainers = members_.trainers().here;
  proto::Held held;
  if (!any_trainer_absent() && !trainers.empty()) held = trainers.begin()->second->held;
  const bool all = std::all_of(trainers.begin(), trainers.end(), [&](const auto& trainer) {
    return trainer.second->held.version() == held.version() &&
           trainer.second->held.composition() == held.composition();
  });
  const uint64_t before = std::exchange(held_version_, all ? held.version() : 0);
  held_composition_ = held.composition();
  if (held_version_ == before) return;
  changed_.insert(standings_.behind().begin(), standings_.behind().end());
}

bool Coordinator::AwaitsFetch(const Group& group) {
  const auto& workers = group.workers.here;
  return group.fetches() && group.workers.whole() &&
         std::all_of(workers.begin(), workers.end(),
                     [](const auto& worker) { return worker.second->catch_up; });
}

void Coordinator::AnswerFetches(Group& group) {
  if (!AwaitsFetch(group)) return;
  uint64_t& wanted = group.wanted_version;
  const bool first = wanted == 0;
  if (first || publications_.IsGivenUp(wanted)) {
    wanted = NewestToGet();
    for (const auto& [rank, worker] : group.workers.here) {
      wanted = std::max(wanted, worker->fetch_at_least);
    }
    // A fetch waits for a version on its way: whoever asks may know that it was published.
    for (const auto& [version, publication] : publications_.all()) {
      if (first && publication.opened) wanted = std::max(wanted, version);
    }
  }
  if (wanted == 0) return;
  if (group.workers.shown.begin()->first < wanted) return;
  for (const auto& [rank, worker] : group.workers.here) {
    proto::ControllerMessage message;
    message.set_shows_newest(worker->fetch);
    worker->SetFetch(0, 0);
    actions_->Send(worker->connection, std::move(message));
  }
}

uint64_t Coordinator::OldestToReplace(const Group& group) const {
  constexpr uint64_t kNothing = ~uint64_t{0};
  if (!group.workers.whole()) return kNothing;
  uint64_t oldest = kNothing;
  for (const auto& [rank, worker] : group.workers.here) {
    if (!worker->catch_up) return kNothing;
    oldest = std::min(oldest, NewestVersion(*worker));
  }
  const uint64_t newest = NewestToGet();
  // A group that fetches gets what it waits for, which may be on its way yet, and nothing else.
  if (group.fetches() && (oldest >= group.wanted_version || newest < group.wanted_version)) {
    return kNothing;
  }
  if (oldest >= newest) return kNothing;
  for (const auto& [version, publication] : publications_.all()) {
    const auto part = publication.parts.find(group.name);
    // The trainers are about to bring it.
    if (part != publication.parts.end() && part->second.state == Part::State::kQueued) {
      return kNothing;
    }
  }
  return oldest;
}

// Returns the group that shows the newest version, if that is newer than what some worker of
// `group` has, and not older than what any has, so that `group` shows one version then; else an
// empty text.
std::string Coordinator::FindLender(const Group& group) {
  const uint64_t oldest = OldestToReplace(group);
  if (oldest >= NewestToGet()) return "";
  // A group that fetches does so often: a term of its own for each version would cost more than
  // what it spares the trainers.
  if (group.fetches() && IsHeldFor(group)) return "";
  uint64_t newest = 0;
  for (const auto& [rank, worker] : group.workers.here) {
    newest = std::max(newest, NewestVersion(*worker));
  }
  for (const auto& [version, lenders] : standings_.lenders()) {
    if (version <= oldest || version < newest) break;
    for (const GroupNumber number : lenders) {
      Group& lender = *numbered_.at(number);
      // The lender may have changed since standings_ was brought up to date.
      if (group.attempts.MayAsk(lender.name) && VersionToLend(lender) == version)
        return lender.name;
    }
  }
  return "";
}

bool Coordinator::IsHeldFor(const Group& group) const {
  const uint64_t newest = NewestToGet();
  return held_version_ == newest && OldestToReplace(group) < newest &&
         group.attempts.MayAskTrainers(newest);
}

// A group that is whole has missed a version if its round failed, and not that of another. A lender
// needs a term of its own; trainers that hold the version bring it in the term at hand.
void Coordinator::TryCatchUp(Group& group, absl::Time now) {
  if (group.term.phase() != Phase::kReady || group.round != nullptr) return;
  if (!FindLender(group).empty()) {
    group.term.Gather();
  } else if (IsHeldFor(group)) {
    BeginCatchingUp(group, held_version_, held_composition_, now);
  }
}

// Another group may lend it, or the next update brings it.
void Coordinator::GiveUpLoan(Group& group, const absl::Status& why) {
  if (!group.term.lent()) {
    return group.attempts.OnTrainersFailed(group.round->update().version,
                                           While("catch up from the trainers", why));
  }
  const std::string& lender = group.term.lender();
  group.attempts.OnLenderFailed(lender, While(absl::StrCat("catch up from group ", lender), why));
  group.term.Gather();
}

void Coordinator::EndCatchingUp(Group& group, const absl::Status& why, absl::Time now) {
  if (group.round == nullptr) {
    if (group.term.lent()) GiveUpLoan(group, why);
    return;
  }
  if (!group.catching_up) return;
  group.round->GiveUp(why);
  FinishRoundIfOver(group, now);
}

// Tells the lender that it need not keep what it lent.
void Coordinator::EndLoan(Group& group) {
  if (!group.term.lent()) return;
  proto::ControllerMessage message;
  message.mutable_term_over()->set_group(group.name);
  if (const Group* lender = LookAt(group.term.lender()); lender != nullptr) {
    for (const auto& [rank, member] : lender->workers.here) {
      member->lanes.erase({group.name, false});
      actions_->Send(member->connection, message);
    }
  }
  group.term.EndLoan();
  group.lent_version = 0;
}

void Coordinator::BeginCatchingUp(Group& group, uint64_t version, uint64_t composition,
                                  absl::Time now) {
  RoundMembers members = MembersOfRound(group, version);
  if (members.workers.empty()) return group.term.Gather();     // It has got it meanwhile.
  const absl::Time deadline = now + options_.absence_timeout;  // To be READY.
  group.round = std::make_unique<UpdateRound>(
      NextUpdate(group, version, composition), std::move(members),
      /*digests_off=*/false, deadline, group.term.plan(), IfLanesDie::kAbort, &group);
  group.catching_up = true;
  group.round->Begin(/*catch_up=*/true, /*continued=*/nullptr, now);
  for (uint32_t s = 0; s < group.term.plan().sender_count(); ++s) {
    const Member* sender = members_.Find(group.term.senders()[s]);
    if (sender != nullptr) group.round->OnPublish(sender->id, sender->held.attempt(), deadline);
  }
}

}  // namespace waybill
