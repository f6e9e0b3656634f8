// SPDX-License-Identifier: Apache-2.0

// Updates: how a coordinator takes a version from the first publish to each group's outcome.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/protocol/coordinator.h"
#include "core/protocol/message_codec.h"
#include "core/tensor/replica_units.h"

namespace waybill {
namespace {

// How long a worker may take to say that it relays nothing more of what was given up. Its lanes are
// closed by force after kQuiescenceTimeout.
constexpr absl::Duration kRelayStopTimeout = absl::Seconds(5);

absl::Status NotWhole(const std::string& group, const std::string& missing) {
  return absl::UnavailableError(
      absl::StrCat("group ", group, " is not whole: waiting for ", missing));
}

absl::Status StillWaiting(uint64_t version, const std::string& missing) {
  return absl::DeadlineExceededError(
      absl::StrCat("publish version ", version, ": still waiting for ", missing));
}

}  // namespace

std::set<uint32_t> Coordinator::AllTrainers() const {
  std::set<uint32_t> trainers;
  for (uint32_t t = 0; t < members_.trainers().size; ++t) trainers.insert(t);
  return trainers;
}

// --- decisions ---

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
    // Of several groups' decisions, the first one says why.
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

// --- publishing ---

absl::Status Coordinator::CheckPublish(const Member& member, const proto::Publish& publish) const {
  const uint64_t version = publish.version();
  if (member.id.role != Role::kTrainer || version == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToString(member.id), " cannot publish version ", version));
  }
  // Some groups have committed one that is being published, perhaps.
  if (publications_.all().contains(version)) return absl::OkStatus();
  return version > decisions_.newest_version() ? absl::OkStatus() : NotLater(version);
}

absl::Status Coordinator::NotLater(uint64_t version) const {
  return absl::FailedPreconditionError(absl::StrCat("publish version ", version, ": version ",
                                                    decisions_.newest_version(),
                                                    " is committed, and versions only grow"));
}

void Coordinator::RefusePublish(uint32_t trainer, uint64_t version, uint64_t attempt,
                                const absl::Status& status) {
  proto::ControllerMessage message;
  message.mutable_publish_refused()->set_version(version);
  message.mutable_publish_refused()->set_attempt(attempt);
  *message.mutable_publish_refused()->mutable_error() = EncodeError(status);
  ToRank({Role::kTrainer, trainer}, std::move(message));
}

void Coordinator::SendOutcome(uint32_t trainer, uint64_t attempt, uint64_t version,
                              const std::string& group, const Part& part) {
  proto::ControllerMessage message;
  proto::Outcome* outcome = message.mutable_outcome();
  outcome->set_version(version);
  outcome->set_group(group);
  outcome->set_committed(part.committed());
  outcome->set_attempt(attempt);
  outcome->set_unchanged(part.unchanged);
  if (!part.status.ok()) *outcome->mutable_error() = EncodeError(part.status);
  ToRank({Role::kTrainer, trainer}, std::move(message));
}

void Coordinator::OnPublish(const Member& member, const proto::Publish& publish, absl::Time now) {
  const uint32_t trainer = member.id.rank;
  const uint64_t version = publish.version();
  if (absl::Status status = CheckPublish(member, publish); !status.ok()) {
    if (member.id.role == Role::kTrainer) {
      RefusePublish(trainer, version, publish.attempt(), status);
    }
    return;
  }
  if (absl::Status why = publications_.Tell(version, trainer); !why.ok()) {
    return RefusePublish(trainer, version, publish.attempt(), why);
  }
  Publication& publication = publications_.Add(trainer, publish, now);
  absl::Status fits = CompareReplicas(trainer, publication);
  if (publication.hold_commit != publish.hold_commit()) {
    fits = absl::FailedPreconditionError(
        absl::StrCat("publish version ", version, ": trainer ", trainer, " publishes it ",
                     publish.hold_commit() ? "with" : "without",
                     " hold_commit, unlike others; all trainers have to do the same"));
  }
  if (!fits.ok()) {
    // Nobody knows which of two trainers is right.
    if (publication.opened) RefusePublish(trainer, version, publish.attempt(), fits);
    return RefuseToAll(publication, fits);
  }
  if (publication.opened) TakePart(trainer, publication);
  std::map<uint64_t, Publication>& all = publications_.all();
  for (auto entry = all.begin(); entry != all.lower_bound(version);) {
    Publication& earlier = (entry++)->second;  // It may be erased.
    if (!earlier.publishes.contains(trainer)) GiveUpOvertaken(earlier, trainer, version);
  }
  GiveUpIfOvertaken(version);  // By others, before.
}

