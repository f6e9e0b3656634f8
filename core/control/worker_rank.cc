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
  std::unique_ptr<WorkerRank> rank(
      new WorkerRank(std::move(options), manifest, std::move(asked), fabric, actions));
  WAYBILL_ASSIGN_OR_RETURN(rank->engine_,
                           ReceiverEngine::Create(fabric, std::move(manifest), user_regions, engine,
                                                  [rank = rank.get()](const ReceiverEvent& event) {
                                                    rank->events_.push_back(event);
                                                  }));
  rank->lender_.emplace(rank->manifest_, engine.chunk_bytes, lending, fabric, rank->engine_.get(),
                        &rank->session_);
  return rank;
}

WorkerRank::WorkerRank(SessionOptions options, Manifest manifest, std::set<Notice::Kind> asked,
                       Fabric* fabric, RankActions* actions)
    : manifest_(std::move(manifest)),
      mode_(options.mode),
      fabric_(*fabric),
      actions_(*actions),
      nics_(fabric),
      session_(std::move(options), std::move(asked), this) {
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
    if (!engine_->Handle(event)) (void)lender_->Handle(event);
  }
  engine_->Step(now);
  lender_->Step(now);
}

absl::Time WorkerRank::next_deadline() const {
  if (!events_.empty()) return absl::InfinitePast();
  return std::min(session_.next_deadline(), lender_->next_deadline());
}

WorkerReport WorkerRank::report() const {
  WorkerReport report = report_;
  report.arrived_bytes = arrived_bytes();
  report.stages = engine_->stages();
  report.counts = engine_->counts();
  report.in_doubt = session_.in_doubt();
  report.catching_up = session_.catching_up();
  report.exact = session_.exact();
  return report;
}

// --- commands of the session ---

void WorkerRank::Tell(Notice notice) {
  ++report_changes_;
  actions_.Tell(std::move(notice));
}

absl::StatusOr<proto::Offers> WorkerRank::SetPlan(TermPlan plan) {
  if (plan.group != session_.group()) {
    if (mode_ == Mode::kInPlace) {
      return absl::FailedPreconditionError("its memory is written directly, and is not lent");
    }
    return lender_->SetLoan(std::move(plan));
  }
  if (plan.relay) {
    if (connected_) return absl::FailedPreconditionError("a plan of relays after the term's lanes");
    return lender_->SetRelay(std::move(plan));
  }
  lender_->EndRelay();
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

absl::Status WorkerRank::Connect(const std::string& group, const proto::Connect& connect) {
  if (group != session_.group() || connect.relay()) {
    return lender_->Connect(group, connect);
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
  lender_->ReportEvents();
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
      lender_->OnReady(event.update);
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
      lender_->OnReceived(event.update);
      return session_.OnShown(event.update, event.pause, event.unchanged, now);
  }
}

}  // namespace waybill
