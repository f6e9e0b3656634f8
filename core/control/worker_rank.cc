#include "core/control/worker_rank.h"

#include "core/base/status.h"
#include "core/plan/plan_check.h"
#include "core/protocol/message_codec.h"

namespace waybill {

absl::StatusOr<std::unique_ptr<WorkerRank>> WorkerRank::Create(
    SessionOptions options, const WorkerEngineOptions& engine, Manifest manifest,
    const std::vector<MemorySpan>& user_regions, std::set<Notice::Kind> asked, Fabric* fabric,
    RankActions* actions) {
  options.manifest = EncodeWithNics(manifest, *fabric);
  options.nics = ListNics(*fabric);
  options.mode = engine.mode;
  std::unique_ptr<WorkerRank> rank(
      new WorkerRank(std::move(options), manifest, std::move(asked), fabric, actions));
  WAYBILL_ASSIGN_OR_RETURN(rank->engine_,
                           WorkerEngine::Create(fabric, std::move(manifest), user_regions, engine,
                                                [rank = rank.get()](const WorkerEvent& event) {
                                                  rank->events_.push_back(event);
                                                }));
  return rank;
}

WorkerRank::WorkerRank(SessionOptions options, Manifest manifest, std::set<Notice::Kind> asked,
                       Fabric* fabric, RankActions* actions)
    : manifest_(std::move(manifest)),
      fabric_(*fabric),
      actions_(*actions),
      nics_(fabric),
      session_(std::move(options), std::move(asked), this) {}

void WorkerRank::Join(uint64_t token, absl::Time deadline, absl::Time now) {
  session_.Join(token, deadline, now);
  HandleEvents(now);
}

void WorkerRank::Answer(Notice::Kind kind, const UpdateId& update, const absl::Status& answer,
                        absl::Time now) {
  session_.Answer(kind, update, answer);
  HandleEvents(now);
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
  session_.OnStreamEnd(status, now);
  HandleEvents(now);
}

void WorkerRank::OnMessage(const proto::ControllerMessage& message, absl::Time now) {
  session_.OnMessage(message, now);
  HandleEvents(now);
}

void WorkerRank::Step(absl::Time now) {
  engine_->Step(now);
  HandleEvents(now);
  if (auto nics = nics_.Look(now)) {
    session_.OnNics(*std::move(nics));
    session_.Report();
  }
  if (now >= session_.next_deadline()) session_.OnTime(now);
  HandleEvents(now);
}

absl::Time WorkerRank::next_deadline() const {
  return events_.empty() ? session_.next_deadline() : absl::InfinitePast();
}

WorkerReport WorkerRank::report() const {
  WorkerReport report = report_;
  report.verified_bytes = verified_bytes();
  report.stages = engine_->stages();
  report.counts = engine_->counts();
  report.in_doubt = session_.in_doubt();
  return report;
}

// --- what the session decides ---

void WorkerRank::Tell(Notice notice) {
  ++report_changes_;
  actions_.Tell(std::move(notice));
}

absl::StatusOr<proto::Offers> WorkerRank::SetPlan(const std::string&, RankPlan plan,
                                                  uint64_t plan_hash,
                                                  const std::vector<PeerLanes>& planned) {
  // Whoever plays the controller does not reach beyond what this rank holds.
  WAYBILL_RETURN_IF_ERROR(CheckRankPlan(plan, manifest_, Role::kWorker));
  connected_ = false;
  report_.planned_bytes = plan.routes.total_bytes();
  ++report_changes_;
  WAYBILL_ASSIGN_OR_RETURN(const std::vector<LaneOffer> lanes,
                           engine_->SetPlan(std::move(plan.routes), plan_hash, planned));
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

absl::Status WorkerRank::Connect(const std::string&, const proto::Connect& connect) {
  std::vector<TrainerAddress> trainers;
  for (const proto::Peer& peer : connect.peers()) {
    trainers.push_back({peer.rank(), {peer.lane_addresses().begin(), peer.lane_addresses().end()}});
  }
  return engine_->Connect(trainers);
}

void WorkerRank::Prepare(const UpdateId& update, bool digests_off, absl::Time deadline) {
  report_.version = update.version;
  verified_before_ = engine_->counts().verified_bytes;
  ++report_changes_;
  engine_->Prepare(update, digests_off ? Digests::kOff : Digests::kOn, deadline);
}

// --- what the engine reports ---

void WorkerRank::HandleEvents(absl::Time now) {
  while (!events_.empty()) {
    const WorkerEvent event = std::move(events_.front());
    events_.pop_front();
    Handle(event, now);
  }
}

void WorkerRank::Handle(const WorkerEvent& event, absl::Time now) {
  switch (event.kind) {
    case WorkerEvent::Kind::kConnected:
      connected_ = true;
      report_.lanes = engine_->ReportLanes();
      ++report_changes_;
      for (LaneReport& lane : report_.lanes) lane.group = session_.group();
      return session_.OnConnected(session_.group(), report_.lanes);
    case WorkerEvent::Kind::kPeerFailed:
      if (connected_) session_.OnNics(ListNics(fabric_));  // Before the plan that this leads to.
      return session_.OnLaneFailed(session_.group(), {Role::kTrainer, event.trainer}, event.status);
    case WorkerEvent::Kind::kReady: {
      // Told in every READY: nothing is lost with an update that is aborted.
      std::optional<proto::Buffer> renewed;
      if (event.address.generation != offered_generations_[event.buffer_index]) {
        renewed = EncodeBuffer(event.address);
      }
      return session_.OnReady(event.update, event.buffer_index, event.address.generation, renewed);
    }
    case WorkerEvent::Kind::kRefused:
      return session_.OnRefused(event.update, event.status);
    case WorkerEvent::Kind::kArrived:
      return session_.OnArrived(event.update);
    case WorkerEvent::Kind::kFailed:
      return session_.OnFailed(event.update, event.status, now);
    case WorkerEvent::Kind::kShown:
      return session_.OnShown(event.update, event.pause, now);
  }
}

}  // namespace waybill
