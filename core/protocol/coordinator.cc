#include "core/protocol/coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/plan/plan_codec.h"
#include "core/plan/planner.h"
#include "core/protocol/message_codec.h"
#include "core/protocol/mutation.h"
#include "core/tensor/manifest_check.h"
#include "core/tensor/manifest_codec.h"

namespace waybill {
namespace {

// A member in doubt voted in one of the group's latest updates: no other can commit without it.
constexpr int kEpochCountBits = 20;
// A claim holds Join and Manifest.
constexpr size_t kMostClaimMessages = 4;

absl::StatusOr<Manifest> DecodeChecked(RankId id, const std::string& encoded) {
  const std::string what = absl::StrCat("join: ", ToString(id));
  absl::StatusOr<Manifest> manifest = DecodeManifest(encoded);
  if (!manifest.ok()) return While(what, manifest.status());
  const Holes holes = id.role == Role::kWorker ? Holes::kRefused : Holes::kAllowed;
  WAYBILL_RETURN_IF_ERROR(While(what, CheckManifest(*manifest, holes)));
  WAYBILL_RETURN_IF_ERROR(While(what, CheckOrder(*manifest)));
  return manifest;
}

}  // namespace

Coordinator::Coordinator(CoordinatorOptions options, const std::vector<Decision>& decisions,
                         CoordinatorActions* actions)
    : options_(std::move(options)),
      actions_(actions),
      members_(options_.job, options_.token, options_.trainers, options_.workers),
      epoch_(uint64_t{options_.incarnation} << kEpochCountBits) {
  for (const Decision& decision : decisions) {
    if (Mutated(Mutation::kDecisionsForgotten)) break;
    decisions_[decision.group].push_back(decision);
    committed_version_ = std::max(committed_version_, decision.version);
  }
}

Coordinator::~Coordinator() = default;

// --- sending ---

void Coordinator::ToRank(RankId id, proto::ControllerMessage message) {
  if (const Member* member = members_.Find(id)) {
    actions_->Send(member->connection, std::move(message));
  }
}

void Coordinator::ToWorker(uint32_t worker, proto::ControllerMessage message) {
  ToRank({Role::kWorker, worker}, std::move(message));
}

void Coordinator::ToTrainer(uint32_t trainer, proto::ControllerMessage message) {
  ToRank({Role::kTrainer, trainer}, std::move(message));
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

// Members that were part of a whole job wait for the others to come back, and show what they have.
void Coordinator::DismissNewcomers(const absl::Status& status, absl::Time now) {
  std::vector<ConnectionId> newcomers;
  for (const auto& [id, member] : members_.members()) {
    if (!member.established) newcomers.push_back(member.connection);
  }
  for (const ConnectionId connection : newcomers) DismissMember(connection, status, now);
}

// Ends a stream whose rank may join again.
void Coordinator::HangUp(ConnectionId connection, const absl::Status& why, absl::Time now) {
  actions_->Close(connection);
  Remove(connection, why, now);
}

// --- joining ---

bool Coordinator::IsAdmitted(ConnectionId connection) const {
  return claims_.contains(connection) ||
         std::any_of(members_.members().begin(), members_.members().end(),
                     [&](const auto& m) { return m.second.connection == connection; });
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
      OnManifest(*member, message.manifest().encoded());
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
      OnReport(*member, message.sent().report());
      break;
    case proto::RankMessage::kConnectFailed:
      if (message.connect_failed().epoch() != epoch_) return;
      OnConnectFailed(*member, DecodeError(message.connect_failed().error()), now);
      break;
    case proto::RankMessage::kNics:
      OnNics(*member, message.nics(), now);
      break;
    case proto::RankMessage::kPublish:
      OnPublish(*member, message.publish(), now);
      break;
    case proto::RankMessage::kWithdraw:
      OnWithdraw(*member, message.withdraw());
      break;
    case proto::RankMessage::kLaneFailed:
      OnLaneFailed(*member, message.lane_failed(), now);
      break;
    case proto::RankMessage::kAlive:
      SettleClaims(
          connection,
          absl::AlreadyExistsError(absl::StrCat("join: ", ToString(member->id), " of job \"",
                                                options_.job, "\" is here already")),
          now);
      break;
    case proto::RankMessage::kLeave: {
      const absl::Status gone = WithScope(
          absl::UnavailableError(absl::StrCat(ToString(member->id), " has left")), Scope::kPeer);
      HangUp(connection, gone, now);
      break;
    }
    default:
      OnRoundMessage(*member, message);
  }
  Advance(now);
}

void Coordinator::OnJoin(ConnectionId connection, const proto::RankMessage& message,
                         absl::Time now) {
  if (IsAdmitted(connection)) {
    return DismissMember(connection, absl::InvalidArgumentError("join: joined already"), now);
  }
  const proto::Join& join = message.join();
  if (absl::Status status = members_.Check(join); !status.ok()) return Dismiss(connection, status);
  const RankId id{static_cast<Role>(join.role()), join.rank()};
  const Member* incumbent = members_.Find(id);
  if (incumbent == nullptr) return Admit(connection, join, now);
  if (incumbent->incarnation == join.incarnation()) {
    // The same process, whose old stream is dead without our knowing it.
    HangUp(incumbent->connection,
           WithScope(absl::UnavailableError(absl::StrCat(ToString(id), " has come back")),
                     Scope::kPeer),
           now);
    return Admit(connection, join, now);
  }
  // A process that is frozen does not answer, and gives its place to the one that replaces it.
  claims_[connection] = {incumbent->connection, now + options_.challenge_timeout, {message}};
  proto::ControllerMessage challenge;
  challenge.mutable_challenge();
  actions_->Send(incumbent->connection, std::move(challenge));
}

void Coordinator::Admit(ConnectionId connection, const proto::Join& join, absl::Time now) {
  Member* member = members_.Admit(connection, join);
  member->join_deadline = now + options_.join_timeout;
  if (join.deadline_ms() > 0) {
    member->join_deadline =
        std::min(member->join_deadline, now + absl::Milliseconds(join.deadline_ms()));
  }
  committed_version_ = std::max(committed_version_, member->committed_version);
  BeginGathering();
  ResolveDoubt(*member, /*everybody_is_here=*/false);
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
      continue;
    }
    for (const proto::RankMessage& message : claim.messages) OnMessage(connection, message, now);
  }
}