// Versions grow: a trainer that publishes a later version will not publish the earlier ones that
// others wait for. They would wait until their deadline, and the later version behind them.
void Coordinator::GiveUpOvertaken(Publication& earlier, uint32_t trainer, uint64_t later) {
  const absl::Status why = absl::AbortedError(
      absl::StrCat("publish version ", earlier.version, ": trainer ", trainer,
                   " publishes version ", later, ", and has not published this one"));
  if (!earlier.opened || earlier.parts.empty()) return RefuseToAll(earlier, why);
  for (const auto& [name, part] : earlier.parts) {
    if (part.state == Part::State::kQueued) GiveUpPart(earlier, name, why);
    if (part.state != Part::State::kOpen) continue;
    UpdateRound& round = *GroupNamed(name).round;
    if (round.undecided() && round.IsAwaited({Role::kTrainer, trainer})) round.GiveUp(why);
  }
}

void Coordinator::GiveUpIfOvertaken(uint64_t version) {
  const Publication* const publication = publications_.Find(version);
  if (publication == nullptr) return;
  for (const auto& [trainer, later] : publications_.OvertakersOf(*publication)) {
    Publication* const left = publications_.Find(version);
    if (left != nullptr) GiveUpOvertaken(*left, trainer, later);
  }
}

// Returns an error if another trainer has published something else of what both hold.
absl::Status Coordinator::CompareReplicas(uint32_t trainer, const Publication& publication) const {
  const auto difference = publication.FindDifference(trainer);
  if (!difference) return absl::OkStatus();
  const auto [unit, other] = *difference;
  const Manifest& manifest = *members_.trainers().here.at(trainer)->manifest;
  const uint32_t found = ReplicaUnits(manifest).FindShard(unit);
  std::string what = "a tensor";
  if (found < manifest.shard_count()) {
    const ShardView shard = manifest.shard(found);
    what = absl::StrCat("tensor \"", manifest.tensor_name(shard.tensor_index), "\" ",
                        ToString(shard.box));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("publish version ", publication.version, ": trainer ", std::min(trainer, other),
                   " and ", std::max(trainer, other), " hold different bytes of ", what,
                   "; replicas have to be equal, since each sends a part of what they hold"));
}

void Coordinator::RefuseToAll(Publication& publication, const absl::Status& why) {
  const uint64_t version = publication.version;
  if (publication.opened && publication.parts.empty()) return GiveUp(publication, why);
  if (publication.opened) return GiveUpParts(publication, why);
  GiveUp(publication, why);
  for (const auto& [other, publish] : publication.publishes) {
    RefusePublish(other, version, publish.attempt, why);
  }
  publications_.all().erase(version);
}

void Coordinator::GiveUp(const Publication& publication, const absl::Status& why) {
  std::set<uint32_t> untold = AllTrainers();
  for (const auto& [trainer, publish] : publication.publishes) untold.erase(trainer);
  publications_.GiveUp(publication.version, std::move(untold), why);
}

void Coordinator::GiveUpParts(Publication& publication, const absl::Status& why) {
  for (auto& [name, part] : publication.parts) {
    if (part.state == Part::State::kQueued) GiveUpPart(publication, name, why);
    if (part.state == Part::State::kOpen) GroupNamed(name).round->GiveUp(why);
  }
}

// Lets a trainer that publishes an opened version take part where that is undecided, and tells it
// what has become of the version elsewhere.
void Coordinator::TakePart(uint32_t trainer, const Publication& publication) {
  const Publication::Publish& publish = publication.publishes.at(trainer);
  if (publication.parts.empty() && (!publish.hold || publication.hold_commit)) {
    return RefusePublish(
        trainer, publication.version, publish.attempt,
        absl::FailedPreconditionError(absl::StrCat(
            "publish version ", publication.version, ": only groups that fetch versions are here, ",
            publish.hold ? "which wait for nobody's word: publish it without hold_commit"
                         : "and they could not once it is sent: hold it, or let the trainers keep "
                           "images")));
  }
  proto::ControllerMessage message;
  message.mutable_publish_accepted()->set_version(publication.version);
  message.mutable_publish_accepted()->set_attempt(publish.attempt);
  std::vector<UpdateRound*> rounds;
  for (const auto& [name, part] : publication.parts) {
    if (part.state == Part::State::kQueued) {
      message.mutable_publish_accepted()->add_groups(name);
    } else if (part.state == Part::State::kOpen) {
      UpdateRound* round = GroupNamed(name).round.get();
      if (!round->undecided() || !round->IsAwaited({Role::kTrainer, trainer})) continue;
      message.mutable_publish_accepted()->add_groups(name);
      rounds.push_back(round);
    }
  }
  ToRank({Role::kTrainer, trainer}, std::move(message));
  for (const auto& [name, part] : publication.parts) {
    if (!part.over()) continue;
    SendOutcome(trainer, publish.attempt, publication.version, name, part);
  }
  for (UpdateRound* round : rounds) {
    round->OnPublish({Role::kTrainer, trainer}, publish.attempt, publish.deadline);
  }
  for (const auto& [name, part] : publication.parts) {
    if (part.state != Part::State::kOpen) continue;
    const Group& group = GroupNamed(name);
    if (group.round->received()) SendArrived(trainer, publish.attempt, group);
  }
}

