#include "core/control/coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/control/messages.h"
#include "core/plan/plan_codec.h"

namespace waybill {

Coordinator::Coordinator(CoordinatorOptions options, DecisionLog* log, Outbox* outbox)
    : options_(std::move(options)),
      log_(log),
      outbox_(outbox),
      members_(options_.job, options_.token, options_.trainers, options_.workers) {
  if (log_ == nullptr) return;
  epoch_ = log_->last_epoch();
  for (const Decision& decision : log_->decisions()) {
    committed_version_ = std::max(committed_version_, decision.version);
  }
}

Coordinator::~Coordinator() = default;

// --- sending ---

void Coordinator::ToRank(RankId id, proto::ControllerMessage message) {
  if (const Member* member = members_.Find(id)) {
    outbox_->Send(member->connection, std::move(message));
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
  outbox_->Send(connection, std::move(message));
  outbox_->Close(connection);
}

bool Coordinator::AnyNewcomer() const {
  return std::any_of(members_.members().begin(), members_.members().end(),
                     [](const auto& m) { return !m.second.established; });
}

// Who joins is told in time that the job does not become whole. Who was part of a whole job waits
// for the others to come back, and goes on showing what it has.
void Coordinator::DismissNewcomers() {
  const absl::Status late = absl::DeadlineExceededError(
      absl::StrCat("job \"", options_.job, "\" is not whole after ",
                   absl::FormatDuration(options_.join_timeout), ": missing ", DescribeWaiting()));
  std::vector<ConnectionId> newcomers;
  for (const auto& [id, member] : members_.members()) {
    if (!member.established) newcomers.push_back(member.connection);
  }
  for (const ConnectionId connection : newcomers) {
    members_.Remove(connection);
    Dismiss(connection, late);
  }
  phase_ = Phase::kGathering;
  join_deadline_ = absl::InfiniteFuture();
}

void Coordinator::DismissAll(const absl::Status& status) {
  for (const auto& [id, member] : members_.members()) Dismiss(member.connection, status);
  members_.members().clear();
  doubts_.clear();
  phase_ = Phase::kGathering;
  join_deadline_ = absl::InfiniteFuture();
}

// --- joining ---

void Coordinator::OnMessage(ConnectionId connection, const proto::RankMessage& message,
                            absl::Time now) {
  if (message.kind_case() == proto::RankMessage::kJoin) {
    return OnJoin(connection, message.join(), now);
  }
  Member* member = members_.Find(connection);
  if (member == nullptr) return;  // Dismissed, and its last words were on the way.
  switch (message.kind_case()) {
    case proto::RankMessage::kManifest:
      if (absl::Status status = members_.AddManifestPart(*member, message.manifest());
          !status.ok()) {
        members_.Remove(connection);
        Dismiss(connection, status);
      }
      BeginEpochIfComplete(now);
      return;
    case proto::RankMessage::kOffers:
      return OnOffers(*member, message.offers());
    case proto::RankMessage::kConnected:
      return OnConnected(*member, message.connected(), now);
    case proto::RankMessage::kNics:
      return OnNics(*member, message.nics(), now);
    case proto::RankMessage::kPublish:
      return OnPublish(*member, message.publish(), now);
    case proto::RankMessage::kLeave:
      outbox_->Close(connection);
      return OnGone(connection, now);
    default:
      return OnRoundMessage(*member, message, now);
  }
}

void Coordinator::OnJoin(ConnectionId connection, const proto::Join& join, absl::Time now) {
  const absl::StatusOr<Member*> member = members_.Join(connection, join);
  if (!member.ok()) return Dismiss(connection, member.status());
  if (join.doubtful_sequence() != 0) {
    doubts_[join.rank()] = {join.doubtful_epoch(), join.doubtful_sequence(),
                            join.doubtful_version()};
  }
  if ((*member)->id.role == Role::kWorker) {
    committed_version_ = std::max(committed_version_, join.shown_version());
  }
  if (join_deadline_ == absl::InfiniteFuture()) join_deadline_ = now + options_.join_timeout;
}

void Coordinator::OnGone(ConnectionId connection, absl::Time now) {
  const Member* member = members_.Find(connection);
  if (member == nullptr) return;
  const RankId id = member->id;
  members_.Remove(connection);
  if (id.role == Role::kWorker) doubts_.erase(id.rank);
  if (id.role == Role::kTrainer && unquiet_.erase(id.rank) > 0) must_fence_ = true;
  const absl::Status gone =
      WithScope(absl::UnavailableError(absl::StrCat(ToString(id), " is gone: its stream ended")),
                Scope::kPeer);
  if (round_ != nullptr) {
    if (id.role == Role::kTrainer) {
      must_fence_ = must_fence_ || round_->unquiet_trainers().contains(id.rank);
      round_->OnTrainerGone(id.rank, gone);
    } else {
      round_->OnWorkerGone(id.rank, gone);
    }
    FinishRoundIfOver(now);
  }
  for (const PendingPublish& publish : std::exchange(pending_, {})) {
    RefusePublish(publish.trainer, publish.version, gone);
  }
  phase_ = Phase::kGathering;
  join_deadline_ = AnyNewcomer() ? now + options_.join_timeout : absl::InfiniteFuture();
}

void Coordinator::BeginEpochIfComplete(absl::Time) {
  if (phase_ != Phase::kGathering || round_ != nullptr || !members_.complete()) return;
  if (absl::Status status = BeginEpoch(); !status.ok()) DismissAll(status);
}

absl::Status Coordinator::BeginEpoch() {
  WAYBILL_ASSIGN_OR_RETURN(plan_, members_.MakePlan());
  nics_changed_ = false;
  ++epoch_;
  sequence_ = 0;
  if (log_ != nullptr) WAYBILL_RETURN_IF_ERROR(log_->BeginEpoch(epoch_));
  ResolveDoubts();
  phase_ = Phase::kOffering;
  for (auto& [id, member] : members_.members()) {
    member.offers.reset();
    member.connected = false;
    SendPlan(member);
  }
  return absl::OkStatus();
}

// Everybody has answered. A record of the decision, or one member that shows the version, means
// that the group committed; else nobody can have.
void Coordinator::ResolveDoubts() {
  for (const auto& [worker, doubt] : std::exchange(doubts_, {})) {
    const std::string& group = members_.Find(RankId{Role::kWorker, worker})->group;
    bool committed = false;
    if (log_ != nullptr) {
      for (const Decision& decision : log_->decisions()) {
        committed = committed || (decision.epoch == doubt.epoch && decision.group == group &&
                                  decision.sequence == doubt.sequence);
      }
    }
    for (const auto& [id, member] : members_.members()) {
      committed = committed || (id.role == Role::kWorker && member.group == group &&
                                member.shown_version == doubt.version);
    }
    proto::ControllerMessage message;
    if (committed) {
      message.mutable_commit()->set_sequence(doubt.sequence);
      committed_version_ = std::max(committed_version_, doubt.version);
    } else {
      message.mutable_abort()->set_sequence(doubt.sequence);
      message.mutable_abort()->set_begun(true);
    }
    ToWorker(worker, std::move(message));
  }
}

void Coordinator::SendPlan(const Member& member) {
  const bool trainer = member.id.role == Role::kTrainer;
  const RouteTable& table = (trainer ? plan_.trainers : plan_.workers)[member.id.rank];
  const std::string routes =
      EncodeRankPlan(table, trainer ? plan_.exchanges[member.id.rank] : Exchange{});
  proto::ControllerMessage message;
  message.mutable_plan()->set_epoch(epoch_);
  message.mutable_plan()->set_plan_hash(plan_.hash);
  message.mutable_plan()->set_table_bytes(routes.size());
  std::set<uint32_t> peers;
  for (uint32_t r = 0; r < table.size(); ++r) {
    const uint32_t peer = trainer ? table.worker(r) : table.trainer(r);
    if (!peers.insert(peer).second) continue;
    EncodeLanes({peer, trainer ? members_.MakeLanes(member.id.rank, peer)
                               : members_.MakeLanes(peer, member.id.rank)},
                message.mutable_plan()->add_lanes());
  }
  outbox_->Send(member.connection, std::move(message));
  SendInParts(routes, [&](proto::Part part) {
    proto::ControllerMessage with_part;
    *with_part.mutable_routes() = std::move(part);
    outbox_->Send(member.connection, std::move(with_part));
  });
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

// Every rank learns the lanes that end at it, and trainers where the workers' buffers are, and
// their co-owners' mailboxes.
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
    outbox_->Send(member.connection, std::move(message));
  }
}

// A NIC that went away, or came back: the lanes are planned anew between two updates.
void Coordinator::OnNics(Member& member, const proto::Nics& nics, absl::Time now) {
  if (!member.manifest) return;
  std::vector<Nic> usable;
  for (const proto::UsableNic& nic : nics.nics()) {
    usable.push_back({nic.name(), nic.rail(), nic.numa_node(), nic.bytes_per_second()});
  }
  if (usable == member.manifest->nics()) return;
  member.manifest->nics() = std::move(usable);
  nics_changed_ = true;
  ReplaceLanes(now);
}

void Coordinator::OnConnected(Member& member, const proto::Connected& connected, absl::Time now) {
  if (phase_ != Phase::kConnecting || connected.epoch() != epoch_) return;
  member.connected = true;
  member.lanes = connected;
  for (const auto& [id, other] : members_.members()) {
    if (!other.connected) return;
  }
  phase_ = Phase::kReady;
  join_deadline_ = absl::InfiniteFuture();
  proto::ControllerMessage message;
  message.mutable_established()->set_epoch(epoch_);
  std::set<std::string> groups;
  for (const auto& [id, other] : members_.members()) {
    if (id.role == Role::kWorker) groups.insert(other.group);
  }
  for (const std::string& group : groups) message.mutable_established()->add_groups(group);
  for (auto& [id, other] : members_.members()) {
    other.established = true;
    outbox_->Send(other.connection, message);
  }
  ReplaceLanes(now);
  BeginRoundIfQuiet(now);
}

// A lane between two ranks that live is dead: everybody gets new ones, by what still works.
void Coordinator::ReplaceLanes(absl::Time now) {
  if (!(lane_lost_ || nics_changed_) || round_ != nullptr || phase_ != Phase::kReady) return;
  lanes_lost_ += std::exchange(lane_lost_, false) ? 1 : 0;
  phase_ = Phase::kGathering;
  BeginEpochIfComplete(now);
}

// --- updates ---

absl::Status Coordinator::CheckPublish(const proto::Publish& publish) const {
  const auto refuse = [&](auto... why) {
    return absl::FailedPreconditionError(
        absl::StrCat("publish version ", publish.version(), ": ", why...));
  };
  // Who is gone has failed its own groups; the others' update goes on.
  if (round_ != nullptr && round_->update().version == publish.version()) return absl::OkStatus();
  const bool reconnecting = phase_ != Phase::kGathering && !AnyNewcomer();
  if (phase_ != Phase::kReady && !reconnecting) {
    return absl::UnavailableError(absl::StrCat("publish version ", publish.version(),
                                               ": the job is not whole, waiting for ",
                                               DescribeWaiting()));
  }
  if (publish.version() <= committed_version_) {
    return refuse("version ", committed_version_, " is committed, and versions only grow");
  }
  if (!pending_.empty() && pending_.front().version != publish.version()) {
    return refuse("version ", pending_.front().version, " is being published");
  }
  if (round_ != nullptr) {
    return refuse("version ", round_->update().version, " is being published");
  }
  return absl::OkStatus();
}

void Coordinator::RefusePublish(uint32_t trainer, uint64_t version, const absl::Status& status) {
  proto::ControllerMessage message;
  message.mutable_publish_refused()->set_version(version);
  *message.mutable_publish_refused()->mutable_error() = EncodeError(status);
  ToTrainer(trainer, std::move(message));
}

void Coordinator::OnPublish(const Member& member, const proto::Publish& publish, absl::Time now) {
  if (member.id.role != Role::kTrainer) return;
  if (absl::Status status = CheckPublish(publish); !status.ok()) {
    return RefusePublish(member.id.rank, publish.version(), status);
  }
  const absl::Time deadline =
      now + (publish.deadline_ms() > 0 ? absl::Milliseconds(publish.deadline_ms())
                                       : options_.publish_timeout);
  if (round_ != nullptr) {
    round_->OnPublish(member.id.rank, deadline);
    return FinishRoundIfOver(now);
  }
  if (late_.version == publish.version() && late_.trainers.erase(member.id.rank) > 0) {
    return RefusePublish(member.id.rank, publish.version(), late_.status);
  }
  pending_.push_back({member.id.rank, publish.version(), publish.digests_off(), deadline});
  BeginRoundIfQuiet(now);
}

// What waited for lanes, or for quiet, until its time was over.
void Coordinator::RefuseLatePublishes(absl::Time now) {
  std::erase_if(pending_, [&](const PendingPublish& publish) {
    if (now < publish.deadline) return false;
    RefusePublish(publish.trainer, publish.version,
                  absl::DeadlineExceededError(absl::StrCat(
                      "publish version ", publish.version, ": still waiting for ",
                      phase_ == Phase::kReady ? std::string("the last update's writes to end")
                                              : DescribeWaiting())));
    return true;
  });
}

// The next update waits until no trainer of the last one is writing any more; who is silent for too
// long is fenced off by the workers.
void Coordinator::BeginRoundIfQuiet(absl::Time now) {
  if (pending_.empty() || phase_ != Phase::kReady) return;
  if (!unquiet_.empty() && now < quiescence_deadline_) return;
  if (!std::exchange(unquiet_, {}).empty()) must_fence_ = true;
  std::vector<std::string> groups(members_.workers());
  for (const auto& [id, member] : members_.members()) {
    if (id.role == Role::kWorker) groups[id.rank] = member.group;
  }
  sequence_ = (sequence_ + 1) & kSequenceMask;
  const std::vector<PendingPublish> publishes = std::exchange(pending_, {});
  const UpdateId update{.version = publishes.front().version,
                        .sequence = sequence_,
                        .epoch = epoch_,
                        .plan_hash = plan_.hash};
  round_ = std::make_unique<UpdateRound>(update, publishes.front().digests_off,
                                         publishes.front().deadline, &plan_, std::move(groups),
                                         static_cast<RoundActions*>(this));
  round_->Begin(std::exchange(must_fence_, false), now);
  for (const PendingPublish& publish : publishes) {
    round_->OnPublish(publish.trainer, publish.deadline);
  }
  FinishRoundIfOver(now);
}

absl::Status Coordinator::Record(const std::string& group) {
  if (log_ == nullptr) return absl::OkStatus();
  const UpdateId& update = round_->update();
  return log_->Commit({update.epoch, update.sequence, update.version, group});
}

void Coordinator::OnFailed(const Member& member, const proto::Failed& failed) {
  const absl::Status status = DecodeError(failed.error());
  if (!failed.lane() && member.id.role == Role::kTrainer) {
    round_->OnTrainerFailed(member.id.rank, status);
  } else if (!failed.lane()) {
    round_->OnWorkerFailed(member.id.rank, status);
  } else if (failed.co_owner()) {
    round_->OnCoOwnerLost(member.id.rank, failed.peer(), status);
  } else if (member.id.role == Role::kTrainer) {
    round_->OnLaneFailed(member.id.rank, failed.peer(), status);
  } else {
    round_->OnLaneFailed(failed.peer(), member.id.rank, status);
  }
}

void Coordinator::OnRoundMessage(Member& member, const proto::RankMessage& message,
                                 absl::Time now) {
  const uint32_t rank = member.id.rank;
  const bool trainer = member.id.role == Role::kTrainer;
  const auto of_round = [&](uint32_t sequence) {
    return round_ != nullptr && round_->update().sequence == sequence;
  };
  if (message.has_sent() && trainer) {
    unquiet_.erase(rank);
    member.sent_bytes += message.sent().counts().bytes();
    if (of_round(message.sent().sequence())) round_->OnSent(rank);
  } else if (message.has_stopped() && trainer) {
    unquiet_.erase(rank);
    if (of_round(message.stopped().sequence())) round_->OnStopped(rank);
  } else if (message.has_shown() && !trainer) {
    if (of_round(message.shown().sequence())) {
      member.shown_version = round_->update().version;
      round_->OnShown(rank);
    }
  } else if (message.has_ready() && !trainer && of_round(message.ready().sequence())) {
    round_->OnReady(rank, message.ready());
  } else if (message.has_refused() && !trainer && of_round(message.refused().sequence())) {
    round_->OnRefused(rank, DecodeError(message.refused().error()));
  } else if (message.has_arrived() && !trainer && of_round(message.arrived().sequence())) {
    round_->OnArrived(rank);
  } else if (message.has_failed()) {
    lane_lost_ = lane_lost_ || (message.failed().lane() && phase_ == Phase::kReady);
    if (round_ != nullptr) OnFailed(member, message.failed());
  }
  FinishRoundIfOver(now);
  ReplaceLanes(now);
  BeginRoundIfQuiet(now);
}

void Coordinator::FinishRoundIfOver(absl::Time now) {
  if (round_ == nullptr || !round_->over()) return;
  if (round_->committed_anything()) {
    committed_version_ = std::max(committed_version_, round_->update().version);
    ++updates_committed_;
  } else {
    ++updates_aborted_;
    late_ = {round_->update().version, round_->unpublished_trainers(), round_->abort_status()};
  }
  for (const uint32_t trainer : round_->unquiet_trainers()) {
    if (members_.Find(RankId{Role::kTrainer, trainer}) != nullptr) {
      unquiet_.insert(trainer);
    } else {
      must_fence_ = true;
    }
  }
  quiescence_deadline_ = now + options_.quiescence_timeout;
  round_.reset();
  BeginEpochIfComplete(now);
}

// --- time ---

void Coordinator::OnTime(absl::Time now) {
  if (round_ != nullptr) {
    round_->OnTime(now);
    FinishRoundIfOver(now);
  }
  RefuseLatePublishes(now);
  ReplaceLanes(now);
  BeginRoundIfQuiet(now);
  if (now >= join_deadline_) DismissNewcomers();
}

absl::Time Coordinator::next_deadline() const {
  absl::Time next = join_deadline_;
  if (round_ != nullptr) next = std::min(next, round_->deadline());
  if (!pending_.empty()) next = std::min(next, quiescence_deadline_);
  for (const PendingPublish& publish : pending_) next = std::min(next, publish.deadline);
  return next;
}

}  // namespace waybill
