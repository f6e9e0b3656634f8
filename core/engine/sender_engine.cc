// SPDX-License-Identifier: Apache-2.0

#include "core/engine/sender_engine.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/engine/kept_lanes.h"
#include "core/engine/receiver_link.h"
#include "core/engine/staged_routes.h"
#include "core/engine/update_sender.h"
#include "core/plan/plan_codec.h"
#include "core/protocol/send_schedule.h"

namespace waybill {
namespace {

constexpr uint64_t kGrantedToken = ~uint64_t{0};

class SenderEngineImpl final : public SenderEngine {
 public:
  SenderEngineImpl(Fabric* fabric, StagingArea* area, EventSink sink)
      : fabric_(*fabric),
        area_(*area),
        sink_(std::move(sink)),
        kept_(fabric),
        exchange_(fabric,
                  [this](uint32_t sender, absl::Status status) {
                    ReportFailure({Role::kTrainer, sender}, std::move(status));
                  }),
        sender_(
            fabric, area, &links_, &exchange_,
            [this](UpdateSender::Result result, absl::Status why) {
              OnEnd(result, std::move(why));
            },
            [this](const ReceiverLink& link, absl::Status status) {
              ReportFailure({Role::kWorker, link.receiver}, std::move(status));
            }) {}

  ~SenderEngineImpl() override {
    sender_.Reset();
    for (const ReceiverLink& link : links_.links) link.CloseLanes(fabric_);
  }

  absl::StatusOr<SenderOffers> SetPlan(RankPlan plan, std::vector<MemorySpan> sources,
                                       const TermLanes& lanes) override {
    WAYBILL_RETURN_IF_ERROR(CheckSenderPlan(plan));
    EndTerm();
    absl::StatusOr<SenderOffers> offers = BeginTerm(std::move(plan), std::move(sources), lanes);
    if (!offers.ok()) {
      // Events of lanes that were made already would find a sender without the plan.
      sender_.Reset();
      for (const ReceiverLink& link : links_.links) link.CloseLanes(fabric_);
      links_ = {};
    }
    return offers;
  }

  absl::Status Connect(absl::Span<const ReceiverAddress> receivers,
                       absl::Span<const CoOwnerAddress> co_owners) override {
    for (const ReceiverAddress& receiver : receivers) {
      WAYBILL_ASSIGN_OR_RETURN(ReceiverLink * link, links_.Find(receiver.receiver));
      WAYBILL_RETURN_IF_ERROR(link->CheckLaneCount(receiver.lane_addresses.size()));
      link->buffers.clear();
      for (const BufferAddress& address : receiver.buffers) {
        link->buffers.push_back({.address = address, .to_open = !address.reachable()});
      }
      for (size_t i = 0; i < link->lanes.size(); ++i) {
        if (link->lanes[i].kept) continue;
        WAYBILL_RETURN_IF_ERROR(fabric_.ConnectLane(link->lanes[i].id, receiver.lane_addresses[i]));
      }
    }
    WAYBILL_RETURN_IF_ERROR(exchange_.Connect(co_owners));
    connecting_ = true;
    // On a kept lane the receiver's grant may have arrived before Connect().
    for (ReceiverLink& link : links_.links) {
      for (ReceiverLane& lane : link.lanes) AnswerIfGranted(link, lane);
    }
    CheckConnected();  // A plan without peers is connected at once.
    return absl::OkStatus();
  }

  absl::Status SetBufferAddress(uint32_t receiver, uint32_t buffer_index,
                                BufferAddress address) override {
    WAYBILL_ASSIGN_OR_RETURN(ReceiverLink * link, links_.Find(receiver));
    return link->SetBufferAddress(buffer_index, std::move(address));
  }

  absl::Status Start(const UpdateId& update, Digests digests, absl::Span<const StartTarget> targets,
                     NonFiniteRule rule, SourcesAre sources,
                     const VersionsInMemory& versions) override {
    if (!connected_ || state_ != State::kIdle) {
      return absl::FailedPreconditionError(absl::StrCat(
          "start version ", update.version, ": ",
          !connected_ ? "the lanes are not connected"
                      : absl::StrCat("version ", update_.version,
                                     state_ == State::kStopping ? " is not quiescent yet"
                                                                : " is being sent")));
    }
    for (ReceiverLink& link : links_.links) link.targeted = link.has_before = false;
    for (const StartTarget& target : targets) {
      WAYBILL_ASSIGN_OR_RETURN(ReceiverLink * link, links_.Find(target.receiver));
      if (target.buffer_index >= link->buffers.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("start version ", update.version, ": worker ", target.receiver, " has ",
                         link->buffers.size(), " buffers, not ", target.buffer_index + 1));
      }
      const uint32_t known = link->buffers[target.buffer_index].address.generation;
      if (target.generation != known) {
        return absl::FailedPreconditionError(
            absl::StrCat("start version ", update.version, ": buffer ", target.buffer_index,
                         " of worker ", target.receiver, " has generation ", target.generation,
                         ", and this trainer has its address of generation ", known));
      }
      link->targeted = true;
      link->has_before = versions.version_before != 0 && target.base == versions.version_before;
      link->buffer_index = target.buffer_index;
    }
    WAYBILL_RETURN_IF_ERROR(area_.RenewSources());
    update_ = update;
    rule_ = rule;
    area_.shared_chunks().BeginImage(versions.image);
    sender_.routes().Begin(update, digests, sources, versions);
    sender_.Expect(sources);
    exchange_.Begin(update);
    state_ = State::kOpening;
    return absl::OkStatus();
  }

