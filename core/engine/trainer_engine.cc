#include "core/engine/trainer_engine.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/engine/staged_routes.h"
#include "core/engine/trainer_peer.h"
#include "core/memory/staging_ring.h"
#include "core/plan/chunks.h"
#include "core/stage/work_pool.h"

namespace waybill {
namespace {

constexpr uint64_t kHelloToken = ~uint64_t{0};

class TrainerEngineImpl final : public TrainerEngine {
 public:
  TrainerEngineImpl(Fabric* fabric, const TrainerEngineOptions& options, StagingRing ring,
                    EventSink sink)
      : fabric_(*fabric),
        options_(options),
        ring_(std::move(ring)),
        sink_(std::move(sink)),
        slots_(ring_.slot_count()),
        direct_batch_([this](uint32_t i) { StageDirect(direct_chunks_[i]); }, [] {}),
        pool_(options.stage_threads) {
    for (uint32_t slot = 0; slot < ring_.slot_count(); ++slot) {
      slots_[slot].batch = std::make_unique<WorkPool::Batch>(
          [this, slot](uint32_t) { staged_->StagePacked(slots_[slot].chunk, ring_.BytesOf(slot)); },
          [this, slot] {
            slots_[slot].staged.store(true, std::memory_order_release);
            fabric_.Wake();
          });
    }
    events_.reserve(256);
  }

  ~TrainerEngineImpl() override { StopStaging(); }

  absl::StatusOr<std::vector<LaneOffer>> SetPlan(RouteTable routes,
                                                 std::vector<MemorySpan> sources) override {
    StopStaging();
    for (const TrainerPeer& peer : peers_) (void)fabric_.CloseLane(peer.lane);
    peers_.clear();
    // What was posted on those lanes is quiescent now, and completes no more.
    for (uint32_t s = 0; s < slots_.size(); ++s) FreeSlot(s);
    connected_ = updating_ = stopping_ = false;
    staged_.emplace(std::move(routes), std::move(sources), options_.chunk_bytes);
    MakePeers();
    ReserveForUpdates();
    std::vector<LaneOffer> offers;
    for (TrainerPeer& peer : peers_) {
      WAYBILL_ASSIGN_OR_RETURN(peer.lane,
                               fabric_.OpenLane(absl::StrCat("worker ", peer.worker), ""));
      WAYBILL_ASSIGN_OR_RETURN(std::string address, fabric_.LaneAddress(peer.lane));
      offers.push_back({peer.worker, std::move(address)});
    }
    return offers;
  }

  absl::Status Connect(absl::Span<const WorkerAddress> workers) override {
    for (const WorkerAddress& worker : workers) {
      WAYBILL_ASSIGN_OR_RETURN(TrainerPeer * peer, FindPeer(worker.worker));
      peer->addresses = worker.buffers;
      WAYBILL_RETURN_IF_ERROR(fabric_.ConnectLane(peer->lane, worker.lane_address));
    }
    CheckConnected();  // Without any worker there is nothing to wait for.
    return absl::OkStatus();
  }

  absl::Status Start(const UpdateId& update, Digests digests,
                     absl::Span<const StartTarget> targets) override {
    if (!connected_ || updating_ || stopping_) {
      return absl::FailedPreconditionError(absl::StrCat(
          "start version ", update.version, ": ",
          !connected_ ? "the lanes are not connected"
                      : absl::StrCat("version ", update_.version,
                                     updating_ ? " is being sent" : " is not quiescent yet")));
    }
    for (TrainerPeer& peer : peers_) peer.targeted = false;
    for (const StartTarget& target : targets) {
      WAYBILL_ASSIGN_OR_RETURN(TrainerPeer * peer, FindPeer(target.worker));
      if (target.buffer_index >= peer->buffers.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("start version ", update.version, ": worker ", target.worker, " has ",
                         peer->buffers.size(), " buffers, not ", target.buffer_index + 1));
      }
      peer->targeted = true;
      peer->buffer_index = target.buffer_index;
      peer->to_open = target.renewed;
    }
    update_ = update;
    staged_->Begin(update, digests);
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
    for (TrainerPeer& peer : peers_) {
      if (peer.failed || peer.posts_outstanding == 0) continue;
      (void)fabric_.CloseLane(peer.lane);
      Fail(peer, absl::CancelledError("the update was stopped with writes outstanding"));
    }
    if (was_going_on) sink_({.kind = TrainerEvent::Kind::kStopped, .update = update_});
  }

