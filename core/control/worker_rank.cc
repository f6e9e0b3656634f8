// SPDX-License-Identifier: Apache-2.0

#include "core/control/worker_rank.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/plan/plan_check.h"
#include "core/protocol/message_codec.h"
#include "core/protocol/timeouts.h"
#include "core/tensor/verbatim.h"

namespace waybill {

absl::StatusOr<std::unique_ptr<WorkerRank>> WorkerRank::Create(
    SessionOptions options, const ReceiverEngineOptions& engine, const SenderEngineOptions& lending,
    Manifest manifest, const std::vector<MemorySpan>& user_regions, std::set<Notice::Kind> asked,
    Fabric* fabric, RankActions* actions) {
  options.manifest = EncodeWithNics(manifest, *fabric);
  options.nics = ListNics(*fabric);
  options.mode = engine.mode;
  std::unique_ptr<WorkerRank> rank(new WorkerRank(std::move(options), engine.chunk_bytes, lending,
                                                  manifest, std::move(asked), fabric, actions));
  WAYBILL_ASSIGN_OR_RETURN(rank->engine_,
                           ReceiverEngine::Create(fabric, std::move(manifest), user_regions, engine,
                                                  [rank = rank.get()](const ReceiverEvent& event) {
                                                    rank->events_.push_back(event);
                                                  }));
  return rank;
}

WorkerRank::WorkerRank(SessionOptions options, uint64_t chunk_bytes,
                       const SenderEngineOptions& lending, Manifest manifest,
                       std::set<Notice::Kind> asked, Fabric* fabric, RankActions* actions)
    : manifest_(std::move(manifest)),
      mode_(options.mode),
      chunk_bytes_(chunk_bytes),
      fabric_(*fabric),
      actions_(*actions),
      nics_(fabric),
      session_(std::move(options), std::move(asked), this),
      lending_(lending) {
  fabric_events_.reserve(256);
}

void WorkerRank::Join(uint64_t token, absl::Time deadline, absl::Time now) {
  session_.Join(token, deadline, now);
  HandleEvents(now);
}

void WorkerRank::Fetch(uint64_t token, uint64_t at_least, absl::Time deadline, absl::Time now) {
  session_.Fetch(token, at_least, deadline, now);
  Step(now);
}

void WorkerRank::Answer(Notice::Kind kind, const UpdateId& update, const absl::Status& answer,
                        absl::Time now) {
  session_.Answer(kind, update, answer);
  HandleEvents(now);
}

absl::Status WorkerRank::Pause() {
  WAYBILL_RETURN_IF_ERROR(engine_->Pause());
  session_.RefuseUpdates(engine_->MayReceive());
  return absl::OkStatus();
}

void WorkerRank::Resume(bool kept) {
  engine_->Resume(kept);
  session_.RefuseUpdates(engine_->MayReceive());
}

void WorkerRank::Leave(uint64_t token, absl::Time now) {
  session_.Leave(token, now);
  HandleEvents(now);
}

void WorkerRank::OnStreamOpen(absl::Time now) {
  session_.OnStreamOpen(now);
  HandleEvents(now);
}

void WorkerRank::OnStreamEnd(const absl::Status& status, absl::Time now) {
  now_ = now;
  session_.OnStreamEnd(status, now);
  HandleEvents(now);
}

void WorkerRank::OnMessage(const proto::ControllerMessage& message, absl::Time now) {
  now_ = now;
  session_.OnMessage(message, now);
  HandleEvents(now);
}

void WorkerRank::Step(absl::Time now) {
  now_ = now;
  if (relay_ && now >= relay_->stop_now_at) {
    relay_->stop_now_at = absl::InfiniteFuture();
    RelayingEngine().StopNow();
  }
  StepEngines(now);
  HandleEvents(now);
  if (auto nics = nics_.Look(now)) {
    session_.OnNics(*std::move(nics));
    session_.Report();
  }
  if (now >= session_.next_deadline()) session_.OnTime(now);
  HandleEvents(now);
}

void WorkerRank::StepEngines(absl::Time now) {
  fabric_events_.clear();
  fabric_.Poll(fabric_events_);
  for (const FabricEvent& event : fabric_events_) {
    if (engine_->Handle(event)) continue;
    for (auto& [group, loan] : loans_) {
      if (loan.sender->engine().Handle(event)) break;
    }
  }
  engine_->Step(now);
  ReleaseArrivedChunks();
  for (bool again = !loans_.empty(); again;) {
    const uint64_t before = staging_->slots().changes();
    for (auto& [group, loan] : loans_) loan.sender->engine().Step();
    // Another engine may be waiting for a slot that this engine has freed.
    again = loans_.size() > 1 && staging_->slots().changes() != before;
  }
}

absl::Time WorkerRank::next_deadline() const {
  if (!events_.empty() || !loan_events_.empty()) return absl::InfinitePast();
  return std::min(session_.next_deadline(), relay_ ? relay_->stop_now_at : absl::InfiniteFuture());
}

WorkerReport WorkerRank::report() const {
  WorkerReport report = report_;
  report.arrived_bytes = arrived_bytes();
  report.stages = engine_->stages();
  report.counts = engine_->counts();
  report.in_doubt = session_.in_doubt();
  report.catching_up = session_.catching_up();
  return report;
}

// --- commands of the session ---

void WorkerRank::Tell(Notice notice) {
  ++report_changes_;
  actions_.Tell(std::move(notice));
}

absl::StatusOr<proto::Offers> WorkerRank::SetPlan(TermPlan plan) {
  if (plan.group != session_.group()) return SetLoan(std::move(plan));
  if (plan.relay) return SetRelay(std::move(plan));
  engine_->RelayBy(nullptr);
  relay_.reset();
  ForgetGroup(plan.group);
  // An impostor of the controller must not get at memory beyond the regions of this rank.
  const bool lent = !plan.lender.empty();
  WAYBILL_RETURN_IF_ERROR(
      CheckRankPlan(plan.routes, lent ? Verbatim(manifest_) : manifest_, Role::kWorker));
  connected_ = false;
  report_.planned_bytes = plan.routes.routes.total_bytes();
  ++report_changes_;
  WAYBILL_ASSIGN_OR_RETURN(const std::vector<LaneOffer> lanes,
                           engine_->SetPlan(std::move(plan.routes.routes), plan.hash, plan.lanes));
  WAYBILL_ASSIGN_OR_RETURN(const std::vector<BufferAddress> buffers, engine_->Describe());
  proto::Offers offers;
  for (const LaneOffer& lane : lanes) {
    proto::Lane* out = offers.add_lanes();
    out->set_peer(lane.peer);
    out->set_address(lane.address);
  }
  offered_generations_.clear();
  for (const BufferAddress& buffer : buffers) {
    *offers.add_buffers() = EncodeBuffer(buffer);
    offered_generations_.push_back(buffer.generation);
  }
  return offers;
}

// Takes a snapshot of the shown version, which must be the version to lend.
absl::StatusOr<proto::Offers> WorkerRank::SetLoan(TermPlan plan) {
  WAYBILL_RETURN_IF_ERROR(CheckRankPlan(plan.routes, Verbatim(manifest_), Role::kTrainer));
  ForgetGroup(plan.group);
  if (mode_ == Mode::kInPlace) {
    return absl::FailedPreconditionError("its memory is written directly, and is not lent");
  }
  WAYBILL_ASSIGN_OR_RETURN(Snapshot snapshot,
                           TakeSnapshot(absl::StrCat("group ", plan.group, ", which catches up")));
  if (snapshot.version() != plan.lent_version) {
    return absl::FailedPreconditionError(
        absl::StrCat("it shows version ", snapshot.version(), ", not ", plan.lent_version));
  }
  WAYBILL_RETURN_IF_ERROR(MakeStaging());
  std::vector<MemorySpan> sources = Spans(snapshot);
  const std::string group = plan.group;
  GroupSender& sender = MakeSender(group);
  loans_.at(group).snapshot = std::move(snapshot);
  absl::StatusOr<proto::Offers> offers = sender.SetPlan(std::move(plan), std::move(sources));
  // The session has no such term, so it will not end the loan.
  if (!offers.ok()) ForgetGroup(group);
  return offers;
}

absl::Status WorkerRank::MakeStaging() {
  if (staging_ != nullptr) return absl::OkStatus();
  WAYBILL_ASSIGN_OR_RETURN(staging_, StagingArea::Create(&fabric_, lending_));
  return absl::OkStatus();
}

GroupSender& WorkerRank::MakeSender(const std::string& group) {
  Loan& loan = loans_[group];
  loan.sender = std::make_unique<GroupSender>(
      &fabric_, staging_.get(),
      [this, group](const SenderEvent& event) { loan_events_.emplace_back(group, event); });
  return *loan.sender;
}

std::vector<MemorySpan> WorkerRank::Spans(const Snapshot& snapshot) const {
  std::vector<MemorySpan> spans;
  for (uint32_t r = 0; r < manifest_.region_count(); ++r) {
    const absl::Span<const std::byte> region = snapshot.region(r);
    // The spans are only read.
    spans.push_back({.kind = engine_->shown_kind(r),
                     .data = const_cast<std::byte*>(region.data()),
                     .size_bytes = region.size()});
  }
  return spans;
}

// --- relaying ---

absl::StatusOr<proto::Offers> WorkerRank::SetRelay(TermPlan plan) {
  if (relay_ || connected_) {
    return absl::FailedPreconditionError("a plan of relays after the term's lanes");
  }
  WAYBILL_RETURN_IF_ERROR(CheckRankPlan(plan.routes, manifest_, Role::kTrainer));
  WAYBILL_ASSIGN_OR_RETURN(RelayedRoutes routes,
                           RelayedRoutes::Create(engine_->arrivals(), chunk_bytes_,
                                                 plan.routes.routes, lending_.chunk_bytes));
  WAYBILL_RETURN_IF_ERROR(MakeStaging());
  relay_ = {.routes = std::move(routes), .update = {}};
  engine_->RelayBy(&relay_->routes);
  // This worker's memory may be paused now, so each update sets the sources.
  GroupSender& sender = MakeSender(plan.group);
  return sender.SetPlan(std::move(plan), std::vector<MemorySpan>(manifest_.region_count()));
}

SenderEngine& WorkerRank::RelayingEngine() { return loans_.at(session_.group()).sender->engine(); }

// Relays an update as it arrives, or a version that is shown already from the shown memory.
absl::Status WorkerRank::StartRelaying(const UpdateId& update, const proto::Start& start) {
  if (relay_->sending) {
    relay_->next = {update, start};
    return absl::OkStatus();
  }
  Loan& loan = loans_.at(session_.group());
  relay_->arriving = receiving_ == update;
  std::vector<MemorySpan> sources;
  std::optional<Snapshot> snapshot;
  if (receiving_ == update) {
    sources = engine_->Receiving();
  } else {
    WAYBILL_ASSIGN_OR_RETURN(snapshot, TakeSnapshot("others of the group"));
    if (snapshot->version() != update.version) {
      return absl::FailedPreconditionError(absl::StrCat("it shows version ", snapshot->version()));
    }
    sources = Spans(*snapshot);
  }
  WAYBILL_RETURN_IF_ERROR(loan.sender->engine().SetSources(std::move(sources)));
  WAYBILL_RETURN_IF_ERROR(
      loan.sender->Start(update, start, NonFiniteRule::kKept,
                         relay_->arriving ? SourcesAre::kArriving : SourcesAre::kThere));
  loan.snapshot = std::move(snapshot);
  relay_->update = update;
  relay_->sending = true;
  relay_->received = relay_->routes.updates();
  relay_->released = relay_->given = 0;
  ReleaseArrivedChunks();
  return absl::OkStatus();
}

void WorkerRank::ReleaseArrivedChunks() {
  if (!relay_ || !relay_->sending || !relay_->arriving) return;
  if (relay_->received != relay_->routes.updates()) return;  // The next update has begun to arrive.
  SenderEngine& engine = RelayingEngine();
  const auto chunks = relay_->routes.chunks();
  while (relay_->released < chunks.size()) engine.Release(chunks[relay_->released++]);
  const auto digests = relay_->routes.digests();
  for (; relay_->given < digests.size(); ++relay_->given) {
    engine.GiveDigest(digests[relay_->given].route, digests[relay_->given].digest);
  }
}

// Stops relaying. Lanes on which writes do not end are closed after a while, in Step().
void WorkerRank::StopRelaying(uint64_t epoch, uint32_t sequence) {
  stopping_.insert({epoch, sequence});
  if (!relay_) return;
  if (relay_->next && relay_->next->update.epoch == epoch &&
      relay_->next->update.sequence == sequence) {
    relay_->next.reset();
  }
  if (!IsRelaying(epoch, sequence)) return;
  relay_->stop_now_at = now_ + kQuiescenceTimeout;
  RelayingEngine().Abort(sequence);
}

absl::Status WorkerRank::SetBufferAddress(const std::string& group, uint32_t worker,
                                          uint32_t buffer_index, const proto::Buffer& buffer) {
  WAYBILL_ASSIGN_OR_RETURN(GroupSender * sender, FindSender(group));
  return sender->SetBufferAddress(worker, buffer_index, buffer);
}

absl::Status WorkerRank::StartSending(const std::string& group, const UpdateId& update,
                                      const proto::Start& start) {
  WAYBILL_ASSIGN_OR_RETURN(GroupSender * sender, FindSender(group));
  if (group == session_.group()) return StartRelaying(update, start);
  return sender->Start(update, start, NonFiniteRule::kKept);
}

absl::StatusOr<GroupSender*> WorkerRank::FindSender(const std::string& group) {
  const auto loan = loans_.find(group);
  if (loan == loans_.end()) return absl::FailedPreconditionError("the term has no such routes");
  return loan->second.sender.get();
}

void WorkerRank::ForgetGroup(const std::string& group) {
  loans_.erase(group);
  std::erase_if(loan_events_, [&](const auto& event) { return event.first == group; });
}

absl::Status WorkerRank::Connect(const std::string& group, const proto::Connect& connect) {
  if (group != session_.group() || connect.relay()) {
    WAYBILL_ASSIGN_OR_RETURN(GroupSender * sender, FindSender(group));
    return sender->Connect(connect);
  }
  std::vector<SenderAddress> senders;
  for (const proto::Peer& peer : connect.peers()) {
    senders.push_back({peer.rank(), {peer.lane_addresses().begin(), peer.lane_addresses().end()}});
  }
  return engine_->Connect(senders);
}

void WorkerRank::Prepare(const UpdateId& update, bool digests_off, absl::Time deadline) {
  report_.version = update.version;
  arrived_before_ = engine_->counts().arrived_bytes;
  ++report_changes_;
  engine_->Prepare(update, digests_off ? Digests::kOff : Digests::kOn, deadline);
}

// --- events of the engine ---

void WorkerRank::HandleEvents(absl::Time now) {
  while (!events_.empty()) {
    const ReceiverEvent event = std::move(events_.front());
    events_.pop_front();
    Handle(event, now);
  }
  while (!loan_events_.empty()) {
    const auto [group, event] = std::move(loan_events_.front());
    loan_events_.pop_front();
    Handle(group, event);
  }
  ReportStoppedRelay();
}

void WorkerRank::ReportStoppedRelay() {
  std::erase_if(stopping_, [&](const auto& update) {
    const auto [epoch, sequence] = update;
    if (IsRelaying(epoch, sequence)) return false;
    session_.OnRelayStopped(epoch, sequence);
    return true;
  });
}

void WorkerRank::Handle(const std::string& group, const SenderEvent& event) {
  Loan& loan = loans_.at(group);
  const bool relayed = group == session_.group();
  switch (event.kind) {
    case SenderEvent::Kind::kConnected: {
      std::vector<LaneReport> lanes = loan.sender->engine().ReportLanes();
      for (LaneReport& lane : lanes) lane.relay = relayed;
      return session_.OnConnected(group, lanes, relayed);
    }
    case SenderEvent::Kind::kPeerFailed:
      return session_.OnLaneFailed(group, event.peer, event.status);
    case SenderEvent::Kind::kRefused:
      return session_.OnSendingFailed(event.update, event.status);
    case SenderEvent::Kind::kSent:
    case SenderEvent::Kind::kStopped:
      loan.snapshot.reset();
      if (relayed) StartNextRelay();
      return;
  }
}

void WorkerRank::StartNextRelay() {
  relay_->sending = false;
  relay_->stop_now_at = absl::InfiniteFuture();
  const std::optional<RelayStart> next = std::exchange(relay_->next, std::nullopt);
  if (!next) return;
  const absl::Status status = StartRelaying(next->update, next->start);
  if (!status.ok()) session_.OnSendingFailed(next->update, status);
}

void WorkerRank::Handle(const ReceiverEvent& event, absl::Time now) {
  ++report_changes_;
  switch (event.kind) {
    case ReceiverEvent::Kind::kConnected:
      connected_ = true;
      report_.lanes = engine_->ReportLanes();
      for (LaneReport& lane : report_.lanes) lane.group = session_.group();
      return session_.OnConnected(session_.group(), report_.lanes);
    case ReceiverEvent::Kind::kPeerFailed:
      if (connected_) session_.OnNics(ListNics(fabric_));  // Before the plan that this leads to.
      return session_.OnLaneFailed(session_.group(), {Role::kTrainer, event.sender}, event.status);
    case ReceiverEvent::Kind::kReady: {
      receiving_ = event.update;
      // Every READY contains the address, so none is lost with an aborted update.
      proto::Ready ready;
      ready.set_buffer_index(event.buffer_index);
      ready.set_generation(event.address.generation);
      ready.set_base(event.base);
      if (event.address.generation != offered_generations_[event.buffer_index]) {
        *ready.mutable_buffer() = EncodeBuffer(event.address);
      }
      return session_.OnReady(event.update, std::move(ready));
    }
    case ReceiverEvent::Kind::kRefused:
      return session_.OnRefused(event.update, event.status);
    case ReceiverEvent::Kind::kArrived:
      return session_.OnArrived(event.update);
    case ReceiverEvent::Kind::kLacking:
      return session_.OnLacking(event.update, event.lacking);
    case ReceiverEvent::Kind::kFailed:
      return session_.OnFailed(event.update, event.status, event.wrong_base, now);
    case ReceiverEvent::Kind::kShown:
      if (receiving_ == event.update) receiving_.reset();
      return session_.OnShown(event.update, event.pause, event.unchanged, now);
  }
}

}  // namespace waybill
