// SPDX-License-Identifier: Apache-2.0

// Publishing: how a version goes from the first publish to its outcome in each group.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "core/protocol/coordinator.h"
#include "core/protocol/message_codec.h"
#include "core/tensor/replica_units.h"

namespace waybill {
namespace {

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
  fits.Update(CheckComposition(trainer, publish.composition(), publication));
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
  // Other trainers may have published a later version before.
  GiveUpIfOvertaken(version);
}

absl::Status Coordinator::CheckComposition(uint32_t trainer, uint64_t composition,
                                           const Publication& publication) const {
  if (composition != publication.composition) {
    return absl::FailedPreconditionError(
        absl::StrCat("publish version ", publication.version, ": trainer ", trainer,
                     " has made it of another selection, or from other versions, than trainers "
                     "before it; publish one version on all of them with neither tensors nor "
                     "at_most"));
  }
  const bool all = publication.publishes.size() == members_.trainers().size;
  if (!all || publication.unknown_tensors.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("publish version ", publication.version, ": no trainer has a tensor \"",
                   absl::StrJoin(publication.unknown_tensors, "\", \""), "\""));
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

}  // namespace waybill