  void Step() override {
    events_.clear();
    fabric_.Poll(events_);
    for (const FabricEvent& event : events_) Handle(event);
    if (updating_ && !staging_) BeginStaging();
    if (updating_ && staging_) {
      PostStaged();
      FillSlots();
      PostStaged();  // What was staged on this thread.
      for (TrainerPeer& peer : peers_) SendLedger(peer);
      CheckSent();
    }
    if (stopping_) CheckStopped();
  }

  uint64_t ring_high_water_bytes() const override { return ring_.high_water_bytes(); }

 private:
  struct Slot {
    std::unique_ptr<WorkPool::Batch> batch;
    std::atomic<bool> staged = false;
    bool in_use = false;
    TrainerPeer* peer = nullptr;
    uint32_t chunk = 0;
  };

  // --- the plan ---

  void MakePeers() {
    const RouteTable& routes = staged_->routes();
    for (uint32_t r = 0; r < routes.size(); ++r) {
      if (peers_.empty() || peers_.back().worker != routes.worker(r)) {
        TrainerPeer& peer = peers_.emplace_back();
        peer.worker = routes.worker(r);
        peer.first_route = r;
      }
      peers_.back().last_route = r + 1;
    }
    uint32_t chunk = 0;
    for (TrainerPeer& peer : peers_) {
      peer.first_chunk = chunk;
      while (chunk < staged_->chunk_count() && staged_->chunk(chunk).worker == peer.worker) ++chunk;
      peer.last_chunk = chunk;
    }
  }

  // All that an update needs is allocated here: a warm update allocates nothing.
  void ReserveForUpdates() {
    writes_.reserve(std::max<size_t>(staged_->most_writes(), 1));
    direct_chunks_.reserve(staged_->chunk_count());
    posted_chunks_.reserve(staged_->chunk_count());
    peer_of_chunk_.resize(staged_->chunk_count());
    for (TrainerPeer& peer : peers_) {
      for (uint32_t c = peer.first_chunk; c < peer.last_chunk; ++c) peer_of_chunk_[c] = &peer;
    }
  }

  absl::StatusOr<TrainerPeer*> FindPeer(uint32_t worker) {
    for (TrainerPeer& peer : peers_) {
      if (peer.worker == worker) return &peer;
    }
    return absl::InvalidArgumentError(absl::StrCat("the plan has no route to worker ", worker));
  }

  // --- lanes ---

  void Handle(const FabricEvent& event) {
    TrainerPeer* peer = nullptr;
    for (TrainerPeer& p : peers_) {
      if (p.lane == event.lane) peer = &p;
    }
    if (peer == nullptr) return;
    switch (event.kind) {
      case FabricEvent::Kind::kConnected:
        return FailUnless(*peer, fabric_.Grant(peer->lane, ring_.region()));
      case FabricEvent::Kind::kImmediate:
        if (Immediate::Unpack(event.immediate).kind == Immediate::Kind::kHello) Answer(*peer);
        return;
      case FabricEvent::Kind::kComplete:
        return Complete(*peer, event.token);
      case FabricEvent::Kind::kFailed:
        return Fail(*peer, fabric_.LaneStatus(peer->lane));
    }
  }

  // The worker's hello says that its grants are here. Ours, an empty write, proves the lane.
  void Answer(TrainerPeer& peer) {
    if (peer.greeted) return;
    peer.greeted = true;
    for (const BufferAddress& address : peer.addresses) {
      absl::StatusOr<BufferAccess> access = OpenBuffer(fabric_, peer.lane, address);
      if (!access.ok()) return Fail(peer, access.status());
      peer.buffers.push_back(*std::move(access));
    }
    FailUnless(peer,
               fabric_.Post(peer.lane, {}, Immediate{Immediate::Kind::kHello}.Pack(), kHelloToken));
  }

  void CheckConnected() {
    if (connected_) return;
    for (const TrainerPeer& peer : peers_) {
      if (!peer.up) return;
    }
    connected_ = true;
    sink_({.kind = TrainerEvent::Kind::kConnected});
  }

  void FailUnless(TrainerPeer& peer, absl::Status status) {
    if (!status.ok()) Fail(peer, std::move(status));
  }

  void Fail(TrainerPeer& peer, absl::Status status) {
    if (peer.failed.exchange(true)) return;
    peer.posts_outstanding = 0;
    for (uint32_t s = 0; s < slots_.size(); ++s) {
      if (slots_[s].in_use && slots_[s].peer == &peer && slots_[s].chunk == kPosted) FreeSlot(s);
    }
    sink_({.kind = TrainerEvent::Kind::kPeerFailed,
           .worker = peer.worker,
           .status = WithScope(std::move(status), Scope::kPeer)});
  }

  // --- one update ---

