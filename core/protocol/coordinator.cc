// SPDX-License-Identifier: Apache-2.0

#include "core/protocol/coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/sha256.h"
#include "core/base/status.h"
#include "core/protocol/message_codec.h"
#include "core/tensor/manifest_codec.h"

namespace waybill {
namespace {

// A claim holds Join and the head of the manifest: nobody is asked for parts before it is admitted.
constexpr size_t kMostClaimMessages = 4;

// How long a group that is lost is expected to come back: ranks that lost a controller try again
// every two seconds, and have lanes some seconds later. A job whose groups have other names than
// those of its last run is told of these for so long.
constexpr absl::Duration kLostIsExpected = absl::Seconds(30);

}  // namespace

Coordinator::Coordinator(CoordinatorOptions options, const std::vector<Decision>& decisions,
                         CoordinatorActions* actions)
    : options_(std::move(options)),
      actions_(actions),
      required_groups_(options_.required_groups),
      members_(options_.job),
      last_epoch_(uint64_t{options_.incarnation} << kEpochCountBits) {
  for (const std::string& name : required_groups_) (void)GroupNamed(name);
  for (const Decision& decision : decisions) {
    if (GroupNamed(decision.group).decisions.empty()) {
      lost_.push_back({.until = absl::InfiniteFuture(),
                       .group = decision.group,
                       .why = absl::UnavailableError(absl::StrCat(
                           "group ", decision.group,
                           " is not here: it was before this controller began, and has not come "
                           "back yet"))});
    }
    (void)decisions_.Add(decision);
  }
}

Coordinator::~Coordinator() = default;

// --- sending ---

void Coordinator::ToRank(const RankId& id, proto::ControllerMessage message) {
  if (id.role == Role::kTrainer) return ToRank(members_.trainers(), id.rank, std::move(message));
  if (const Member* member = members_.Find(id)) {
    actions_->Send(member->connection, std::move(message));
  }
}

void Coordinator::ToRank(const World& world, uint32_t rank, proto::ControllerMessage message) {
  const auto member = world.here.find(rank);
  if (member != world.here.end()) {
    actions_->Send(member->second->connection, std::move(message));
  }
}

void Coordinator::Group::ToWorker(uint32_t worker, proto::ControllerMessage message) {
  coordinator.ToRank(workers, worker, std::move(message));
}

void Coordinator::Group::ToSender(const RankId& sender, proto::ControllerMessage message) {
  coordinator.ToRank(sender, std::move(message));
}

void Coordinator::Dismiss(ConnectionId connection, const absl::Status& status) {
  proto::ControllerMessage message;
  *message.mutable_dismissal()->mutable_error() = EncodeError(status);
  actions_->Send(connection, std::move(message));
  actions_->Close(connection);
}

void Coordinator::DismissMember(ConnectionId connection, const absl::Status& status,
                                absl::Time now) {
  Dismiss(connection, status);
  Remove(connection, status, now);
}

// Ends a stream whose rank may join again.
void Coordinator::HangUp(ConnectionId connection, const absl::Status& why, absl::Time now) {
  actions_->Close(connection);
  Remove(connection, why, now);
}

// --- joining ---

bool Coordinator::IsAdmitted(ConnectionId connection) const {
  return claims_.contains(connection) || members_.Contains(connection);
}

void Coordinator::OnMessage(ConnectionId connection, const proto::RankMessage& message,
                            absl::Time now) {
  if (!halted_.ok()) return actions_->Close(connection);
  if (message.has_join()) {
    OnJoin(connection, message, now);
    return Advance(now);
  }
  if (const auto claim = claims_.find(connection); claim != claims_.end()) {
    if (claim->second.messages.size() < kMostClaimMessages) {
      claim->second.messages.push_back(message);
    }
    return;
  }
  Member* member = members_.Find(connection);
  if (member == nullptr) return;  // It was dismissed, or never said who it is.
  switch (message.kind_case()) {
    case proto::RankMessage::kManifest:
      OnManifest(*member, message.manifest().head(), now);
      break;
    case proto::RankMessage::kPart:
      parts_.OnPart(
          connection,
          {static_cast<PartKind>(message.part().name().kind()), message.part().name().hash()},
          message.part().deflated());
      GatherManifests(now);
      break;
    case proto::RankMessage::kOffers:
      OnOffers(*member, message.offers());
      break;
    case proto::RankMessage::kConnected:
      OnConnected(*member, message.connected(), now);
      break;
    case proto::RankMessage::kReport:
      OnReport(*member, message.report());
      break;
    case proto::RankMessage::kSent:
      if (message.sent().has_report()) OnReport(*member, message.sent().report());
      break;
    case proto::RankMessage::kConnectFailed:
      if (Group* group = FindTerm({member->id}, message.connect_failed().epoch())) {
        group->term.ForgetLanesOf(member->id);
        group->term.OnConnectFailed(member->id, DecodeError(message.connect_failed().error()), now);
      }
      break;
    case proto::RankMessage::kNics:
      OnNics(*member, message.nics(), now);
      break;
    case proto::RankMessage::kPublish:
      OnPublish(*member, message.publish(), now);
      break;
    case proto::RankMessage::kDecide:
      OnDecide(*member, message.decide());
      break;
    case proto::RankMessage::kWithdraw:
      OnWithdraw(*member, message.withdraw());
      break;
    case proto::RankMessage::kHeld:
      member->held = message.held();
      NoteHeld();
      break;
    case proto::RankMessage::kFetch: {
      if (!member->fetches) break;
      member->SetFetch(message.fetch(), message.fetch_at_least());
      Group& group = GroupNamed(member->id.group);
      group.wanted_version = 0;
      group.attempts.ForgetTrainers();
      break;
    }
    case proto::RankMessage::kLaneFailed:
      OnLaneFailed(*member, message.lane_failed(), now);
      break;
    case proto::RankMessage::kAlive:
      SettleClaims(connection,
                   absl::AlreadyExistsError(
                       absl::StrCat("join: ", ToString(member->id), " of job \"", options_.job,
                                    "\" is here already: end that process, or take "
                                    "another rank")),
                   now);
      break;
    case proto::RankMessage::kLeave: {
      const absl::Status gone = WithScope(
          absl::UnavailableError(absl::StrCat(ToString(member->id), " has left")), Scope::kPeer);
      const std::string group = member->id.group;
      HangUp(connection, gone, now);
      ForgetLost(group);
      break;
    }
    default:
      OnRoundMessage(*member, message, now);
  }
  Advance(now);
}

void Coordinator::OnJoin(ConnectionId connection, const proto::RankMessage& message,
                         absl::Time now) {
  if (IsAdmitted(connection)) {
    return DismissMember(connection, absl::InvalidArgumentError("join: joined already"), now);
  }
  if (message.join().any_rank()) return OnJoinAsAny(connection, message.join(), now);
  const proto::Join& join = message.join();
  if (absl::Status status = members_.Check(join); !status.ok()) return Dismiss(connection, status);
  const RankId id = IdOf(join);
  const Member* incumbent = members_.Find(id);
  if (incumbent == nullptr) return Admit(connection, join, now);
  if (incumbent->incarnation == join.incarnation()) {
    // The same process, whose old stream is dead without our knowing it. Whoever claims its place
    // would be admitted beside it once the old stream is gone.
    const bool claimed = MoveClaims(incumbent->connection, connection, now);
    HangUp(incumbent->connection,
           WithScope(absl::UnavailableError(absl::StrCat(ToString(id), " has come back")),
                     Scope::kPeer),
           now);
    Admit(connection, join, now);
    if (claimed) SendChallenge(connection);
    return;
  }
  // A process that is frozen does not answer, and gives its place to the one that replaces it.
  claims_[connection] = {incumbent->connection, now + options_.challenge_timeout, {message}};
  SendChallenge(incumbent->connection);
}

void Coordinator::SendChallenge(ConnectionId incumbent) {
  proto::ControllerMessage challenge;
  challenge.mutable_challenge();
  actions_->Send(incumbent, std::move(challenge));
}

bool Coordinator::MoveClaims(ConnectionId from, ConnectionId to, absl::Time now) {
  bool any = false;
  for (auto& [connection, claim] : claims_) {
    if (claim.incumbent != from) continue;
    claim.incumbent = to;
    claim.deadline = now + options_.challenge_timeout;
    any = true;
  }
  return any;
}

// Two processes that ask for any rank get different ones; neither claims one that somebody has.
void Coordinator::OnJoinAsAny(ConnectionId connection, proto::Join join, absl::Time now) {
  join.set_rank(0);
  if (absl::Status status = members_.Check(join); !status.ok()) return Dismiss(connection, status);
  join.set_rank(members_.FreeRank(join));
  if (join.rank() == join.world()) {
    const RankId id = IdOf(join);
    return Dismiss(connection,
                   absl::ResourceExhaustedError(absl::StrCat(
                       "join: all ", join.world(), " ", Name(id.role), "s",
                       id.group.empty() ? "" : absl::StrCat(" of group ", id.group), " are here")));
  }
  proto::ControllerMessage message;
  message.mutable_assigned()->set_rank(join.rank());
  actions_->Send(connection, std::move(message));
  Admit(connection, join, now);
}

void Coordinator::Admit(ConnectionId connection, const proto::Join& join, absl::Time now) {
  Member* member = members_.Admit(connection, join);
  member->join_deadline = now + options_.join_timeout;
  if (join.deadline_ms() > 0) {
    member->join_deadline =
        std::min(member->join_deadline, now + absl::Milliseconds(join.deadline_ms()));
  }
  join_deadlines_.emplace(member->join_deadline, connection);
  if (member->id.role == Role::kWorker) {
    Group& group = GroupNamed(member->id.group);
    group.attempts.ForgetLenders();
    group.attempts.ForgetTrainers();
    group.to_lend.reset();
    group.wanted_version = 0;
  } else {
    MarkAllChanged();
    if (join.returning() || trainers_settled_at_ != absl::InfiniteFuture()) {
      trainers_settled_at_ = now + options_.absence_timeout;
    }
    for (const uint64_t version : join.failed_versions()) NoteGivenUp(version, member->id.rank);
    NoteHeld();
  }
  OnMembersChanged(member->id);
  ResolveDoubt(*member, /*everybody_is_here=*/false);
}

Coordinator::Group& Coordinator::GroupNamed(const std::string& name) {
  const auto [group, added] = groups_.try_emplace(name, name, this);
  if (added) {
    decisions_.OnHere(name);
    numbered_[group->second.number] = &group->second;
  }
  MarkChanged(group->second);
  return group->second;
}

Coordinator::Group* Coordinator::FindGroup(const std::string& name) {
  const auto group = groups_.find(name);
  if (group == groups_.end()) return nullptr;
  MarkChanged(group->second);
  return &group->second;
}

const Coordinator::Group* Coordinator::LookAt(const std::string& name) const {
  const auto group = groups_.find(name);
  return group == groups_.end() ? nullptr : &group->second;
}

void Coordinator::MarkAllChanged() {
  for (const auto& [name, group] : groups_) MarkChanged(group);
}

void Coordinator::Settle(Group& group) {
  if (!standings_.Set(group.number, StandingOf(group))) return;
  // They may borrow from it now, or not any more.
  for (const GroupNumber behind : standings_.behind()) {
    if (behind != group.number) changed_.insert(behind);
  }
}

Standing Coordinator::StandingOf(Group& group) {
  const bool ready = group.term.phase() == Phase::kReady, missing = IsMissingRanks(group);
  const bool idle = group.round == nullptr;
  Standing standing = {
      .deadline = std::min(group.term.lanes_deadline(), group.stop_deadline),
      .takes = (ready && !group.fetches()) || IsRequired(group),
      .fetches = ready && group.fetches(),
      .pushed_to = !group.workers.here.empty() && !group.fetches(),
      .blocks = !ready && IsRequired(group) && !Borrows(group),
      .settles = IsSettling(group) && !group.fetches(),
      .complete = !group.workers.here.empty() && !missing,
      .misses_required = IsRequired(group) && missing,
      .borrows = group.term.lent(),
      .loan_patience =
          group.term.lent() && !group.fetches() ? group.loan_patience : absl::InfinitePast(),
      .behind = idle && (ready || group.term.phase() == Phase::kGathering) &&
                (AwaitsFetch(group) || OldestToReplace(group) < NewestToGet()),
      .lent_version = VersionToLend(group),
      .fetched_version = group.fetches() && IsRequired(group)
                             ? std::optional(group.workers.shown.begin()->first)
                             : std::nullopt,
  };
  if (!idle) standing.deadline = std::min(standing.deadline, group.round->deadline());
  if (group.term.phase() == Phase::kGathering && group.rest) {
    standing.deadline = std::min(standing.deadline, group.term.retry_at());
  } else if (group.term.phase() == Phase::kGathering && idle) {
    standing.deadline = std::min(
        standing.deadline, FindLender(group).empty() ? TermTime(group) : group.term.retry_at());
  }
  return standing;
}

void Coordinator::ForgetGroup(Group& group, absl::Time now) {
  const std::string name = group.name;
  EndLoan(group);
  terms_.erase(group.term.epoch());
  standings_.Erase(group.number);
  numbered_.erase(group.number);
  groups_.erase(name);
  members_.Forget(name);
  for (const auto& [rank, trainer] : members_.trainers().here) {
    trainer->told_groups.erase(name);
    trainer->lanes.erase({name, false});
  }
  decisions_.OnAway(name, now);
}

void Coordinator::ForgetPast(absl::Time now) {
  for (Lost& lost : lost_) {
    if (lost.until != absl::InfiniteFuture()) break;
    lost.until = now + kLostIsExpected;  // It was lost before this controller began.
  }
  while (!lost_.empty() && now >= lost_.front().until) lost_.pop_front();
  for (const std::string& group : decisions_.Forget(now)) actions_->Forget(group);
}

bool Coordinator::IsBack(const Lost& lost) const {
  const Group* const group = LookAt(lost.group);
  return group != nullptr && !group->workers.here.empty();
}

void Coordinator::ForgetLost(const std::string& group) {
  std::erase_if(lost_, [&](const Lost& lost) { return lost.group == group && !IsBack(lost); });
}

std::vector<Coordinator::Group*> Coordinator::GroupsOf(const RankId& id) {
  std::vector<Group*> groups;
  const auto add = [&](Group* group) {
    if (group == nullptr || !group->term.IsMember(id)) return;
    groups.push_back(group);
    MarkChanged(*group);
  };
  if (id.role == Role::kTrainer) {
    for (auto& [name, group] : groups_) add(&group);
    return groups;
  }
  add(FindGroup(id.group));
  for (const GroupNumber borrowing : standings_.borrowing()) add(numbered_.at(borrowing));
  return groups;
}

std::vector<Member*> Coordinator::MembersOf(const Group& group) {
  std::vector<Member*> members;
  const World* senders = &members_.trainers();
  if (group.term.lent()) {
    const Group* const lender = LookAt(group.term.lender());
    senders = lender != nullptr ? &lender->workers : nullptr;
  }
  for (const World* world : {senders, &group.workers}) {
    if (world == nullptr) continue;
    for (const auto& [rank, member] : world->here) members.push_back(member);
  }
  return members;
}

void Coordinator::OnMembersChanged(const RankId& id) {
  for (Group* group : GroupsOf(id)) {
    group->holes = absl::OkStatus();
    group->term.Gather();
  }
}

// Ends the wait of the processes that claim the place of `incumbent`: with `refusal` if that is not
// OK, else by admitting them.
void Coordinator::SettleClaims(ConnectionId incumbent, const absl::Status& refusal,
                               absl::Time now) {
  std::vector<std::pair<ConnectionId, Claim>> settled;
  for (auto claim = claims_.begin(); claim != claims_.end();) {
    if (claim->second.incumbent != incumbent) {
      ++claim;
      continue;
    }
    settled.emplace_back(claim->first, std::move(claim->second));
    claim = claims_.erase(claim);
  }
  for (const auto& [connection, claim] : settled) {
    if (!refusal.ok()) {
      Dismiss(connection, refusal);
      MarkAllChanged();  // Terms waited for who the trainers are.
      continue;
    }
    for (const proto::RankMessage& message : claim.messages) OnMessage(connection, message, now);
  }
}

bool Coordinator::IsTrainerClaimed() const {
  return std::any_of(claims_.begin(), claims_.end(), [](const auto& claim) {
    return claim.second.messages.front().join().role() == static_cast<uint32_t>(Role::kTrainer);
  });
}

void Coordinator::OnManifest(Member& member, const std::string& head, absl::Time now) {
  if (parts_.Contains(member.connection)) return;  // What a rank holds never changes.
  constexpr size_t kMostHeadBytes = 1 << 20;
  absl::StatusOr<ManifestHead> decoded =
      head.size() <= kMostHeadBytes
          ? DecodeHead(head)
          : absl::InvalidArgumentError(absl::StrCat("manifest: a head of ", head.size(),
                                                    " bytes, at most ", kMostHeadBytes));
  if (!decoded.ok()) {
    const std::string what = absl::StrCat("join: ", ToString(member.id));
    return DismissMember(member.connection, While(what, decoded.status()), now);
  }
  member.manifest_hash = Sha256(head);
  parts_.Add(member.connection, member.id.role, *std::move(decoded));
  GatherManifests(now);
}

void Coordinator::GatherManifests(absl::Time now) {
  for (ManifestParts::Settled& settled : parts_.TakeSettled()) {
    Member* member = members_.Find(settled.rank);
    if (member == nullptr) continue;
    if (settled.manifest.ok()) {
      members_.SetManifest(*member, std::make_shared<const Manifest>(*std::move(settled.manifest)));
      if (member->id.role == Role::kWorker) {
        GroupNamed(member->id.group).to_lend.reset();
      } else if (members_.trainers().all_have_manifests()) {
        MarkAllChanged();
      }
      continue;
    }
    const std::string what = absl::StrCat("join: ", ToString(member->id));
    DismissMember(settled.rank, While(what, settled.manifest.status()), now);
  }
  for (const ManifestParts::Ask& ask : parts_.TakeAsks(now)) {
    proto::ControllerMessage message;
    message.mutable_part_wanted()->mutable_name()->set_kind(static_cast<uint32_t>(ask.part.kind));
    message.mutable_part_wanted()->mutable_name()->set_hash(ask.part.hash);
    actions_->Send(ask.rank, std::move(message));
  }
  for (ManifestParts::Work& work : parts_.TakeWork()) {
    actions_->Compute([this, work = std::move(work)](
                          const CoordinatorActions::ForEach&) -> CoordinatorActions::Completion {
      return [this, tell = work()](absl::Time later) {
        if (!halted_.ok()) return;
        tell();
        GatherManifests(later);
        Advance(later);
      };
    });
  }
}

void Coordinator::OnGone(ConnectionId connection, absl::Time now) {
  claims_.erase(connection);
  const Member* member = members_.Find(connection);
  if (member == nullptr) return;
  Remove(connection,
         WithScope(absl::UnavailableError(
                       absl::StrCat(ToString(member->id), " is gone: its stream ended")),
                   Scope::kPeer),
         now);
  Advance(now);
}

void Coordinator::Remove(ConnectionId connection, const absl::Status& why, absl::Time now) {
  const Member* member = members_.Find(connection);
  if (member == nullptr) return;
  const RankId id = member->id;
  const bool established = member->established;
  const bool fetches = member->fetches;
  if (established) incomplete_since_ = now;
  members_.Remove(connection);
  parts_.Remove(connection);
  const std::vector<Group*> terms = GroupsOf(id);
  for (Group* group : terms) {
    group->term.Remove(id);
    group->to_lend.reset();
  }
  if (id.role == Role::kTrainer) {
    for (auto& [name, group] : groups_) {
      group.term.ForgetLanesOf(id);  // Those that borrow have kept them.
      if (group.rest) group.rest->holders.erase(id.rank);
    }
    MarkAllChanged();
    NoteHeld();
    ForgetTrainer(id.rank, why);
    if (established) trainers_settled_at_ = now + options_.absence_timeout;
    // Whoever comes next is another training, and waits for all of its trainers.
    if (members_.trainers().here.empty()) trainers_settled_at_ = absl::InfiniteFuture();
  }
  for (Group* group : terms) {
    if (group->round != nullptr) {
      group->term.IsSender(id) ? group->round->OnSenderGone(id, why)
                               : group->round->OnWorkerGone(id.rank, why);
    }
  }
  OnMembersChanged(id);
  if (id.role == Role::kWorker && !GroupNamed(id.group).workers.here.empty()) {
    proto::ControllerMessage message;
    message.mutable_group_change()->set_group(id.group);
    *message.mutable_group_change()->mutable_lost() = EncodeError(why);
    for (const auto& [rank, trainer] : members_.trainers().here) {
      if (trainer->hears_of_groups) actions_->Send(trainer->connection, message);
    }
  }
  if (id.role == Role::kWorker && GroupNamed(id.group).workers.here.empty()) {
    proto::ControllerMessage message;
    message.mutable_term_over()->set_group(id.group);
    for (const auto& [rank, trainer] : members_.trainers().here) {
      actions_->Send(trainer->connection, message);
    }
    SetHere(GroupNamed(id.group), false);
    ForgetLost(id.group);
    // Nobody misses a group that has never got anything, or that gets it when it likes.
    if (!GroupNamed(id.group).decisions.empty() && !fetches) {
      lost_.push_back({.until = now + kLostIsExpected,
                       .group = id.group,
                       .why = absl::UnavailableError(
                           absl::StrCat("group ", id.group, " is not here: ", why.message()))});
    }
  }
  SettleClaims(connection, absl::OkStatus(), now);
  GatherManifests(now);
}

void Coordinator::SendGroupChange(const Member& member, const Group& group) {
  proto::ControllerMessage message;
  message.mutable_group_change()->set_group(group.name);
  message.mutable_group_change()->set_here(group.here);
  actions_->Send(member.connection, std::move(message));
}

void Coordinator::SendAllGroups(Member& member) {
  member.hears_of_groups = true;
  for (const auto& [name, group] : groups_) {
    if (group.here) SendGroupChange(member, group);
  }
}

void Coordinator::TellOldestShown() {
  proto::OldestShown oldest;
  if (!standings_.fetched().empty()) {
    const auto& [version, group] = *standings_.fetched().begin();
    oldest.set_group(numbered_.at(group)->name);
    oldest.set_version(version);
  }
  if (oldest.group() == oldest_shown_.group() && oldest.version() == oldest_shown_.version()) {
    return;
  }
  oldest_shown_ = std::move(oldest);
  proto::ControllerMessage message;
  *message.mutable_oldest_shown() = oldest_shown_;
  for (const auto& [rank, trainer] : members_.trainers().here) {
    if (trainer->hears_of_groups) actions_->Send(trainer->connection, message);
  }
}

void Coordinator::SetHere(Group& group, bool here) {
  if (std::exchange(group.here, here) == here) return;
  for (const auto& [rank, trainer] : members_.trainers().here) {
    if (trainer->hears_of_groups) SendGroupChange(*trainer, group);
  }
}

absl::StatusOr<uint32_t> Coordinator::RemoveGroup(const std::string& name, absl::Time now) {
  if (!halted_.ok()) return halted_;
  const bool required = required_groups_.erase(name) > 0;
  std::vector<ConnectionId> workers;
  if (const Group* group = FindGroup(name); group != nullptr) {
    for (const auto& [rank, worker] : group->workers.here) workers.push_back(worker->connection);
  }
  if (workers.empty() && !required) {
    return absl::NotFoundError(
        absl::StrCat("remove group ", name, ": job \"", options_.job, "\" has no such group"));
  }
  for (const ConnectionId worker : workers) {
    DismissMember(worker, absl::CancelledError(absl::StrCat("group ", name, " was removed")), now);
  }
  ForgetLost(name);
  Advance(now);
  return static_cast<uint32_t>(workers.size());
}

void Coordinator::OnReport(Member& member, const proto::RankReport& report) {
  // A rank has some 40 counters, and every stage once.
  constexpr int kMostEntries = 1024;
  if (report.counters_size() > kMostEntries || report.stages_size() > kMostEntries) return;
  member.report = report;
}

// --- time ---

void Coordinator::Advance(absl::Time now) {
  ForgetPast(now);
  changed_.merge(standings_.Due(now));
  do {
    AdvanceGroups(now);
    EndLatePublishes(now);
    AdvancePublications(now);
    for (const GroupNumber number : std::exchange(advanced_, {})) {
      Group& group = *numbered_.at(number);
      if (!GoesOn(group)) ForgetGroup(group, now);
    }
  } while (!changed_.empty());
  TellOldestShown();
  // Members that are not joining any more have nothing to be late for.
  while (!join_deadlines_.empty()) {
    const Member* member = members_.Find(join_deadlines_.begin()->second);
    if (member != nullptr && member->is_joining()) break;
    join_deadlines_.erase(join_deadlines_.begin());
  }
}

void Coordinator::AdvanceGroups(absl::Time now) {
  while (!changed_.empty()) {
    const auto found = numbered_.find(*changed_.begin());
    changed_.erase(changed_.begin());
    if (found == numbered_.end()) continue;  // It is forgotten.
    Group& group = *found->second;
    advanced_.insert(group.number);
    FinishRoundIfOver(group, now);
    ReplaceLanes(group, now);
    AnswerFetches(group);
    TryCatchUp(group, now);
    TryBeginTerm(group, now);
    Settle(group);
  }
}

void Coordinator::OnTime(absl::Time now) {
  if (!halted_.ok()) return;
  GatherManifests(now);
  for (const GroupNumber number : standings_.Due(now)) {
    const Group& group = *numbered_.at(number);
    if (group.round != nullptr) group.round->OnTime(now);
  }
  std::set<ConnectionId> silent;
  for (const auto& [connection, claim] : claims_) {
    if (now >= claim.deadline) silent.insert(claim.incumbent);
  }
  for (const ConnectionId incumbent : silent) {
    if (members_.Find(incumbent) == nullptr) continue;  // Its claims are settled.
    // It must not come back: which of the two a later controller would take is chance.
    DismissMember(incumbent,
                  WithScope(absl::UnavailableError(absl::StrCat(
                                ToString(members_.Find(incumbent)->id),
                                " does not answer, and another process takes its place")),
                            Scope::kPeer),
                  now);
  }
  CloseLateMembers(now);
  std::vector<std::pair<ConnectionId, absl::Status>> unlucky;
  for (const auto& [deadline, connection] : join_deadlines_) {
    if (now < deadline) break;
    const Member* joining = members_.Find(connection);
    if (joining == nullptr || !joining->is_joining()) continue;
    const Member& member = *joining;
    const RankId& id = member.id;
    std::string waiting;
    for (const Group* group : GroupsOf(id)) {
      if (!IsExpected(*group)) continue;
      const std::string text = DescribeWaiting(*group);
      if (!text.empty()) absl::StrAppend(&waiting, waiting.empty() ? "" : "; ", text);
      if (!group->term.last_trouble().ok()) {
        absl::StrAppend(&waiting, "; ", group->term.last_trouble().message());
      }
    }
    if (waiting.empty()) waiting = members_.DescribeMissing(kDefaultGroup);
    const std::string which = id.role == Role::kTrainer
                                  ? std::string("no group is whole")
                                  : absl::StrCat("group ", id.group, " is not whole");
    unlucky.emplace_back(member.connection, absl::DeadlineExceededError(
                                                absl::StrCat(which, ": waiting for ", waiting)));
  }
  for (const auto& [connection, why] : unlucky) {
    const Member* member = members_.Find(connection);
    if (member == nullptr) continue;
    member->established ? HangUp(connection, why, now) : DismissMember(connection, why, now);
  }
  Advance(now);
}

absl::Time Coordinator::next_deadline() const {
  if (!halted_.ok()) return absl::InfiniteFuture();
  absl::Time next =
      std::min({standings_.next_deadline(), PublishDeadline(), parts_.next_deadline()});
  for (const auto& [connection, claim] : claims_) next = std::min(next, claim.deadline);
  if (!join_deadlines_.empty()) next = std::min(next, join_deadlines_.begin()->first);
  return next;
}

}  // namespace waybill