  void Release(uint32_t chunk) override { sender_.Release(chunk); }
  void GiveDigest(uint32_t route, uint64_t digest) override { sender_.GiveDigest(route, digest); }
  absl::Status SetSources(std::vector<MemorySpan> sources) override {
    return sender_.routes().SetSources(std::move(sources));
  }

  void Abort(uint32_t sequence) override {
    if (state_ == State::kIdle || update_.sequence != sequence) {
      return sink_({.kind = SenderEvent::Kind::kStopped, .update = {.sequence = sequence}});
    }
    if (state_ != State::kStopping) Stop();
  }

  void StopNow() override {
    if (state_ == State::kIdle) return;
    Stop();
    sender_.FailBusyReceivers(absl::CancelledError("it was stopped with writes outstanding"));
    exchange_.StopNow();
    sender_.Step();
  }

  bool Handle(const FabricEvent& event) override {
    if (exchange_.Handle(event)) return true;
    const auto [link, lane] = links_.FindLane(event.lane);
    if (link == nullptr) return kept_.Handle(event);
    Handle(*link, *lane, event);
    return true;
  }

  void Step() override {
    CheckConnected();
    if (state_ == State::kOpening) TryBegin();
    sender_.Step();
  }

  std::vector<NonFinite> FindNonFinite() const override { return sender_.routes().FindNonFinite(); }
  const Timeline& timeline() const override { return sender_.timeline(); }
  TransferCounts counts() const override { return sender_.counts(); }

  std::vector<LaneRate> LaneRates() const override { return links_.Rates(fabric_); }
  std::vector<LaneReport> ReportLanes() const override {
    return exchange_.AddTo(links_.Report(fabric_));
  }

 private:
  enum class State {
    kIdle,
    kOpening,  // Started; buffers that were renewed are being imported.
    kSending,
    kStopping,  // Aborted, with writes outstanding.
  };

  // --- lanes ---

  void Handle(ReceiverLink& link, ReceiverLane& lane, const FabricEvent& event) {
    switch (event.kind) {
      case FabricEvent::Kind::kConnected:
        return;
      case FabricEvent::Kind::kImmediate: {
        const Immediate immediate = Immediate::Unpack(event.immediate);
        if (immediate.kind != Immediate::Kind::kGranted) return;
        lane.granted = immediate.sequence;
        return AnswerIfGranted(link, lane);
      }
      case FabricEvent::Kind::kComplete:
        if (event.token != kGrantedToken) sender_.OnComplete(link, lane, event.token);
        return;
      case FabricEvent::Kind::kFailed:
        return sender_.Fail(link, fabric_.LaneStatus(lane.id));
    }
  }

  // If the receiver has granted its buffers on the lane: tells it that the ring is granted to it.
  void AnswerIfGranted(ReceiverLink& link, ReceiverLane& lane) {
    if (lane.up || link.failed || !connecting_ || lane.granted != term_) return;
    absl::Status status = Answer(link, lane);
    if (!status.ok()) return sender_.Fail(link, std::move(status));
    lane.up = true;
    CheckConnected();
  }

  absl::Status Answer(ReceiverLink& link, ReceiverLane& lane) {
    WAYBILL_RETURN_IF_ERROR(sender_.Grant(lane));
    WAYBILL_RETURN_IF_ERROR(link.OpenBuffers(fabric_, sender_.routes().routes(), lane));
    return fabric_.Post(lane.id, {}, Immediate{Immediate::Kind::kGranted, term_}.Pack(),
                        kGrantedToken);
  }

