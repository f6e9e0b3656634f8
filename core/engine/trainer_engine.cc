#include "core/engine/trainer_engine.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/engine/chunk_queues.h"
#include "core/engine/staged_routes.h"
#include "core/engine/staging_slots.h"
#include "core/engine/trainer_peer.h"
#include "core/memory/staging_ring.h"
#include "core/plan/chunks.h"
#include "core/plan/plan_codec.h"
#include "core/stage/work_pool.h"

namespace waybill {
namespace {

// Tokens of posts without a slot.
constexpr uint64_t kHelloToken = ~uint64_t{0};
constexpr uint64_t kEndToken = kHelloToken - 1;

class TrainerEngineImpl final : public TrainerEngine {
 public:
  TrainerEngineImpl(Fabric* fabric, const TrainerEngineOptions& options, StagingRing ring,
                    EventSink sink)
      : fabric_(*fabric),
        options_(options),
        sink_(std::move(sink)),
        exchange_(fabric,
                  [this](uint32_t trainer, absl::Status status) {
                    sink_({.kind = TrainerEvent::Kind::kCoOwnerFailed,
                           .trainer = trainer,
                           .status = std::move(status)});
                  }),
        slots_(fabric, std::move(ring), &pool_,
               [this](uint32_t chunk, std::byte* slot) {
                 staged_->StagePacked(chunk, slot);
                 timeline_.End(Stage::kStage);
               }),
        early_batch_(
            [this](uint32_t i) {
              timeline_.Charge(Timeline::Work::kMaxima, [&] { staged_->RunEarlyTask(i); });
            },
            [this] {
              maxima_known_.store(true, std::memory_order_release);
              fabric_.Wake();
            }),
        direct_batch_([this](uint32_t i) { StageDirect(queues_.direct[i]); }, [] {}),
        waiting_batch_([this](uint32_t i) { StageDirect(queues_.waiting_direct[i]); }, [] {}),
        pool_(options.stage_threads) {
    events_.reserve(256);
  }

  ~TrainerEngineImpl() override {
    StopStaging();
    staged_.reset();  // It knows the slots.
  }

  absl::StatusOr<TrainerOffers> SetPlan(RankPlan plan, std::vector<MemorySpan> sources,
                                        const std::vector<PeerLanes>& lanes) override {
    WAYBILL_RETURN_IF_ERROR(CheckTrainerPlan(plan));
    StopStaging();
    for (const TrainerPeer& peer : peers_.peers) peer.CloseLanes(fabric_);
    peers_ = {};
    // What was posted on those lanes is quiescent now, and completes no more.
    slots_.FreeAll();
    connected_ = connecting_ = false;
    if (std::exchange(updating_, false) || std::exchange(stopping_, false)) {
      stopping_ = false;
      sink_({.kind = TrainerEvent::Kind::kStopped, .update = update_});
    }
    staged_.reset();  // What it has of a device is free for the next.
    WAYBILL_ASSIGN_OR_RETURN(
        staged_, StagedRoutes::Create(std::move(plan), std::move(sources), options_.chunk_bytes,
                                      options_.stage_threads, slots_.ring().bytes()));
    peers_ = MakePeers(staged_->routes(), staged_->list(), lanes);
    // All that an update needs: a warm one allocates nothing.
    writes_.reserve(std::max<size_t>(staged_->most_writes(), 1));
    queues_.Reserve(staged_->chunk_count());
    TrainerOffers offers;
    WAYBILL_ASSIGN_OR_RETURN(offers.lanes, peers_.OpenLanes(fabric_));
    WAYBILL_ASSIGN_OR_RETURN(offers.co_owners,
                             exchange_.SetPlan(&staged_->exchange(), &staged_->scale_values()));
    offers.mailbox = exchange_.mailbox();
    return offers;
  }

  absl::Status Connect(absl::Span<const WorkerAddress> workers,
                       absl::Span<const CoOwnerAddress> co_owners) override {
    for (const WorkerAddress& worker : workers) {
      WAYBILL_ASSIGN_OR_RETURN(TrainerPeer * peer, peers_.Find(worker.worker));
      WAYBILL_RETURN_IF_ERROR(peer->CheckLaneCount(worker.lane_addresses.size()));
      peer->addresses = worker.buffers;
      for (size_t i = 0; i < peer->lanes.size(); ++i) {
        WAYBILL_RETURN_IF_ERROR(fabric_.ConnectLane(peer->lanes[i].id, worker.lane_addresses[i]));
      }
    }
    WAYBILL_RETURN_IF_ERROR(exchange_.Connect(co_owners));
    connecting_ = true;
    CheckConnected();  // Without any peer there is nothing to wait for.
    return absl::OkStatus();
  }