void Coordinator::OnManifest(const Member& member, const std::string& encoded) {
  if (member.manifest != nullptr) return;  // What a rank holds never changes.
  actions_->Compute([this, connection = member.connection, id = member.id, encoded] {
    auto manifest = std::make_shared<absl::StatusOr<Manifest>>(DecodeChecked(id, encoded));
    return [this, connection, manifest](absl::Time now) {
      OnManifestChecked(connection, std::move(*manifest), now);
    };
  });
}

void Coordinator::OnManifestChecked(ConnectionId connection, absl::StatusOr<Manifest> manifest,
                                    absl::Time now) {
  Member* member = members_.Find(connection);
  if (member == nullptr || !halted_.ok()) return;
  if (!manifest.ok()) {
    DismissMember(connection, manifest.status(), now);
  } else if (member->manifest == nullptr) {
    member->manifest = std::make_shared<const Manifest>(*std::move(manifest));
  }
  Advance(now);
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
  if (members_.complete()) incomplete_since_ = now;
  members_.Remove(connection);
  std::erase_if(pending_, [&](const PendingPublish& publish) {
    return id.role == Role::kTrainer && publish.trainer == id.rank;
  });
  if (round_ != nullptr) {
    if (id.role == Role::kTrainer) {
      round_->OnTrainerGone(id.rank, why);
    } else {
      round_->OnWorkerGone(id.rank, why);
    }
  }
  BeginGathering();
  SettleClaims(connection, absl::OkStatus(), now);
}

// --- an epoch ---

// What was planned does not hold any more. A round that is going on ends first.
void Coordinator::BeginGathering() {
  phase_ = Phase::kGathering;
  lanes_deadline_ = absl::InfiniteFuture();
  ++plan_ticket_;
}