  // Begins when every worker's buffer can be reached.
  void BeginStaging() {
    for (TrainerPeer& peer : peers_) {
      if (!peer.takes_part() || !peer.to_open) continue;
      absl::StatusOr<BufferAccess> access = OpenBuffer(fabric_, peer.lane, *peer.to_open);
      if (absl::IsFailedPrecondition(access.status())) return;  // Its grant is still on the way.
      if (!access.ok()) {
        Fail(peer, access.status());
        continue;
      }
      peer.buffers[peer.buffer_index] = *std::move(access);
      peer.to_open.reset();
    }
    staging_ = true;
    direct_chunks_.clear();
    posted_chunks_.clear();
    next_posted_ = 0;
    for (TrainerPeer& peer : peers_) {
      uint32_t direct = 0;
      peer.posted_left = 0;
      peer.ledger_sent = 0;
      peer.direct_left.store(0, std::memory_order_relaxed);
      if (!peer.takes_part()) continue;
      for (uint32_t c = peer.first_chunk; c < peer.last_chunk; ++c) {
        const bool mapped = staged_->IsMapped(c, peer.buffers[peer.buffer_index]);
        (mapped ? direct_chunks_ : posted_chunks_).push_back(c);
        direct += mapped ? 1 : 0;
        peer.posted_left += mapped ? 0 : 1;
      }
      peer.direct_left.store(direct, std::memory_order_relaxed);
    }
    pool_.Run(direct_batch_, static_cast<uint32_t>(direct_chunks_.size()));
  }

  // On any thread.
  void StageDirect(uint32_t chunk) {
    TrainerPeer& peer = *peer_of_chunk_[chunk];
    if (!peer.failed.load(std::memory_order_relaxed)) {
      staged_->StageInPlace(chunk, peer.buffers[peer.buffer_index]);
    }
    if (peer.direct_left.fetch_sub(1, std::memory_order_acq_rel) == 1) fabric_.Wake();
  }

  void FillSlots() {
    while (next_posted_ < posted_chunks_.size()) {
      const uint32_t chunk = posted_chunks_[next_posted_];
      if (peer_of_chunk_[chunk]->failed) {
        ++next_posted_;
        continue;
      }
      const uint32_t slot = ring_.Take();
      if (slot == StagingRing::kNoSlot) return;
      ++next_posted_;
      slots_[slot].in_use = true;
      slots_[slot].peer = peer_of_chunk_[chunk];
      slots_[slot].chunk = chunk;
      pool_.Run(*slots_[slot].batch, 1);
    }
  }

  void PostStaged() {
    for (uint32_t s = 0; s < slots_.size(); ++s) {
      Slot& slot = slots_[s];
      if (!slot.staged.load(std::memory_order_acquire)) continue;
      if (slot.peer->failed) {
        slot.staged.store(false, std::memory_order_relaxed);
        FreeSlot(s);
        continue;
      }
      if (!PostChunk(*slot.peer, s, staged_->chunk(slot.chunk))) continue;
      slot.staged.store(false, std::memory_order_relaxed);
      slot.chunk = kPosted;
    }
  }

  bool PostChunk(TrainerPeer& peer, uint32_t slot, const Chunk& chunk) {
    writes_.clear();
    staged_->AppendWritesOf(chunk, peer.buffers[peer.buffer_index], ring_.region(),
                            ring_.OffsetOf(slot), writes_);
    if (!Post(peer, std::nullopt, slot)) return false;
    --peer.posted_left;
    counts_.bytes += chunk.size_bytes;
    return true;
  }

  // Posts writes_. False where the lane is full: again later.
  bool Post(TrainerPeer& peer, std::optional<uint32_t> immediate, uint64_t token) {
    absl::Status status = fabric_.Post(peer.lane, writes_, immediate, token);
    if (absl::IsResourceExhausted(status)) return false;
    if (!status.ok()) {
      Fail(peer, std::move(status));
      return true;
    }
    ++peer.posts_outstanding;
    counts_.writes += writes_.size();
    counts_.immediates += immediate ? 1 : 0;
    return true;
  }