  absl::Status Start(const UpdateId& update, Digests digests, absl::Span<const StartTarget> targets,
                     NonFiniteRule rule) override {
    if (!connected_ || updating_ || stopping_) {
      return absl::FailedPreconditionError(absl::StrCat(
          "start version ", update.version, ": ",
          !connected_ ? "the lanes are not connected"
                      : absl::StrCat("version ", update_.version,
                                     updating_ ? " is being sent" : " is not quiescent yet")));
    }
    for (TrainerPeer& peer : peers_.peers) peer.targeted = false;
    for (const StartTarget& target : targets) {
      WAYBILL_ASSIGN_OR_RETURN(TrainerPeer * peer, peers_.Find(target.worker));
      if (target.buffer_index >= peer->addresses.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("start version ", update.version, ": worker ", target.worker, " has ",
                         peer->addresses.size(), " buffers, not ", target.buffer_index + 1));
      }
      peer->targeted = true;
      peer->buffer_index = target.buffer_index;
      peer->to_open = target.renewed;
    }
    update_ = update;
    staged_->Begin(update, digests);
    may_finish_ = rule == NonFiniteRule::kKept;
    refused_ = false;
    exchange_.Begin(update);
    updating_ = true;
    staging_ = false;
    counts_ = {};
    return absl::OkStatus();
  }

  void Abort(uint32_t sequence) override {
    if (updating_ && update_.sequence == sequence) {
      StopStaging();
      updating_ = false;
      stopping_ = true;
    } else {
      sink_({.kind = TrainerEvent::Kind::kStopped, .update = {.sequence = sequence}});
    }
  }

  void StopNow() override {
    StopStaging();
    const bool was_going_on = updating_ || stopping_;
    updating_ = stopping_ = false;
    for (TrainerPeer& peer : peers_.peers) {
      const bool outstanding = !peer.failed && peer.posts_outstanding() > 0;
      if (outstanding) Fail(peer, absl::CancelledError("it was stopped with writes outstanding"));
    }
    exchange_.StopNow();
    if (was_going_on) sink_({.kind = TrainerEvent::Kind::kStopped, .update = update_});
  }

  void Step() override {
    events_.clear();
    fabric_.Poll(events_);
    for (const FabricEvent& event : events_) Handle(event);
    CheckConnected();
    for (TrainerPeer& peer : peers_.peers) QuietenIfFailed(peer);
    if (updating_ && !staging_) BeginStaging();
    if (updating_ && staging_) Send();
    if (stopping_) CheckStopped();
  }

  std::vector<NonFinite> FindNonFinite() const override { return staged_->FindNonFinite(); }
  const Timeline& timeline() const override { return timeline_; }
  TransferCounts counts() const override { return counts_; }
  uint64_t ring_high_water_bytes() const override { return slots_.ring().high_water_bytes(); }

  std::vector<LaneReport> ReportLanes() const override {
    return exchange_.AddTo(peers_.Report(fabric_));
  }

 private:
  void Send() {
    if (!scales_known_) Trade();
    PostStaged();
    FillSlots();
    PostStaged();  // What was staged on this thread.
    CheckStaged();
    for (TrainerPeer& peer : peers_.peers) Finish(peer);
    CheckSent();
  }

  // --- lanes ---

  void Handle(const FabricEvent& event) {
    if (exchange_.Handle(event)) return;
    const auto [peer, lane] = peers_.FindLane(event.lane);
    if (peer != nullptr) Handle(*peer, *lane, event);
  }