void Coordinator::TryBeginEpoch(absl::Time now) {
  if (phase_ != Phase::kGathering || round_ != nullptr || now < retry_at_) return;
  if (!members_.complete()) return;
  phase_ = Phase::kPlanning;
  nics_changed_ = false;
  lanes_lost_ += std::exchange(lane_lost_, false) ? 1 : 0;
  std::vector<std::shared_ptr<const Manifest>> trainers, workers;
  for (const auto& [id, member] : members_.members()) {
    (id.role == Role::kTrainer ? trainers : workers).push_back(member.manifest);
  }
  actions_->Compute([this, ticket = ++plan_ticket_, trainers, workers] {
    std::vector<const Manifest*> from, to;
    for (const auto& manifest : trainers) from.push_back(manifest.get());
    for (const auto& manifest : workers) to.push_back(manifest.get());
    auto plan = std::make_shared<absl::StatusOr<Plan>>(MakePlan(from, to));
    return [this, ticket, plan](absl::Time later) { OnPlanned(ticket, std::move(*plan), later); };
  });
}

void Coordinator::OnPlanned(uint64_t ticket, absl::StatusOr<Plan> plan, absl::Time now) {
  if (ticket != plan_ticket_ || phase_ != Phase::kPlanning || !halted_.ok()) return;
  if (!plan.ok()) {
    // A newcomer that does not fit is no reason to lose the others.
    const bool any_newcomer = std::any_of(members_.members().begin(), members_.members().end(),
                                          [](const auto& m) { return !m.second.established; });
    if (!any_newcomer) {
      for (auto& [id, member] : members_.members()) member.established = false;
    }
    DismissNewcomers(plan.status(), now);
    return Advance(now);
  }
  plan_ = *std::move(plan);
  ++epoch_;
  sequence_ = 0;
  ResolveDoubts(/*everybody_is_here=*/true);
  phase_ = Phase::kOffering;
  lanes_deadline_ = now + options_.lanes_timeout;
  for (auto& [id, member] : members_.members()) {
    member.offers.reset();
    member.connected = false;
    SendPlan(member);
  }
}

void Coordinator::SendPlan(const Member& member) {
  const bool trainer = member.id.role == Role::kTrainer;
  const RouteTable& table = (trainer ? plan_.trainers : plan_.workers)[member.id.rank];
  proto::ControllerMessage message;
  proto::Plan* plan = message.mutable_plan();
  plan->set_epoch(epoch_);
  plan->set_plan_hash(plan_.hash);
  plan->set_routes(EncodeRankPlan(table, trainer ? plan_.exchanges[member.id.rank] : Exchange{}));
  std::set<uint32_t> peers;
  for (uint32_t r = 0; r < table.size(); ++r) {
    const uint32_t peer = trainer ? table.worker(r) : table.trainer(r);
    if (!peers.insert(peer).second) continue;
    EncodeLanes({peer, trainer ? members_.MakeLanes(member.id.rank, peer)
                               : members_.MakeLanes(peer, member.id.rank)},
                plan->add_lanes());
  }
  actions_->Send(member.connection, std::move(message));
}

void Coordinator::OnOffers(Member& member, const proto::Offers& offers) {
  if (phase_ != Phase::kOffering || offers.epoch() != epoch_) return;
  member.offers = offers;
  for (const auto& [id, other] : members_.members()) {
    if (!other.offers) return;
  }
  phase_ = Phase::kConnecting;
  SendConnect();
}

// Every rank learns the lanes that end at it; trainers also learn where the workers' buffers and
// their co-owners' mailboxes are.
void Coordinator::SendConnect() {
  for (const auto& [id, member] : members_.members()) {
    proto::ControllerMessage message;
    message.mutable_connect()->set_epoch(epoch_);
    for (const auto& [other_id, other] : members_.members()) {
      const bool same_role = other_id.role == id.role;
      proto::Peer* peer = nullptr;
      for (const proto::Lane& theirs : other.offers->lanes()) {
        if (theirs.peer() != id.rank || theirs.co_owner() != same_role) continue;
        if (peer == nullptr) {
          peer = message.mutable_connect()->add_peers();
          peer->set_rank(other_id.rank);
          *peer->mutable_buffers() = other.offers->buffers();
          peer->set_co_owner(same_role);
          if (same_role) peer->set_mailbox(other.offers->mailbox());
        }
        peer->add_lane_addresses(theirs.address());
      }
    }
    actions_->Send(member.connection, std::move(message));
  }
}

