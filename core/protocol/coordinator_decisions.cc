// SPDX-License-Identifier: Apache-2.0

// Decisions: what becomes of versions that were voted for, or sent, before a rank was lost.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/protocol/coordinator.h"
#include "core/protocol/message_codec.h"

namespace waybill {

bool Coordinator::ShowsOrKnows(const Group& group, uint64_t version) {
  const auto& workers = group.workers.here;
  return std::any_of(workers.begin(), workers.end(), [&](const auto& worker) {
    return worker.second->shown_version == version || worker.second->committed_version == version;
  });
}

// Tells a worker what became of the update that it voted for. A record, or a member that knows of
// the commit, means COMMIT. Otherwise nobody can have committed if this controller knows all
// decisions, or if it has asked everybody. Those of a group that was away for long are forgotten.
void Coordinator::ResolveDoubt(Member& member, bool everybody_is_here) {
  if (!member.doubt) return;
  const Group& group = groups_.at(member.id.group);
  const proto::Doubt doubt = *member.doubt;
  const proto::Round& round = doubt.round();
  if (group.round != nullptr && IsOf(round, group.round->update()) && group.round->undecided()) {
    return;
  }
  const bool committed =
      group.decisions.Contains(round, doubt.version()) || ShowsOrKnows(group, doubt.version());
  const bool made_here = round.epoch() >> kEpochCountBits == options_.incarnation;
  const bool kept = !group.decisions.empty() || doubt.version() > decisions_.newest_version();
  const bool known = kept && (options_.decisions_are_durable || made_here);
  if (!committed && !known && !everybody_is_here) return;
  member.doubt.reset();
  proto::ControllerMessage message;
  if (committed) {
    *message.mutable_commit()->mutable_round() = round;
    message.mutable_commit()->set_version(doubt.version());
    member.committed_version = std::max(member.committed_version, doubt.version());
  } else {
    *message.mutable_abort()->mutable_round() = round;
    message.mutable_abort()->set_begun(true);
    *message.mutable_abort()->mutable_error() = EncodeError(
        absl::AbortedError(absl::StrCat("version ", doubt.version(), " was not committed")));
  }
  actions_->Send(member.connection, std::move(message));
}

void Coordinator::ResolveDoubts(const Group& group, bool everybody_is_here) {
  for (const auto& [rank, worker] : group.workers.here) ResolveDoubt(*worker, everybody_is_here);
}

// Keeps what a worker says about a version that its group has committed, also in an earlier term,
// and perhaps by a decision that only its members know of.
void Coordinator::NoteUnusable(Member& member, const proto::Failed& failed) {
  if (member.id.role == Role::kTrainer) return;
  const Decision* const decision = GroupNamed(member.id.group).decisions.Find(failed.round());
  const uint64_t version = decision != nullptr ? decision->version : failed.version();
  if (version == 0 || (decision == nullptr && version != member.committed_version)) return;
  member.unusable.emplace().set_version(version);
  *member.unusable->mutable_error() = failed.error();
}

// Returns true if a worker has yet to show, or to say that it cannot show, a version that it knows
// to be committed.
bool Coordinator::IsAboutToShow(const Group& group, uint64_t version) {
  const auto& workers = group.workers.here;
  return std::any_of(workers.begin(), workers.end(), [&](const auto& worker) {
    const Member& member = *worker.second;
    const bool unusable = member.unusable && member.unusable->version() >= version;
    return member.shown_version < version && version <= member.committed_version && !unusable;
  });
}

// Returns what a worker of the group has said that keeps it from using a committed version.
absl::Status Coordinator::WhyUnusable(const Group& group, uint64_t version) {
  for (const auto& [rank, worker] : group.workers.here) {
    if (!worker->unusable || worker->unusable->version() != version) continue;
    return CannotShow(version, rank, DecodeError(worker->unusable->error()));
  }
  return absl::OkStatus();
}

// Tells a trainer that came back what became in the group of the versions that it sent before. One
// that is told to have failed must not be committed after all: others that still wait to publish it
// are refused.
void Coordinator::TellUndecided(Group& group, Member& trainer) {
  const std::set<uint64_t>& versions = trainer.undecided_versions;
  if (versions.empty() || trainer.told_groups.contains(group.name)) return;
  // The next term begins when the version is decided whose rest is brought in this one.
  if (group.round != nullptr && group.round->undecided() &&
      versions.contains(group.round->update().version)) {
    return;
  }
  // A version is reported as committed once it is known who could not show it.
  if (std::any_of(versions.begin(), versions.end(),
                  [&](uint64_t version) { return IsAboutToShow(group, version); })) {
    group.tells_later = true;
    return;
  }
  trainer.told_groups.insert(group.name);
  for (const uint64_t version : versions) {
    const bool committed = ShowsOrKnows(group, version) || group.decisions.Contains(version);
    // Earlier decisions may have been forgotten, also by controllers before this one. The newest
    // version that any group has committed is never forgotten.
    const bool known = version > decisions_.newest_version() || group.decisions.Reaches(version);
    absl::Status lost;
    if (!committed && !known) {
      lost = absl::UnknownError(
          absl::StrCat("nobody knows any more whether version ", version, " was committed"));
    } else if (!committed) {
      lost = absl::UnavailableError(absl::StrCat("version ", version, " was not committed before ",
                                                 ToString(trainer.id), " was lost"));
      if (!publications_.IsGivenUp(version)) publications_.GiveUp(version, AllTrainers(), lost);
      (void)publications_.Tell(version, trainer.id.rank);
    } else {
      lost = WhyUnusable(group, version);
    }
    SendOutcome(trainer.id.rank, /*attempt=*/0, version, group.name,
                {committed ? Part::State::kCommitted : Part::State::kGivenUp, lost});
  }
}

// Called when a worker has shown a version, or has said that it cannot.
void Coordinator::TellUndecidedLater(Group& group) {
  if (!std::exchange(group.tells_later, false)) return;
  for (const auto& [rank, trainer] : members_.trainers().here) {
    if (trainer->established) TellUndecided(group, *trainer);
  }
}

// A trainer was told that a version failed in some group, perhaps by a controller before this one,
// which others that publish the version may not have heard. One that has been opened is this
// controller's own, and may be committed by other groups.
void Coordinator::NoteGivenUp(uint64_t version, uint32_t trainer) {
  Publication* const publication = publications_.Find(version);
  const bool opened = publication != nullptr && publication->opened;
  if (version <= decisions_.newest_version() || opened) return;
  const absl::Status failed = absl::UnavailableError(absl::StrCat(
      "publish version ", version, ": it failed at trainer ", trainer,
      ", perhaps by a controller before this one; publish it again, or a later version"));
  if (!publications_.IsGivenUp(version)) {
    publication != nullptr ? RefuseToAll(*publication, failed)
                           : publications_.GiveUp(version, AllTrainers(), failed);
  }
  (void)publications_.Tell(version, trainer);
}

void Coordinator::Group::Record() { coordinator.RecordDecision(*this); }

void Coordinator::RecordDecision(Group& group) {
  const UpdateId& update = group.round->update();
  const Decision decision{update.epoch, update.sequence, update.version, group.name};
  recordings_[++record_ticket_] = decision;
  actions_->Record(record_ticket_, decision);
}

void Coordinator::OnRecorded(uint64_t ticket, Recorded recorded, const absl::Status& status,
                             absl::Time now) {
  const auto recording = recordings_.find(ticket);
  if (recording == recordings_.end()) return;
  const Decision decision = recording->second;
  recordings_.erase(recording);
  if (recorded == Recorded::kUnknown) {
    // The first error says why, if the decisions of several groups are unknown.
    halted_ = FirstError(halted_, While("it is not known whether a decision was recorded", status));
    std::vector<ConnectionId> connections;
    for (const auto& [id, member] : members_.members()) connections.push_back(member.connection);
    for (const auto& [connection, claim] : claims_) connections.push_back(connection);
    members_.Clear();
    claims_.clear();
    for (const ConnectionId connection : connections) actions_->Close(connection);
    return;
  }
  Group& group = GroupNamed(decision.group);
  if (recorded == Recorded::kDurable) {
    group.to_lend.reset();
    if (decisions_.Add(decision)) {
      // Whoever could not lend the version before may be able to lend this one.
      for (auto& [name, other] : groups_) other.attempts.ForgetLenders();
      MarkAllChanged();
    }
  }
  if (group.round != nullptr && group.round->update().epoch == decision.epoch &&
      group.round->update().sequence == decision.sequence) {
    group.round->OnRecorded(recorded, status);
    // They show it, however late.
    for (const auto& [rank, worker] : group.workers.here) {
      if (recorded != Recorded::kDurable || !group.term.ends().contains({worker->id})) continue;
      worker->committed_version = std::max(worker->committed_version, decision.version);
    }
  }
  ResolveDoubts(group, /*everybody_is_here=*/false);
  Advance(now);
}

}  // namespace waybill