  void Handle(TrainerPeer& peer, TrainerLane& lane, const FabricEvent& event) {
    switch (event.kind) {
      case FabricEvent::Kind::kConnected:
        return FailUnless(peer, fabric_.Grant(lane.id, slots_.ring().region()));
      case FabricEvent::Kind::kImmediate:
        if (Immediate::Unpack(event.immediate).kind == Immediate::Kind::kHello) Answer(peer, lane);
        return;
      case FabricEvent::Kind::kComplete:
        return Complete(lane, event.token);
      case FabricEvent::Kind::kFailed:
        return Fail(peer, fabric_.LaneStatus(lane.id));
    }
  }

  // The worker's hello says that its grants are here. Ours, an empty write, proves the lane.
  void Answer(TrainerPeer& peer, TrainerLane& lane) {
    if (std::exchange(lane.greeted, true)) return;
    if (absl::Status status = peer.OpenBuffers(fabric_, lane); !status.ok()) {
      return Fail(peer, std::move(status));
    }
    FailUnless(peer,
               fabric_.Post(lane.id, {}, Immediate{Immediate::Kind::kHello}.Pack(), kHelloToken));
  }

  void CheckConnected() {
    if (connected_ || !connecting_ || !peers_.up() || !exchange_.up()) return;
    connected_ = true;
    sink_({.kind = TrainerEvent::Kind::kConnected});
  }

  void FailUnless(TrainerPeer& peer, absl::Status status) {
    if (!status.ok()) Fail(peer, std::move(status));
  }

  // One dead lane is a dead peer: what its other lanes carry is of no use any more.
  void Fail(TrainerPeer& peer, absl::Status status) {
    if (peer.failed.exchange(true)) return;
    QuietenIfFailed(peer);
    sink_({.kind = TrainerEvent::Kind::kPeerFailed,
           .worker = peer.worker,
           .status = WithScope(std::move(status), Scope::kPeer)});
  }

  // Closed lanes read no slot. Not before the last thread has left the peer's mapping.
  void QuietenIfFailed(TrainerPeer& peer) {
    if (!peer.failed || peer.quiet || peer.direct_left.load(std::memory_order_acquire) > 0) return;
    peer.quiet = true;
    peer.CloseLanes(fabric_);
    for (TrainerLane& lane : peer.lanes) lane.posts_outstanding = 0;
    slots_.FreePostedTo(peer);
  }

  // --- one update ---

  // Begins when every worker's buffer can be reached.
  void BeginStaging() {
    for (TrainerPeer& peer : peers_.peers) {
      if (!peer.takes_part() || !peer.to_open) continue;
      const absl::Status status = peer.OpenRenewed(fabric_);
      if (absl::IsFailedPrecondition(status)) return;  // Its grant is still on the way.
      FailUnless(peer, status);
    }
    staging_ = true;
    queues_.Clear();
    timeline_.Clear();
    timeline_.Begin(Stage::kStage);
    if (staged_->early_task_count() > 0) timeline_.Begin(Stage::kExchange);
    scales_known_ = false;
    maxima_known_.store(false, std::memory_order_relaxed);
    pool_.Run(early_batch_, staged_->early_task_count());
    for (TrainerPeer& peer : peers_.peers) {
      peer.BeginUpdate();
      if (!peer.takes_part()) continue;
      for (uint32_t c = peer.first_chunk; c < peer.last_chunk; ++c) {
        const uint32_t lane = peers_.lane_of_chunk[c];
        const bool mapped = staged_->IsMapped(c, peer.buffer(lane));
        queues_.Add(c, mapped, staged_->waits(c));
        mapped ? ++peer.direct_left : ++peer.lanes[lane].posted_left;
        if (!mapped) continue;
        ++counts_.stores;
        counts_.bytes += staged_->chunk(c).size_bytes;
      }
    }
    pool_.Run(direct_batch_, static_cast<uint32_t>(queues_.direct.size()));
  }

  // Maxima with the co-owners; meanwhile what needs none of them is staged.
  void Trade() {
    if (!maxima_known_.load(std::memory_order_acquire)) return;
    timeline_.Charge(Timeline::Work::kTrade, [this] { exchange_.Step(counts_); });
    if (!exchange_.all_come()) return;
    scales_known_ = true;
    timeline_.Charge(Timeline::Work::kTrade, [this] { staged_->FinishEarly(); });
    pool_.Run(waiting_batch_, static_cast<uint32_t>(queues_.waiting_direct.size()));
    queues_.ReleasePosted();
    timeline_.End(Stage::kExchange);
  }