void Coordinator::OnReport(Member& member, const proto::RankReport& report) {
  // A rank has some 40 counters, and every stage once.
  constexpr int kMostEntries = 1024;
  if (report.counters_size() > kMostEntries || report.stages_size() > kMostEntries) return;
  member.report = report;
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
  member.manifest = std::move(changed);
  nics_changed_ = true;
  ReplaceLanes(now);
}

void Coordinator::OnConnected(Member& member, const proto::Connected& connected, absl::Time now) {
  if (phase_ != Phase::kConnecting || connected.epoch() != epoch_) return;
  member.connected = true;
  member.lanes = connected.lanes();
  OnReport(member, connected.report());
  for (const auto& [id, other] : members_.members()) {
    if (!other.connected) return;
  }
  phase_ = Phase::kReady;
  lanes_deadline_ = absl::InfiniteFuture();
  proto::ControllerMessage message;
  message.mutable_established()->set_epoch(epoch_);
  std::set<std::string> groups;
  for (const auto& [id, other] : members_.members()) {
    if (id.role == Role::kWorker) groups.insert(other.group);
  }
  for (const std::string& group : groups) message.mutable_established()->add_groups(group);
  for (auto& [id, other] : members_.members()) {
    other.established = true;
    actions_->Send(other.connection, message);
    TellUndecided(other);
  }
  ReplaceLanes(now);
}

void Coordinator::OnConnectFailed(const Member& member, const absl::Status& why, absl::Time now) {
  if (phase_ != Phase::kOffering && phase_ != Phase::kConnecting) return;
  last_lane_trouble_ = While(ToString(member.id), why);
  RetryLanesLater(now);
  BeginGathering();
}

void Coordinator::OnLaneFailed(Member& member, const proto::LaneFailed& failed, absl::Time now) {
  const bool trainer = member.id.role == Role::kTrainer;
  const bool peer_is_trainer = trainer == failed.co_owner();
  const uint32_t peers = peer_is_trainer ? members_.trainers() : members_.workers();
  if (failed.epoch() != epoch_ || failed.peer() >= peers || (failed.co_owner() && !trainer)) return;
  const absl::Status status = DecodeError(failed.error());
  if (phase_ == Phase::kReady) {
    lane_lost_ = true;
    last_lane_trouble_ = While(ToString(member.id), status);
  } else {
    OnConnectFailed(member, status, now);
  }
  if (round_ == nullptr) return;
  if (failed.co_owner()) {
    round_->OnCoOwnerLost(member.id.rank, failed.peer(), status);
  } else if (trainer) {
    round_->OnLaneFailed(member.id.rank, failed.peer(), status);
  } else {
    round_->OnLaneFailed(failed.peer(), member.id.rank, status);
  }
}

// The first time at once, then at growing distances.
void Coordinator::RetryLanesLater(absl::Time now) {
  constexpr absl::Duration kFirst = absl::Milliseconds(50);
  constexpr uint32_t kMostDoublings = 6;
  const uint32_t troubles = lane_troubles_++;
  if (troubles > 0) retry_at_ = now + kFirst * (1 << std::min(troubles - 1, kMostDoublings));
}

// A lane between two ranks that live is dead, or NICs have changed: everybody gets new lanes.
void Coordinator::ReplaceLanes(absl::Time now) {
  if (!(lane_lost_ || nics_changed_) || round_ != nullptr || phase_ != Phase::kReady) return;
  if (lane_lost_) RetryLanesLater(now);
  BeginGathering();
}

// --- decisions ---

const Decision* Coordinator::FindDecision(const std::string& group, uint64_t epoch,
                                          uint32_t sequence) const {
  const auto decisions = decisions_.find(group);
  if (decisions == decisions_.end()) return nullptr;
  for (const Decision& decision : decisions->second) {
    if (decision.epoch == epoch && decision.sequence == sequence) return &decision;
  }
  return nullptr;
}

bool Coordinator::ShowsOrKnows(const std::string& group, uint64_t version) const {
  return std::any_of(members_.members().begin(), members_.members().end(), [&](const auto& m) {
    return m.first.role == Role::kWorker && m.second.group == group &&
           (m.second.shown_version == version || m.second.committed_version == version);
  });
}