void Coordinator::SendArrived(uint32_t trainer, uint64_t attempt, const Group& group) {
  proto::ControllerMessage message;
  message.mutable_group_arrived()->set_version(group.round->update().version);
  message.mutable_group_arrived()->set_group(group.name);
  message.mutable_group_arrived()->set_attempt(attempt);
  message.mutable_group_arrived()->set_unvoted(!group.round->waits_for_word());
  ToRank({Role::kTrainer, trainer}, std::move(message));
}

void Coordinator::Group::TellArrived() {
  const Publication& publication = *coordinator.publications_.Find(round->update().version);
  for (const auto& [trainer, publish] : publication.publishes) {
    coordinator.SendArrived(trainer, publish.attempt, *this);
  }
}

void Coordinator::OnDecide(const Member& member, const proto::Decide& decide) {
  if (member.id.role != Role::kTrainer) return;
  Publication* const publication =
      publications_.Find(member.id.rank, decide.version(), decide.attempt());
  if (publication == nullptr || !publication->opened || !publication->waits_for_word()) return;
  if (decide.has_error()) {
    return GiveUpParts(*publication, While(ToString(member.id), DecodeError(decide.error())));
  }
  publication->commits = true;
  for (const auto& [name, part] : publication->parts) {
    if (part.state == Part::State::kOpen) GroupNamed(name).round->Decide();
  }
}

void Coordinator::OnWithdraw(const Member& member, const proto::Withdraw& withdraw) {
  if (member.id.role != Role::kTrainer) return;
  const uint32_t trainer = member.id.rank;
  Publication* const found = publications_.Find(trainer, withdraw.version(), withdraw.attempt());
  if (found == nullptr) return;
  Publication& publication = *found;
  if (!publication.opened) {
    (void)publication.Remove(trainer);
    publications_.DropUnwanted();
    return GiveUpIfOvertaken(withdraw.version());
  }
  const absl::Status why = DecodeError(withdraw.error());
  for (auto& [name, part] : publication.parts) {
    if (part.state == Part::State::kQueued) {
      GiveUpPart(publication, name, While(absl::StrCat("trainer ", trainer), why));
    } else if (part.state == Part::State::kOpen) {
      UpdateRound& round = *GroupNamed(name).round;
      if (round.HasPublished(member.id, withdraw.attempt())) round.OnSenderFailed(member.id, why);
    }
  }
}

// Gives up what the trainer has published where it has not begun. What the trainer was told last,
// it may not have heard.
void Coordinator::ForgetTrainer(uint32_t trainer, const absl::Status& why) {
  publications_.ForgetWhatWasTold(trainer);
  for (auto& [version, publication] : publications_.all()) {
    if (!publication.Remove(trainer)) continue;
    GiveUpQueuedParts(publication, why);
    // Nobody is left who could say that its groups may show it.
    if (publication.opened && publication.publishes.empty() && publication.waits_for_word()) {
      GiveUpParts(publication, why);
    }
  }
  publications_.DropUnwanted();
}

absl::Time Coordinator::AbsenceDeadline(absl::Time received) const {
  return std::max(received, incomplete_since_) + options_.absence_timeout;
}

bool Coordinator::IsAnybodyAbsent() const {
  return standings_.any_misses_required() || !standings_.any_complete();
}

std::string Coordinator::DescribeAbsence() const {
  if (!IsAnybodyAbsent()) return "";
  for (const std::string& name : required_groups_) {
    if (std::string missing = DescribeMissing(groups_.at(name)); !missing.empty()) return missing;
  }
  std::string all;
  for (const auto& [name, group] : groups_) {
    if (group.workers.here.empty()) continue;
    absl::StrAppend(&all, all.empty() ? "" : "; ", DescribeMissing(group));
  }
  return all.empty() ? members_.DescribeMissing(kDefaultGroup) : all;
}