  // On any thread.
  void StageDirect(uint32_t chunk) {
    TrainerPeer& peer = *peers_.peer_of_chunk[chunk];
    if (!peer.failed.load(std::memory_order_relaxed)) {
      staged_->StageInPlace(chunk, peer.buffer(peers_.lane_of_chunk[chunk]));
      timeline_.End(Stage::kStage);
    }
    if (peer.direct_left.fetch_sub(1, std::memory_order_acq_rel) == 1) fabric_.Wake();
  }

  void FillSlots() {
    while (queues_.next_posted < queues_.posted.size()) {
      const uint32_t chunk = queues_.posted[queues_.next_posted];
      if (peers_.peer_of_chunk[chunk]->failed) {
        ++queues_.next_posted;
        continue;
      }
      TrainerPeer* peer = peers_.peer_of_chunk[chunk];
      if (!slots_.Stage({peer, &peer->lanes[peers_.lane_of_chunk[chunk]], chunk})) return;
      ++queues_.next_posted;
    }
  }

  void PostStaged() {
    slots_.ForEachWritten([this](uint32_t slot, const StagingSlots::Staged& what) {
      return PostChunk(*what.peer, *what.lane, slot, staged_->chunk(what.chunk));
    });
  }

  bool PostChunk(TrainerPeer& peer, TrainerLane& lane, uint32_t slot, const Chunk& chunk) {
    timeline_.Begin(Stage::kPost);
    writes_.clear();
    staged_->AppendWritesOf(chunk, lane.buffers[peer.buffer_index], slots_.ring().region(),
                            slots_.ring().OffsetOf(slot), writes_);
    if (!Post(peer, lane, std::nullopt, slot)) return false;
    timeline_.End(Stage::kPost);
    --lane.posted_left;
    counts_.bytes += chunk.size_bytes;
    return true;
  }

  // Posts writes_. False where the lane is full: again later.
  bool Post(TrainerPeer& peer, TrainerLane& lane, std::optional<uint32_t> immediate,
            uint64_t token) {
    absl::Status status = fabric_.Post(lane.id, writes_, immediate, token);
    if (absl::IsResourceExhausted(status)) return false;
    if (!status.ok()) {
      Fail(peer, std::move(status));
      return true;
    }
    ++lane.posts_outstanding;
    counts_.writes += writes_.size();
    counts_.immediates += immediate ? 1 : 0;
    return true;
  }

  // When every chunk is on its way: the ledger on the first lane, and behind what each lane carried
  // its immediate.
  void Finish(TrainerPeer& peer) {
    if (!may_finish_ || !peer.takes_part() || !peer.all_sent() || peer.done()) return;
    const uint32_t immediate = Immediate{Immediate::Kind::kData, update_.sequence}.Pack();
    for (TrainerLane& lane : peer.lanes) {
      if (lane.ended || peer.failed) continue;
      const bool first = &lane == peer.lanes.data();
      if (lane.buffers[peer.buffer_index].ledger.mapped != nullptr) {
        if (first) StoreLedger(peer);
        FailUnless(peer, fabric_.Publish(lane.id, immediate));
        ++counts_.immediates;
        lane.ended = true;
      } else if (first) {
        PostLedger(peer, lane, immediate);
      } else {
        writes_.clear();
        lane.ended = Post(peer, lane, immediate, kEndToken);
      }
    }
  }

  // Without the last immediates nothing is shown: they wait until everything has been looked at,
  // where that is asked for.
  void CheckStaged() {
    if (refused_) return;
    absl::Status status = staged_->status();
    if (status.ok() && (may_finish_ || !peers_.all_sent())) return;
    refused_ = !status.ok() || !staged_->FindNonFinite().empty();
    may_finish_ = !refused_;
    if (!refused_) return;
    sink_({.kind = TrainerEvent::Kind::kRefused, .update = update_, .status = std::move(status)});
  }

  void StoreLedger(TrainerPeer& peer) {
    // A trainer's entries are neighbours.
    auto* entries = reinterpret_cast<LedgerEntry*>(peer.buffer(0).ledger.mapped);
    staged_->FillLedger(peer.first_route, peer.route_count(),
                        entries + staged_->routes().ledger_entry(peer.first_route));
    peer.ledger_sent = peer.route_count();
  }