// Tells a worker what became of the update that it voted for. A record, or a member that knows of
// the commit, means COMMIT. Otherwise nobody can have committed if this controller knows all
// decisions, or if it has asked everybody.
void Coordinator::ResolveDoubt(Member& member, bool everybody_is_here) {
  if (!member.doubt) return;
  const proto::Doubt doubt = *member.doubt;
  const proto::Round& round = doubt.round();
  if (round_ != nullptr && IsOf(round, round_->update()) && round_->undecided(member.group)) return;
  const bool committed = FindDecision(member.group, round.epoch(), round.sequence()) != nullptr ||
                         ShowsOrKnows(member.group, doubt.version());
  const bool made_here = round.epoch() >> kEpochCountBits == options_.incarnation;
  if (!committed && !options_.decisions_are_durable && !made_here && !everybody_is_here) return;
  member.doubt.reset();
  proto::ControllerMessage message;
  if (committed != Mutated(Mutation::kDoubtSettledTheWrongWay)) {
    *message.mutable_commit()->mutable_round() = round;
    message.mutable_commit()->set_version(doubt.version());
    member.committed_version = std::max(member.committed_version, doubt.version());
    committed_version_ = std::max(committed_version_, doubt.version());
  } else {
    *message.mutable_abort()->mutable_round() = round;
    message.mutable_abort()->set_begun(true);
    *message.mutable_abort()->mutable_error() = EncodeError(
        absl::AbortedError(absl::StrCat("version ", doubt.version(), " was not committed")));
  }
  actions_->Send(member.connection, std::move(message));
}

void Coordinator::ResolveDoubts(bool everybody_is_here) {
  for (auto& [id, member] : members_.members()) ResolveDoubt(member, everybody_is_here);
}

// Tells a trainer that came back what became of the version that it sent before. One that is told
// to have failed must not be committed after all: others that still wait to publish it are refused.
void Coordinator::TellUndecided(Member& member) {
  const uint64_t version = std::exchange(member.undecided_version, 0);
  if (version == 0) return;
  std::set<std::string> groups;
  for (const auto& [id, other] : members_.members()) {
    if (id.role == Role::kWorker) groups.insert(other.group);
  }
  for (const std::string& group : groups) {
    bool committed = ShowsOrKnows(group, version);
    for (const Decision& decision : decisions_[group]) {
      committed = committed || decision.version == version;
    }
    proto::ControllerMessage message;
    message.mutable_outcome()->set_version(version);
    message.mutable_outcome()->set_group(group);
    message.mutable_outcome()->set_committed(committed);
    const absl::Status lost = absl::UnavailableError(absl::StrCat(
        "version ", version, " was not committed before ", ToString(member.id), " was lost"));
    if (!committed) {
      *message.mutable_outcome()->mutable_error() = EncodeError(lost);
      const auto [given_up, first] = given_up_.try_emplace(version);
      if (first) {
        given_up->second.status = lost;
        for (uint32_t t = 0; t < members_.trainers(); ++t) given_up->second.trainers.insert(t);
      }
      given_up->second.trainers.erase(member.id.rank);
    }
    actions_->Send(member.connection, std::move(message));
  }
}

void Coordinator::Record(const std::string& group) {
  const UpdateId& update = round_->update();
  const Decision decision{update.epoch, update.sequence, update.version, group};
  recordings_[++record_ticket_] = decision;
  if (Mutated(Mutation::kCommitBeforeTheRecord)) {
    decisions_[group].push_back(decision);
    round_->OnRecorded(group, Recorded::kDurable, absl::OkStatus());
  }
  actions_->Record(record_ticket_, decision);
}