void Coordinator::EndLatePublishes(absl::Time now) {
  for (auto& [version, publication] : publications_.all()) {
    if (!publication.opened) {
      RefuseLatePublishes(publication, now);
    } else if (publication.queued > 0 && now >= publication.deadline) {
      for (const auto& [name, part] : publication.parts) {
        if (part.state != Part::State::kQueued) continue;
        GiveUpPart(publication, name, StillWaiting(version, DescribeWaiting(GroupNamed(name))));
      }
    }
  }
  publications_.DropUnwanted();
}

void Coordinator::RefuseLatePublishes(Publication& publication, absl::Time now) {
  const uint64_t version = publication.version;
  const bool absent = IsAnybodyAbsent();
  const auto absent_too_long = [&](absl::Time received) {
    return absent && now >= AbsenceDeadline(received);
  };
  if (now < publication.deadline && !absent_too_long(publication.received)) return;
  std::vector<uint32_t> refused;
  for (const auto& [trainer, publish] : publication.publishes) {
    absl::Status why;
    if (now >= publish.deadline) {
      std::string waiting = DescribeAbsence();
      for (const auto& [name, group] : groups_) {
        if (waiting.empty()) waiting = DescribeWaiting(group);
      }
      for (const Lost& lost : lost_) {
        if (!waiting.empty() || IsBack(lost)) continue;
        waiting = absl::StrCat("group ", lost.group, " (", lost.why.message(), ")");
      }
      why = WithScope(StillWaiting(version, waiting), Scope::kUpdate);
    } else if (absent_too_long(publish.received)) {
      why = absl::UnavailableError(absl::StrCat("publish version ", version,
                                                ": it cannot begin without ", DescribeAbsence()));
    }
    if (why.ok()) continue;
    RefusePublish(trainer, version, publish.attempt, why);
    refused.push_back(trainer);
  }
  for (const uint32_t trainer : refused) (void)publication.Remove(trainer);
}

absl::Time Coordinator::PublishDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [version, publication] : publications_.all()) {
    if (publication.opened) {
      if (publication.queued > 0 || publication.parts.empty()) {
        next = std::min(next, publication.deadline);
      }
      continue;
    }
    next = std::min({next, publication.deadline, OpeningTime(publication)});
    if (!lost_.empty()) next = std::min(next, lost_.front().until);  // It may have waited for it.
    if (IsAnybodyAbsent()) next = std::min(next, AbsenceDeadline(publication.received));
  }
  return next;
}

// Returns true if the group's ranks are all here and its lanes are being made for the first time.
bool Coordinator::IsSettling(const Group& group) const {
  return group.term.phase() != Phase::kReady && !group.term.lent() && !group.term.had_trouble() &&
         !IsMissingRanks(group);
}

// Returns when the publish goes to the groups that are whole: at once, or once those that will be
// whole soon have had their time. InfiniteFuture if it can go to none, and is not held for later
// ones.
absl::Time Coordinator::OpeningTime(const Publication& publication) const {
  if (standings_.any_blocks()) return absl::InfiniteFuture();
  // A version that is held needs nobody to be here: whoever comes gets it then.
  const bool held = !publication.hold_commit &&
                    std::all_of(publication.publishes.begin(), publication.publishes.end(),
                                [](const auto& publish) { return publish.second.hold; });
  const bool nobody =
      !standings_.any_pushed_to() &&
      std::none_of(lost_.begin(), lost_.end(), [this](const Lost& lost) { return !IsBack(lost); });
  const bool takes = standings_.any_takes() || (nobody && (held || standings_.any_fetches()));
  if (!takes) return absl::InfiniteFuture();
  const absl::Time latest = publication.received + options_.absence_timeout;
  if (standings_.any_settles()) return latest;
  return std::max(publication.received, std::min(standings_.loan_patience(), latest));
}

void Coordinator::Open(Publication& publication) {
  publication.opened = true;
  for (const auto& [name, group] : groups_) {
    if (group.workers.here.empty() || group.fetches()) continue;
    // What a required group catches up on is older than this version, which takes its place.
    const bool takes = group.term.phase() == Phase::kReady || IsRequired(group);
    publication.SetPart(
        name, takes ? Part() : Part{Part::State::kGivenUp, NotWhole(name, DescribeWaiting(group))});
  }
  for (const Lost& lost : lost_) {
    if (IsBack(lost)) continue;
    publication.SetPart(lost.group, {Part::State::kGivenUp, lost.why});
  }
  for (const auto& [trainer, publish] : publication.publishes) TakePart(trainer, publication);
}