  // The ledger's entries follow the data on its lane, and the immediate follows them.
  void SendLedger(TrainerPeer& peer) {
    if (!peer.takes_part() || peer.posted_left > 0 ||
        peer.direct_left.load(std::memory_order_acquire) > 0) {
      return;
    }
    const uint32_t immediate = Immediate{Immediate::Kind::kData, update_.sequence}.Pack();
    const RegionAccess& ledger = peer.buffers[peer.buffer_index].ledger;
    if (ledger.mapped != nullptr) {
      if (peer.ledger_sent > 0) return;
      auto* entries = reinterpret_cast<LedgerEntry*>(ledger.mapped);
      for (uint32_t r = peer.first_route; r < peer.last_route; ++r) {
        entries[staged_->routes().ledger_entry(r)] = staged_->EntryOf(r);
      }
      peer.ledger_sent = peer.route_count();
      for (uint32_t c = peer.first_chunk; c < peer.last_chunk; ++c) {
        if (!staged_->IsMapped(c, peer.buffers[peer.buffer_index])) continue;
        ++counts_.stores;
        counts_.bytes += staged_->chunk(c).size_bytes;
      }
      FailUnless(peer, fabric_.Publish(peer.lane, immediate));
      ++counts_.immediates;
      return;
    }
    while (peer.ledger_sent < peer.route_count() && !peer.failed) {
      const uint32_t slot = ring_.Take();
      if (slot == StagingRing::kNoSlot) return;
      const uint32_t first = peer.first_route + peer.ledger_sent;
      const auto fit = static_cast<uint32_t>(ring_.slot_bytes() / sizeof(LedgerEntry));
      const uint32_t count = std::min(fit, peer.last_route - first);
      auto* entries = reinterpret_cast<LedgerEntry*>(ring_.BytesOf(slot));
      for (uint32_t i = 0; i < count; ++i) entries[i] = staged_->EntryOf(first + i);
      writes_.assign(1, {.source = ring_.region(),
                         .source_offset_bytes = ring_.OffsetOf(slot),
                         .destination = ledger.remote,
                         .destination_offset_bytes =
                             staged_->routes().ledger_entry(first) * sizeof(LedgerEntry),
                         .size_bytes = count * sizeof(LedgerEntry)});
      const bool last = first + count == peer.last_route;
      slots_[slot].in_use = true;
      slots_[slot].peer = &peer;
      slots_[slot].chunk = kPosted;
      if (!Post(peer, last ? std::optional(immediate) : std::nullopt, slot)) {
        FreeSlot(slot);
        return;
      }
      peer.ledger_sent += count;
    }
  }

  void Complete(TrainerPeer& peer, uint64_t token) {
    if (token == kHelloToken) {
      peer.up = true;
      CheckConnected();
      return;
    }
    --peer.posts_outstanding;
    FreeSlot(static_cast<uint32_t>(token));
  }

  void FreeSlot(uint32_t slot) {
    if (!slots_[slot].in_use) return;
    slots_[slot].in_use = false;
    ring_.Return(slot);
  }

  void CheckSent() {
    for (const TrainerPeer& peer : peers_) {
      if (!peer.takes_part()) {
        if (peer.direct_left.load(std::memory_order_acquire) > 0) return;
      } else if (peer.ledger_sent < peer.route_count() || peer.posts_outstanding > 0) {
        return;
      }
    }
    updating_ = false;
    sink_({.kind = TrainerEvent::Kind::kSent, .update = update_, .counts = counts_});
  }

  // --- the end ---

  // After this no thread of ours stages anything.
  void StopStaging() {
    pool_.Cancel(direct_batch_);
    for (uint32_t s = 0; s < slots_.size(); ++s) {
      pool_.Cancel(*slots_[s].batch);
      slots_[s].staged.store(false, std::memory_order_relaxed);
      if (slots_[s].in_use && slots_[s].chunk != kPosted) FreeSlot(s);
    }
  }

  void CheckStopped() {
    for (const TrainerPeer& peer : peers_) {
      if (!peer.failed && peer.posts_outstanding > 0) return;
    }
    stopping_ = false;
    sink_({.kind = TrainerEvent::Kind::kStopped, .update = update_});
  }

  static constexpr uint32_t kPosted = ~uint32_t{0};  // Instead of a chunk: the slot is on the wire.

  Fabric& fabric_;
  const TrainerEngineOptions options_;
  StagingRing ring_;
  EventSink sink_;

  std::optional<StagedRoutes> staged_;
  std::deque<TrainerPeer> peers_;  // In the order of routes; addresses are stable.
  std::vector<TrainerPeer*> peer_of_chunk_;
  bool connected_ = false;

  UpdateId update_;
  bool updating_ = false;
  bool staging_ = false;
  bool stopping_ = false;
  TransferCounts counts_;
  std::vector<uint32_t> direct_chunks_;
  std::vector<uint32_t> posted_chunks_;
  size_t next_posted_ = 0;
  std::vector<Slot> slots_;
  std::vector<Write> writes_;
  std::vector<FabricEvent> events_;

  WorkPool::Batch direct_batch_;
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