void Coordinator::OnRecorded(uint64_t ticket, Recorded recorded, const absl::Status& status,
                             absl::Time now) {
  const auto recording = recordings_.find(ticket);
  if (recording == recordings_.end()) return;
  const Decision decision = recording->second;
  recordings_.erase(recording);
  if (recorded == Recorded::kUnknown) {
    halted_ = While("it is not known whether a decision was recorded", status);
    std::vector<ConnectionId> connections;
    for (const auto& [id, member] : members_.members()) connections.push_back(member.connection);
    for (const auto& [connection, claim] : claims_) connections.push_back(connection);
    members_.members().clear();
    claims_.clear();
    for (const ConnectionId connection : connections) actions_->Close(connection);
    return;
  }
  if (recorded == Recorded::kDurable) {
    std::vector<Decision>& kept = decisions_[decision.group];
    kept.push_back(decision);
    if (kept.size() > kDecisionsKept) kept.erase(kept.begin());
    committed_version_ = std::max(committed_version_, decision.version);
  }
  if (round_ != nullptr && round_->update().epoch == decision.epoch &&
      round_->update().sequence == decision.sequence) {
    round_->OnRecorded(decision.group, recorded, status);
  }
  ResolveDoubts(/*everybody_is_here=*/false);
  Advance(now);
}

// --- updates ---

absl::Status Coordinator::CheckPublish(const Member& member, const proto::Publish& publish) const {
  const uint64_t version = publish.version();
  if (member.id.role != Role::kTrainer || version == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToString(member.id), " cannot publish version ", version));
  }
  // The round's own version is committed by some of its groups, perhaps.
  if (round_ != nullptr && round_->update().version == version) return absl::OkStatus();
  return version > committed_version_ ? absl::OkStatus() : NotLater(version);
}

absl::Status Coordinator::NotLater(uint64_t version) const {
  return absl::FailedPreconditionError(absl::StrCat("publish version ", version, ": version ",
                                                    committed_version_,
                                                    " is committed, and versions only grow"));
}

void Coordinator::RefusePublish(uint32_t trainer, uint64_t version, uint64_t attempt,
                                const absl::Status& status) {
  proto::ControllerMessage message;
  message.mutable_publish_refused()->set_version(version);
  message.mutable_publish_refused()->set_attempt(attempt);
  *message.mutable_publish_refused()->mutable_error() = EncodeError(status);
  ToTrainer(trainer, std::move(message));
}

void Coordinator::OnPublish(const Member& member, const proto::Publish& publish, absl::Time now) {
  const uint32_t trainer = member.id.rank;
  if (absl::Status status = CheckPublish(member, publish); !status.ok()) {
    if (member.id.role == Role::kTrainer)
      RefusePublish(trainer, publish.version(), publish.attempt(), status);
    return;
  }
  const absl::Time deadline =
      now + (publish.deadline_ms() > 0 ? absl::Milliseconds(publish.deadline_ms())
                                       : options_.publish_timeout);
  if (round_ != nullptr && round_->update().version == publish.version() &&
      !round_->published(trainer) && !round_->gone(trainer)) {
    return round_->OnPublish(trainer, publish.attempt(), deadline);
  }
  const auto given_up = given_up_.find(publish.version());
  if (given_up != given_up_.end() && given_up->second.trainers.erase(trainer) > 0) {
    return RefusePublish(trainer, publish.version(), publish.attempt(), given_up->second.status);
  }
  std::erase_if(pending_, [&](const PendingPublish& other) { return other.trainer == trainer; });
  pending_.push_back(
      {trainer, publish.version(), publish.attempt(), publish.digests_off(), deadline, now});
}

void Coordinator::OnWithdraw(const Member& member, const proto::Withdraw& withdraw) {
  if (member.id.role != Role::kTrainer) return;
  std::erase_if(pending_, [&](const PendingPublish& publish) {
    return publish.trainer == member.id.rank && publish.attempt == withdraw.attempt();
  });
  if (round_ != nullptr && round_->update().version == withdraw.version() &&
      round_->published(member.id.rank) && round_->attempt(member.id.rank) == withdraw.attempt()) {
    round_->OnTrainerFailed(member.id.rank, DecodeError(withdraw.error()));
  }
}

absl::Time Coordinator::AbsenceDeadline(const PendingPublish& publish) const {
  return std::max(publish.received, incomplete_since_) + options_.absence_timeout;
}