  absl::StatusOr<SenderOffers> BeginTerm(RankPlan plan, std::vector<MemorySpan> sources,
                                         const TermLanes& lanes) {
    kept_.CloseAllBut(lanes.peers);
    term_ = lanes.tag;
    WAYBILL_ASSIGN_OR_RETURN(std::unique_ptr<StagedRoutes> staged,
                             StagedRoutes::Create(std::move(plan), std::move(sources), area_));
    WAYBILL_ASSIGN_OR_RETURN(links_,
                             MakeReceiverLinks(staged->routes(), staged->list(), lanes.peers));
    for (ReceiverLink& link : links_.links) {
      if (!IsKept(lanes.peers, link.receiver)) continue;
      WAYBILL_RETURN_IF_ERROR(kept_.Take(link.receiver, link.lanes));
      for (ReceiverLane& lane : link.lanes) lane.BeginTerm();
    }
    WAYBILL_RETURN_IF_ERROR(sender_.SetRoutes(std::move(staged)));
    SenderOffers offers;
    WAYBILL_ASSIGN_OR_RETURN(offers.lanes, links_.OpenLanes(fabric_));
    WAYBILL_ASSIGN_OR_RETURN(offers.co_owners, exchange_.SetPlan(&sender_.routes().exchange(),
                                                                 &sender_.routes().scale_values()));
    offers.mailbox = exchange_.mailbox();
    return offers;
  }

  // Drops the plan, and keeps the lanes without outstanding writes.
  void EndTerm() {
    std::vector<bool> quiet;
    quiet.reserve(links_.links.size());
    for (const ReceiverLink& link : links_.links) {
      quiet.push_back(!link.failed && sender_.IsQuiescent(link));
    }
    sender_.Reset();
    for (ReceiverLink& link : links_.links) {
      if (quiet[link.index]) {
        kept_.Add(link.receiver, std::move(link.lanes));
      } else {
        link.CloseLanes(fabric_);
      }
    }
    links_ = {};
    connected_ = connecting_ = false;
    if (std::exchange(state_, State::kIdle) != State::kIdle) {
      sink_({.kind = SenderEvent::Kind::kStopped, .update = update_});
    }
  }

  void CheckConnected() {
    if (connected_ || !connecting_ || !links_.up() || !exchange_.up()) return;
    connected_ = true;
    sender_.ShareChunks();
    sink_({.kind = SenderEvent::Kind::kConnected});
  }

  void ReportFailure(RankId peer, absl::Status status) {
    sink_({.kind = SenderEvent::Kind::kPeerFailed,
           .peer = std::move(peer),
           .status = WithScope(std::move(status), Scope::kPeer)});
  }

  void FailOnError(ReceiverLink& link, absl::Status status) {
    if (!status.ok()) sender_.Fail(link, std::move(status));
  }

  // --- one update ---

  // Begins the update once every receiver's buffer is imported.
  void TryBegin() {
    for (ReceiverLink& link : links_.links) {
      if (!link.takes_part()) continue;
      const absl::Status status = link.OpenTarget(fabric_, sender_.routes().routes());
      if (absl::IsFailedPrecondition(status)) return;  // The receiver's grant has not arrived yet.
      FailOnError(link, status);
    }
    state_ = State::kSending;
    sender_.Begin(update_,
                  rule_ == NonFiniteRule::kKept ? FinishRule::kAtOnce : FinishRule::kWhenAllowed);
  }

  void Stop() {
    state_ = State::kStopping;
    sender_.Stop();
  }

  void OnEnd(UpdateSender::Result result, absl::Status why) {
    SenderEvent event = {.update = update_, .status = std::move(why)};
    switch (result) {
      case UpdateSender::Result::kRefused:
        event.kind = SenderEvent::Kind::kRefused;
        return sink_(event);
      case UpdateSender::Result::kSent:
        event.kind = SenderEvent::Kind::kSent;
        event.counts = counts();
        break;
      case UpdateSender::Result::kStopped:
        event.kind = SenderEvent::Kind::kStopped;
        break;
    }
    state_ = State::kIdle;
    sink_(event);
  }

  Fabric& fabric_;
  StagingArea& area_;
  EventSink sink_;

  KeptLanes<ReceiverLane> kept_;
  MaximaExchange exchange_;
  uint32_t term_ = 0;  // The term's tag.
  ReceiverLinks links_;
  bool connecting_ = false;
  bool connected_ = false;
  State state_ = State::kIdle;
  UpdateId update_;
  NonFiniteRule rule_ = NonFiniteRule::kKept;
  UpdateSender sender_;  // Last, so that staging has ended when the other members are destroyed.
};

}  // namespace

std::unique_ptr<SenderEngine> SenderEngine::Create(Fabric* fabric, StagingArea* area,
                                                   EventSink sink) {
  return std::make_unique<SenderEngineImpl>(fabric, area, std::move(sink));
}

}  // namespace waybill