void Coordinator::EndPart(Publication& publication, const std::string& group, const Part& part) {
  publication.SetPart(group, part);
  if (Group* const of = FindGroup(group); of != nullptr) {
    of->lost_version = part.committed() ? 0 : publication.version;
    of->lost_status = part.committed() ? absl::OkStatus() : part.status;
  }
  for (const auto& [trainer, publish] : publication.publishes) {
    SendOutcome(trainer, publish.attempt, publication.version, group, part);
  }
}

void Coordinator::GiveUpPart(Publication& publication, const std::string& group,
                             const absl::Status& status) {
  EndPart(publication, group, {Part::State::kGivenUp, WithScope(status, Scope::kUpdate)});
}

void Coordinator::GiveUpQueuedParts(Publication& publication, const absl::Status& status) {
  for (const auto& [name, part] : publication.parts) {
    if (part.state == Part::State::kQueued) GiveUpPart(publication, name, status);
  }
}

// Begins, or gives up, a version that waits for its turn in a group.
void Coordinator::AdvancePart(Publication& publication, Group& group, absl::Time now) {
  const std::string& name = group.name;
  EndCatchingUp(group,
                absl::CancelledError(absl::StrCat("version ", publication.version,
                                                  " is published, which replaces it")),
                now);
  TryBeginTerm(group, now);
  if (group.round != nullptr) return;
  if (publication.version <= group.decisions.newest_version()) {
    return GiveUpPart(publication, name, NotLater(publication.version));
  }
  if (IsMissingRanks(group)) {
    return GiveUpPart(publication, name, NotWhole(name, DescribeMissing(group)));
  }
  if (group.term.phase() == Phase::kReady) BeginRound(group, publication, now);
}

void Coordinator::AdvancePublications(absl::Time now) {
  std::map<uint64_t, Publication>& all = publications_.all();
  for (auto entry = all.begin(); entry != all.end();) {
    auto& [version, publication] = *entry;
    if (!publication.opened) {
      // A later version was committed while it waited.
      if (version <= decisions_.newest_version()) {
        for (const auto& [trainer, publish] : publication.publishes) {
          RefusePublish(trainer, version, publish.attempt, NotLater(version));
        }
        entry = all.erase(entry);
        continue;
      }
      if (now < OpeningTime(publication)) {
        ++entry;
        continue;
      }
      Open(publication);
      for (const auto& [name, group] : groups_) advanced_.insert(group.number);
    }
    for (const GroupNumber number : advanced_) {
      if (publication.queued == 0) break;
      Group& group = *numbered_.at(number);
      const auto part = publication.parts.find(group.name);
      if (part == publication.parts.end() || part->second.state != Part::State::kQueued) continue;
      AdvancePart(publication, group, now);
      Settle(group);
    }
    if (publication.unfinished > 0 || AwaitsTrainers(publication, now)) {
      ++entry;
      continue;
    }
    FinishPublication(publication);
    entry = all.erase(entry);
    changed_.insert(standings_.behind().begin(), standings_.behind().end());
  }
  publications_.ForgetGivenUp(decisions_.newest_version());
}

// A version that goes to no group now, but is fetched later, waits until all trainers have
// published it, which compares their replicas, and hold it, unless a later version takes its place.
bool Coordinator::AwaitsTrainers(const Publication& publication, absl::Time now) const {
  const size_t publishes = publication.publishes.size();
  if (!publication.parts.empty() || publishes == 0 || now >= publication.deadline) return false;
  if (publishes < members_.trainers().size) return true;
  const bool newest = publication.version == publications_.all().rbegin()->first;
  return newest && publication.version != held_version_;
}

// Counts a version that every group has shown or given up.
void Coordinator::FinishPublication(const Publication& publication) {
  if (publication.parts.empty()) {
    if (publication.publishes.size() == members_.trainers().size) return;
    return GiveUp(publication,
                  absl::AbortedError(absl::StrCat("not all trainers have published version ",
                                                  publication.version)));
  }
  absl::Status why;
  for (const auto& [name, part] : publication.parts) {
    if (part.committed()) {
      ++updates_committed_;
      return;
    }
    why = FirstError(why, part.status);
  }
  ++updates_aborted_;
  GiveUp(publication, why);
}

// --- rounds ---

UpdateId Coordinator::NextUpdate(Group& group, uint64_t version) {
  group.sequence = group.sequence % kSequenceMask + 1;  // Never 0.
  return {.version = version,
          .sequence = group.sequence,
          .epoch = group.term.epoch(),
          .plan_hash = group.term.plan().hash()};
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
      NextUpdate(group, publication.version), std::move(members), publication.digests_off,
      publication.deadline, group.term.plan(),
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
  // What was given up has no rest, and the term that was to bring it serves nothing.
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
      members_.SetShown(member, message.shown().version(), message.shown().round());
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