void Coordinator::RefuseLatePublishes(absl::Time now) {
  const std::string missing =
      phase_ == Phase::kGathering ? members_.DescribeMissing() : std::string();
  std::vector<PendingPublish> kept, late;
  for (const PendingPublish& publish : pending_) {
    const bool absent = !missing.empty() && now >= AbsenceDeadline(publish);
    (absent || now >= publish.deadline ? late : kept).push_back(publish);
  }
  pending_ = std::move(kept);
  for (const PendingPublish& publish : late) {
    RefusePublish(publish.trainer, publish.version, publish.attempt,
                  now >= publish.deadline
                      ? WithScope(absl::DeadlineExceededError(
                                      absl::StrCat("publish version ", publish.version,
                                                   ": still waiting for ", DescribeWaiting())),
                                  Scope::kUpdate)
                      : absl::UnavailableError(absl::StrCat("publish version ", publish.version,
                                                            ": the job is not whole, waiting for ",
                                                            missing)));
  }
}

// Every trainer that has published the version that was asked for first takes part from the start.
void Coordinator::BeginRound(absl::Time now) {
  if (pending_.empty() || phase_ != Phase::kReady || round_ != nullptr) return;
  std::vector<std::string> groups(members_.workers());
  for (const auto& [id, member] : members_.members()) {
    if (id.role == Role::kWorker) groups[id.rank] = member.group;
  }
  const PendingPublish first = pending_.front();
  std::vector<PendingPublish> publishes;
  std::erase_if(pending_, [&](const PendingPublish& publish) {
    if (publish.version != first.version) return false;
    publishes.push_back(publish);
    return true;
  });
  sequence_ = sequence_ % kSequenceMask + 1;  // Never 0.
  const UpdateId update{
      .version = first.version, .sequence = sequence_, .epoch = epoch_, .plan_hash = plan_.hash};
  round_ = std::make_unique<UpdateRound>(update, first.digests_off, first.deadline, &plan_,
                                         std::move(groups), static_cast<RoundActions*>(this));
  round_->Begin(now);
  for (const PendingPublish& publish : publishes) {
    round_->OnPublish(publish.trainer, publish.attempt, publish.deadline);
  }
}

// A renewed buffer is told to every trainer that writes to it, before any START that names it, and
// also if the update is over: a trainer that is not started in it needs the address in a later one.
void Coordinator::TellRenewal(const Member& member, const proto::Ready& ready) {
  if (!ready.has_buffer()) return;
  proto::ControllerMessage message;
  proto::Renewed* renewed = message.mutable_renewed();
  renewed->set_epoch(epoch_);
  renewed->set_worker(member.id.rank);
  renewed->set_buffer_index(ready.buffer_index());
  *renewed->mutable_buffer() = ready.buffer();
  const RouteTable& arrivals = plan_.workers[member.id.rank];
  std::set<uint32_t> trainers;
  for (uint32_t r = 0; r < arrivals.size(); ++r) trainers.insert(arrivals.trainer(r));
  for (const uint32_t trainer : trainers) {
    const bool starts = round_ != nullptr && round_->published(trainer);
    if (Mutated(Mutation::kRenewedAddressToldOnce) && !starts) continue;
    ToTrainer(trainer, message);
  }
}

void Coordinator::OnRoundMessage(Member& member, const proto::RankMessage& message) {
  const uint32_t rank = member.id.rank;
  const bool trainer = member.id.role == Role::kTrainer;
  const auto current = [&](const proto::Round& round) {
    return round_ != nullptr && IsOf(round, round_->update());
  };
  if (message.has_failed() && current(message.failed().round())) {
    const absl::Status status = DecodeError(message.failed().error());
    trainer ? round_->OnTrainerFailed(rank, status) : round_->OnWorkerFailed(rank, status);
  } else if (trainer) {
    return;
  } else if (message.has_shown()) {
    // Also after the round: it is what settles others' doubts.
    member.shown_version = std::max(member.shown_version, message.shown().version());
    OnReport(member, message.shown().report());
    if (current(message.shown().round())) round_->OnShown(rank);
  } else if (message.has_ready() && message.ready().round().epoch() == epoch_) {
    TellRenewal(member, message.ready());
    if (current(message.ready().round())) round_->OnReady(rank, message.ready());
  } else if (message.has_refused() && current(message.refused().round())) {
    round_->OnRefused(rank, DecodeError(message.refused().error()));
  } else if (message.has_arrived() && current(message.arrived().round())) {
    round_->OnArrived(rank);
  }
}