  void PostLedger(TrainerPeer& peer, TrainerLane& lane, uint32_t immediate) {
    const RegionAccess& ledger = peer.buffer(0).ledger;
    while (peer.ledger_sent < peer.route_count() && !peer.failed) {
      const uint32_t slot = slots_.TakeToPost(&peer);
      if (slot == StagingSlots::kNoSlot) return;
      const StagingRing& ring = slots_.ring();
      const uint32_t first = peer.first_route + peer.ledger_sent;
      const auto fit = static_cast<uint32_t>(ring.slot_bytes() / sizeof(LedgerEntry));
      const uint32_t count = std::min(fit, peer.last_route - first);
      staged_->FillLedger(first, count, reinterpret_cast<LedgerEntry*>(ring.BytesOf(slot)));
      writes_.assign(1, {.source = ring.region(),
                         .source_offset_bytes = ring.OffsetOf(slot),
                         .destination = ledger.remote,
                         .destination_offset_bytes =
                             staged_->routes().ledger_entry(first) * sizeof(LedgerEntry),
                         .size_bytes = count * sizeof(LedgerEntry)});
      const bool last = first + count == peer.last_route;
      if (!Post(peer, lane, last ? std::optional(immediate) : std::nullopt, slot)) {
        slots_.Free(slot);
        return;
      }
      peer.ledger_sent += count;
      lane.ended = last;
    }
  }

  void Complete(TrainerLane& lane, uint64_t token) {
    if (token == kHelloToken) {
      lane.up = true;
      CheckConnected();
      return;
    }
    --lane.posts_outstanding;
    if (token != kEndToken) slots_.Free(static_cast<uint32_t>(token));
  }

  void CheckSent() {
    if (!peers_.done() || !scales_known_ || !exchange_.done() || refused_) return;
    updating_ = false;
    timeline_.EndWait();
    sink_({.kind = TrainerEvent::Kind::kSent, .update = update_, .counts = counts_});
  }

  // --- the end ---

  // After this no thread of ours stages anything.
  void StopStaging() {
    pool_.Cancel(early_batch_);
    pool_.Cancel(direct_batch_);
    pool_.Cancel(waiting_batch_);
    for (TrainerPeer& peer : peers_.peers) peer.direct_left.store(0, std::memory_order_relaxed);
    slots_.CancelStaging();
  }

  void CheckStopped() {
    if (peers_.posts_outstanding() > 0 || exchange_.posts_outstanding() > 0) return;
    stopping_ = false;
    sink_({.kind = TrainerEvent::Kind::kStopped, .update = update_});
  }

  Fabric& fabric_;
  const TrainerEngineOptions options_;
  EventSink sink_;

  std::unique_ptr<StagedRoutes> staged_;
  MaximaExchange exchange_;
  Peers peers_;
  bool connecting_ = false;
  bool connected_ = false;
  UpdateId update_;
  bool updating_ = false;
  bool staging_ = false;
  bool stopping_ = false;
  TransferCounts counts_;
  ChunkQueues queues_;
  Timeline timeline_;
  std::atomic<bool> maxima_known_ = false;  // This trainer's parts of them.
  bool may_finish_ = true;                  // Ledgers and immediates may go out.
  bool refused_ = false;
  bool scales_known_ = false;  // And so are all.
  StagingSlots slots_;
  std::vector<Write> writes_;
  std::vector<FabricEvent> events_;
  WorkPool::Batch early_batch_;
  WorkPool::Batch direct_batch_;
  WorkPool::Batch waiting_batch_;
  WorkPool pool_;  // Last: its threads end before what they use.
};

}  // namespace

absl::StatusOr<std::unique_ptr<TrainerEngine>> TrainerEngine::Create(
    Fabric* fabric, const TrainerEngineOptions& options, EventSink sink) {
  if (options.chunk_bytes == 0 || options.chunk_bytes % kCutBytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunks of ", options.chunk_bytes, " bytes: not a multiple of ", kCutBytes));
  }
  WAYBILL_ASSIGN_OR_RETURN(StagingRing ring,
                           StagingRing::Create(fabric, options.ring_bytes, options.chunk_bytes));
  return std::make_unique<TrainerEngineImpl>(fabric, options, std::move(ring), std::move(sink));
}

}  // namespace waybill
