#include "core/control/trainer_rank.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/plan/plan_check.h"
#include "core/protocol/message_codec.h"

namespace waybill {
namespace {

SessionOptions WithManifest(SessionOptions options, const Manifest& manifest,
                            const Fabric& fabric) {
  options.manifest = EncodeWithNics(manifest, fabric);
  options.nics = ListNics(fabric);
  return options;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TrainerRank>> TrainerRank::Create(
    SessionOptions options, const TrainerEngineOptions& engine, Manifest manifest,
    std::vector<MemorySpan> regions, Fabric* fabric, RankActions* actions) {
  std::unique_ptr<TrainerRank> rank(new TrainerRank(std::move(options), std::move(manifest),
                                                    std::move(regions), fabric, actions));
  WAYBILL_ASSIGN_OR_RETURN(
      rank->engine_,
      TrainerEngine::Create(fabric, engine, [rank = rank.get()](const TrainerEvent& event) {
        rank->events_.push_back(event);
      }));
  return rank;
}

TrainerRank::TrainerRank(SessionOptions options, Manifest manifest, std::vector<MemorySpan> regions,
                         Fabric* fabric, RankActions* actions)
    : manifest_(std::move(manifest)),
      regions_(std::move(regions)),
      fabric_(*fabric),
      actions_(*actions),
      nics_(fabric),
      session_(WithManifest(std::move(options), manifest_, *fabric), this) {}

void TrainerRank::Join(uint64_t token, absl::Time deadline, absl::Time now) {
  session_.Join(token, deadline, now);
  HandleEvents(now);
}

void TrainerRank::Publish(uint64_t token, const PublishCommand& command, absl::Time now) {
  report_.published = now;
  session_.Publish(token, command, now);
  HandleEvents(now);
}

void TrainerRank::Release(uint64_t token, absl::Time now) {
  session_.Release(token, now);
  HandleEvents(now);
}

void TrainerRank::Cancel(uint64_t token, absl::Time now) {
  session_.Cancel(token, now);
  HandleEvents(now);
}

void TrainerRank::Leave(uint64_t token, absl::Time now) {
  session_.Leave(token, now);
  HandleEvents(now);
}

void TrainerRank::OnStreamOpen(absl::Time now) {
  session_.OnStreamOpen(now);
  HandleEvents(now);
}

void TrainerRank::OnStreamEnd(const absl::Status& status, absl::Time now) {
  session_.OnStreamEnd(status, now);
  HandleEvents(now);
}

void TrainerRank::OnMessage(const proto::ControllerMessage& message, absl::Time now) {
  now_ = now;
  session_.OnMessage(message, now);
  HandleEvents(now);
}

void TrainerRank::Step(absl::Time now) {
  engine_->Step();
  HandleEvents(now);
  if (auto nics = nics_.Look(now)) {
    session_.OnNics(*std::move(nics));
    session_.Report();
  }
  if (now >= session_.next_deadline()) session_.OnTime(now);
  HandleEvents(now);
}

absl::Time TrainerRank::next_deadline() const {
  return events_.empty() ? session_.next_deadline() : absl::InfinitePast();
}

TrainerReport TrainerRank::report() const {
  TrainerReport report = report_;
  report.counts = engine_->counts();
  report.stages = engine_->timeline().spans();
  report.groups = session_.groups();
  return report;
}

// --- what the session decides ---

absl::StatusOr<proto::Offers> TrainerRank::SetPlan(RankPlan plan, uint64_t,
                                                   const std::vector<PeerLanes>& planned) {
  // Whoever plays the controller does not reach beyond what this rank has lent.
  WAYBILL_RETURN_IF_ERROR(CheckRankPlan(plan, manifest_, Role::kTrainer));
  connected_ = false;
  report_.planned_bytes = plan.routes.total_bytes();
  ++report_changes_;
  WAYBILL_ASSIGN_OR_RETURN(const TrainerOffers made,
                           engine_->SetPlan(std::move(plan), regions_, planned));
  proto::Offers offers;
  const auto add = [&](const LaneOffer& lane, bool co_owner) {
    proto::Lane* out = offers.add_lanes();
    out->set_peer(lane.peer);
    out->set_address(lane.address);
    out->set_co_owner(co_owner);
  };
  for (const LaneOffer& lane : made.lanes) add(lane, /*co_owner=*/false);
  for (const LaneOffer& lane : made.co_owners) add(lane, /*co_owner=*/true);
  offers.set_mailbox(made.mailbox);
  return offers;
}

absl::Status TrainerRank::Connect(const proto::Connect& connect) {
  std::vector<WorkerAddress> workers;
  std::vector<CoOwnerAddress> co_owners;
  for (const proto::Peer& peer : connect.peers()) {
    if (peer.co_owner()) {
      if (peer.lane_addresses().size() != 1) {
        return absl::InvalidArgumentError(absl::StrCat("trainer ", peer.rank(), " has ",
                                                       peer.lane_addresses().size(),
                                                       " lanes for maxima, the plan has 1"));
      }
      co_owners.push_back({peer.rank(), peer.lane_addresses(0), peer.mailbox()});
      continue;
    }
    WorkerAddress& worker = workers.emplace_back();
    worker.worker = peer.rank();
    worker.lane_addresses.assign(peer.lane_addresses().begin(), peer.lane_addresses().end());
    for (const proto::Buffer& buffer : peer.buffers()) {
      worker.buffers.push_back(DecodeBuffer(buffer));
    }
  }
  return engine_->Connect(workers, co_owners);
}

absl::Status TrainerRank::SetBufferAddress(uint32_t worker, uint32_t buffer_index,
                                           const proto::Buffer& buffer) {
  return engine_->SetBufferAddress(worker, buffer_index, DecodeBuffer(buffer));
}

absl::Status TrainerRank::Start(const UpdateId& update, const PublishCommand& publish,
                                bool digests_off, const proto::Start& start) {
  std::vector<StartTarget> targets;
  for (const proto::Target& target : start.targets()) {
    targets.push_back({.worker = target.worker(),
                       .buffer_index = target.buffer_index(),
                       .generation = target.generation()});
  }
  report_.version = update.version;
  report_.started = now_;
  const absl::Time begin = absl::Now();
  absl::Status status =
      engine_->Start(update, digests_off ? Digests::kOff : Digests::kOn, targets,
                     publish.fail_on_nonfinite ? NonFiniteRule::kRefused : NonFiniteRule::kKept);
  report_.enqueued = absl::Now() - begin;
  ++report_changes_;
  return status;
}

// --- what the engine reports ---

void TrainerRank::HandleEvents(absl::Time now) {
  now_ = now;
  while (!events_.empty()) {
    const TrainerEvent event = std::move(events_.front());
    events_.pop_front();
    Handle(event, now);
  }
}

void TrainerRank::Handle(const TrainerEvent& event, absl::Time now) {
  switch (event.kind) {
    case TrainerEvent::Kind::kConnected:
      connected_ = true;
      report_.lanes = engine_->ReportLanes();
      ++report_changes_;
      return session_.OnConnected(report_.lanes);
    case TrainerEvent::Kind::kPeerFailed:
      if (connected_) session_.OnNics(ListNics(fabric_));  // Before the plan that this leads to.
      return session_.OnLaneFailed(event.peer, event.status);
    case TrainerEvent::Kind::kRefused:
      return session_.OnRefused(event.status.ok() ? DescribeNonFinite() : event.status);
    case TrainerEvent::Kind::kSent: {
      const Timeline& timeline = engine_->timeline();
      report_.sent = now;
      report_.maxima_cpu = absl::Nanoseconds(timeline.cpu_ns(Timeline::Work::kMaxima));
      report_.trade_cpu = absl::Nanoseconds(timeline.cpu_ns(Timeline::Work::kTrade));
      report_.nonfinite = engine_->FindNonFinite();
      report_.ring_high_water_bytes = engine_->ring_high_water_bytes();
      ++report_changes_;
      report_.total += event.counts;
      return session_.OnSent(event.update, now);
    }
    case TrainerEvent::Kind::kStopped:
      return session_.OnStopped(event.update, now);
  }
}

absl::Status TrainerRank::DescribeNonFinite() const {
  std::string text;
  for (const NonFinite& found : engine_->FindNonFinite()) {
    const ShardView shard = manifest_.shard(found.shard);
    absl::StrAppend(&text, text.empty() ? "" : "; ", "tensor \"",
                    manifest_.tensor_name(shard.tensor_index), "\" ", ToString(shard.box), " has ",
                    found.elements, " NaNs or infinities");
  }
  return absl::InvalidArgumentError(text);
}

}  // namespace waybill