void Coordinator::FinishRoundIfOver() {
  if (round_ == nullptr || !round_->over()) return;
  if (round_->committed_anything()) {
    committed_version_ = std::max(committed_version_, round_->update().version);
    ++updates_committed_;
    lane_troubles_ = 0;
  } else {
    ++updates_aborted_;
    given_up_[round_->update().version] = {round_->unheard_trainers(), round_->abort_status()};
  }
  round_.reset();
  ResolveDoubts(/*everybody_is_here=*/false);
  given_up_.erase(given_up_.begin(), given_up_.upper_bound(committed_version_));
  // What waited behind a later version comes too late.
  for (const PendingPublish& publish : std::exchange(pending_, {})) {
    if (publish.version > committed_version_) {
      pending_.push_back(publish);
    } else {
      RefusePublish(publish.trainer, publish.version, publish.attempt, NotLater(publish.version));
    }
  }
}

// --- time ---

void Coordinator::Advance(absl::Time now) {
  FinishRoundIfOver();
  ReplaceLanes(now);
  TryBeginEpoch(now);
  BeginRound(now);
  FinishRoundIfOver();  // One without routes is over at once.
}

void Coordinator::OnTime(absl::Time now) {
  if (!halted_.ok()) return;
  if (round_ != nullptr) round_->OnTime(now);
  RefuseLatePublishes(now);
  std::vector<ConnectionId> silent;
  for (const auto& [connection, claim] : claims_) {
    if (now >= claim.deadline) silent.push_back(claim.incumbent);
  }
  for (const ConnectionId incumbent : silent) {
    if (members_.Find(incumbent) == nullptr) {
      SettleClaims(incumbent, absl::OkStatus(), now);
      continue;
    }
    HangUp(incumbent,
           WithScope(absl::UnavailableError(
                         absl::StrCat(ToString(members_.Find(incumbent)->id), " does not answer")),
                     Scope::kPeer),
           now);
  }
  if (now >= lanes_deadline_) {
    const absl::Status late = absl::DeadlineExceededError(
        absl::StrCat("no lanes after ", absl::FormatDuration(options_.lanes_timeout)));
    std::vector<ConnectionId> late_ones;
    for (const auto& [id, member] : members_.members()) {
      if (phase_ == Phase::kOffering ? !member.offers.has_value() : !member.connected) {
        late_ones.push_back(member.connection);
      }
    }
    for (const ConnectionId connection : late_ones) {
      HangUp(connection, WithScope(late, Scope::kPeer), now);
    }
  }
  std::vector<std::pair<ConnectionId, absl::Status>> unlucky;
  for (const auto& [id, member] : members_.members()) {
    if (member.established || now < member.join_deadline) continue;
    std::string why =
        absl::StrCat("job \"", options_.job, "\" is not whole: waiting for ", DescribeWaiting());
    if (!last_lane_trouble_.ok()) absl::StrAppend(&why, "; ", last_lane_trouble_.message());
    unlucky.emplace_back(member.connection, absl::DeadlineExceededError(why));
  }
  for (const auto& [connection, why] : unlucky) DismissMember(connection, why, now);
  Advance(now);
}

absl::Time Coordinator::next_deadline() const {
  absl::Time next = lanes_deadline_;
  if (!halted_.ok()) return absl::InfiniteFuture();
  const bool missing = phase_ == Phase::kGathering && !members_.complete();
  if (round_ != nullptr) next = std::min(next, round_->deadline());
  if (phase_ == Phase::kGathering && round_ == nullptr && !missing)
    next = std::min(next, retry_at_);
  for (const PendingPublish& publish : pending_) {
    next = std::min(next, publish.deadline);
    if (missing) next = std::min(next, AbsenceDeadline(publish));
  }
  for (const auto& [connection, claim] : claims_) next = std::min(next, claim.deadline);
  for (const auto& [id, member] : members_.members()) {
    if (!member.established) next = std::min(next, member.join_deadline);
  }
  return next;
}

}  // namespace waybill
