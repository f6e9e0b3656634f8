// SPDX-License-Identifier: Apache-2.0

#include "core/engine/worker_engine.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/engine/arrived_routes.h"
#include "core/engine/kept_lanes.h"
#include "core/engine/shown_digests.h"
#include "core/engine/trainer_link.h"
#include "core/engine/worker_memory.h"
#include "core/protocol/arrival_gate.h"
#include "core/stage/work_pool.h"

namespace waybill {
namespace {

constexpr uint64_t kGrantedToken = ~uint64_t{0};

class WorkerEngineImpl final : public WorkerEngine {
 public:
  WorkerEngineImpl(Fabric* fabric, std::unique_ptr<Manifest> manifest,
                   const WorkerEngineOptions& options, std::unique_ptr<WorkerMemory> memory,
                   EventSink sink)
      : fabric_(*fabric),
        manifest_(std::move(manifest)),
        options_(options),
        memory_(std::move(memory)),
        shown_(memory_->shown_buffers(), [fabric] { fabric->Wake(); }),
        kept_(fabric),
        gate_(0),
        sink_(std::move(sink)),
        copy_batch_([this](uint32_t group) { CopyGroup(group); },
                    [this] {
                      copied_.store(true, std::memory_order_release);
                      fabric_.Wake();
                    }),
        pool_(options.verify_threads) {
    counts_.host_buffer_bytes = memory_->arena_bytes(MemoryKind::kHost);
    counts_.gpu_buffer_bytes = memory_->arena_bytes(MemoryKind::kDevice);
  }

  ~WorkerEngineImpl() override { StopWork(); }

  absl::StatusOr<std::vector<LaneOffer>> SetPlan(RouteTable arrivals, uint64_t plan_hash,
                                                 const TermLanes& lanes) override {
    EndTerm();
    kept_.CloseAllBut(lanes.peers);
    term_ = lanes.tag;
    plan_hash_ = plan_hash;
    arrived_ = std::make_shared<ArrivedRoutes>(manifest_.get(), std::move(arrivals),
                                               options_.chunk_bytes, lanes.senders);
    if (memory_->receiving_device() != nullptr) {
      WAYBILL_RETURN_IF_ERROR(
          arrived_->DigestOn(memory_->receiving_device(), options_.verify_threads,
                             [this](uint32_t region) { return memory_->ArrivesOnDevice(region); }));
    }
    WAYBILL_ASSIGN_OR_RETURN(const uint32_t lane_count, MakeSources(lanes));
    gate_ = ArrivalGate(lane_count);
    for (TrainerLink& source : sources_) {
      if (!IsKept(lanes.peers, source.trainer)) continue;
      WAYBILL_RETURN_IF_ERROR(kept_.Take(source.trainer, source.lanes));
      for (TrainerLane& lane : source.lanes) {
        lane.kept = true;
        lane.granted = false;
      }
    }
    WAYBILL_RETURN_IF_ERROR(memory_->AllocateLedgers(arrived_->routes().size()));
    std::vector<LaneOffer> offers;
    for (TrainerLink& source : sources_) {
      for (TrainerLane& lane : source.lanes) {
        if (!lane.kept) {
          WAYBILL_ASSIGN_OR_RETURN(lane.id, fabric_.OpenLane(ToString(source.id), lane.nic));
        }
        WAYBILL_ASSIGN_OR_RETURN(std::string address, fabric_.LaneAddress(lane.id));
        offers.push_back({source.trainer, std::move(address)});
      }
    }
    return offers;
  }

  void RelayBy(RelayedRoutes* relay) override { relay_ = relay; }
  const RouteTable& arrivals() const override { return arrived_->routes(); }

  std::vector<MemorySpan> Receiving() const override {
    std::vector<MemorySpan> memory;
    const RegionSpans& regions = memory_->regions(target_);
    memory.reserve(regions.size());
    for (uint32_t r = 0; r < regions.size(); ++r) {
      memory.push_back(
          {.kind = memory_->ArrivesOnDevice(r) ? MemoryKind::kDevice : MemoryKind::kHost,
           .data = regions[r].data(),
           .size_bytes = regions[r].size()});
    }
    return memory;
  }

  absl::StatusOr<std::vector<BufferAddress>> Describe() override {
    std::vector<BufferAddress> addresses;
    for (uint32_t b = 0; b < memory_->buffer_count(); ++b) {
      WAYBILL_ASSIGN_OR_RETURN(BufferAddress address, memory_->Describe(b));
      addresses.push_back(std::move(address));
    }
    return addresses;
  }

  absl::Status Connect(absl::Span<const TrainerAddress> trainers) override {
    for (const TrainerAddress& trainer : trainers) {
      TrainerLink* source = nullptr;
      for (TrainerLink& s : sources_) {
        if (s.trainer == trainer.trainer) source = &s;
      }
      if (source == nullptr) {
        return absl::InvalidArgumentError(
            absl::StrCat("the plan has no route from trainer ", trainer.trainer));
      }
      WAYBILL_RETURN_IF_ERROR(source->CheckLaneCount(trainer.lane_addresses.size()));
      for (size_t i = 0; i < source->lanes.size(); ++i) {
        const TrainerLane& lane = source->lanes[i];
        WAYBILL_RETURN_IF_ERROR(
            lane.kept ? Grant(lane.id) : fabric_.ConnectLane(lane.id, trainer.lane_addresses[i]));
      }
    }
    CheckConnected();  // Without any trainer there is nothing to wait for.
    return absl::OkStatus();
  }

  void Prepare(const UpdateId& update, Digests digests, absl::Time deadline) override {
    if (absl::Status status = CheckPrepare(update); !status.ok()) return Refuse(update, status);
    prepared_ = {update, digests, deadline};
  }

  void Continue(const UpdateId& from, const UpdateId& to) override {
    const bool known = update_ == from;
    if (known) update_ = to;
    if (known && state_ == State::kArrived) return;
    continued_ = true;
    if (!known || state_ != State::kLacking || to.plan_hash != plan_hash_) {
      return Refuse(to, absl::FailedPreconditionError(absl::StrCat("continue version ", to.version,
                                                                   ": nothing of it is kept")));
    }
    if (absl::Status status = memory_->RenewAndKeep(target_, AllLanes()); !status.ok()) {
      return Refuse(to, While("renew the buffer", status));
    }
    ++counts_.renewals;
    absl::StatusOr<BufferAddress> address = memory_->Describe(target_);
    if (!address.ok()) return Refuse(to, address.status());
    BeginReceiving(*std::move(address));
  }

  void LoseTrainer(uint32_t trainer, const absl::Status& why) override {
    for (TrainerLink& source : sources_) {
      if (source.trainer == trainer) Fail(source, why);
    }
  }

  void CloseLanes() override {
    EndTerm();
    kept_.CloseAllBut({});
  }

  void Commit(const UpdateId& update) override {
    if (state_ != State::kArrived || update_ != update) return;
    timeline_.Begin(Stage::kCommit);
    if (options_.mode != Mode::kShadowCopy) return Show(target_, absl::ZeroDuration());
    state_ = State::kWaitingToCopy;
  }

  void Abort(const UpdateId& update, bool begun) override {
    if (prepared_ && prepared_->update == update) return prepared_.reset();
    if (update_ != update) return;
    const bool committed = state_ == State::kWaitingToCopy || state_ == State::kCopying;
    if (state_ == State::kIdle || committed) return;
    StopVerifying();
    if (begun) AbandonUnlessQuiescent();
    state_ = State::kIdle;
    if (options_.mode == Mode::kInPlace && !begun && !was_dirty_) shown_.SetDirty(false);
  }

  absl::Status Pause() override {
    if (prepared_ || state_ != State::kIdle) {
      const uint64_t version = (prepared_ ? prepared_->update : update_).version;
      return absl::FailedPreconditionError(
          absl::StrCat("version ", version, " is being received, or waits to be shown"));
    }
    WAYBILL_RETURN_IF_ERROR(shown_.Pause());
    memory_->Pause();
    return absl::OkStatus();
  }

  void Resume(bool kept) override {
    if (!memory_->paused()) return;
    memory_->Resume(kept);
    if (!kept) shown_.SetDirty(true);
    shown_.Resume();
  }

  absl::Status MayReceive() const override { return memory_->MayReceive(); }

  bool Handle(const FabricEvent& event) override {
    for (TrainerLink& source : sources_) {
      for (TrainerLane& lane : source.lanes) {
        if (lane.id != event.lane || source.failed) continue;
        Handle(source, lane, event);
        return true;
      }
    }
    return kept_.Handle(event);
  }

  void Step(absl::Time now) override {
    if (prepared_) TryReady(now);
    if (state_ == State::kReceiving) Receive();
    if (state_ == State::kWaitingToCopy) TryCopy(now);
    if (state_ == State::kCopying && copied_.load(std::memory_order_acquire)) FinishCopy(now);
  }

  absl::StatusOr<Snapshot> TakeSnapshot(absl::string_view holder) override {
    return shown_.Take(holder);
  }
  Comparison CompareShown(const std::stop_token& stop) override {
    while (true) {
      const absl::StatusOr<Snapshot> snapshot = shown_.Take("verify");
      if (!snapshot.ok()) return {.status = snapshot.status()};
      std::shared_ptr<const ShownDigests> digests;
      {
        const std::lock_guard lock(digests_mutex_);
        digests = shown_digests_;
      }
      if (digests->version() != snapshot->version()) continue;  // It is being shown right now.
      Comparison comparison{.version = snapshot->version(), .status = {}};
      comparison.status = digests->Compare(
          *snapshot, memory_->device(),
          [this](uint32_t region) { return memory_->shown_kind(region) == MemoryKind::kDevice; },
          stop, &comparison.bytes);
      return comparison;
    }
  }
  MemoryKind shown_kind(uint32_t region) const override { return memory_->shown_kind(region); }
  uint64_t shown_version() const override { return shown_.version(); }
  bool dirty() const override { return shown_.dirty(); }

  std::vector<LaneReport> ReportLanes() const override {
    std::vector<LaneReport> reports;
    for (const TrainerLink& source : sources_) source.Report(fabric_, reports);
    return reports;
  }

  StageSpans stages() const override { return timeline_.spans(); }

  WorkerCounts counts() const override {
    WorkerCounts counts = counts_;
    counts.stragglers = gate_.stragglers();
    counts.repeats = gate_.repeats();
    return counts;
  }

 private:
  enum class State {
    kIdle,
    kReceiving,      // READY was said.
    kArrived,        // Everything is here and right; the decision is awaited.
    kLacking,        // So is all that did not come by dead lanes; Continue() is awaited.
    kFailed,         // Reported; Abort() is to come.
    kWaitingToCopy,  // Committed, in shadow-copy; a snapshot may hold the engine's memory.
    kCopying,
  };
  // Equal if the bytes of two versions are.
  struct BytesOfVersion {
    uint64_t plan_hash;
    uint64_t digest;
    bool operator==(const BytesOfVersion&) const = default;
  };
  // An update that is to begin once its buffer is free.
  struct Prepared {
    UpdateId update;
    Digests digests;
    absl::Time deadline;
  };

  // --- the plan ---

  // Ends what is being received, forgets the plan, and keeps the lanes that work.
  void EndTerm() {
    StopVerifying();
    if (prepared_) prepared_.reset();
    if (state_ == State::kReceiving || state_ == State::kFailed) {
      AbandonUnlessQuiescent();
      state_ = State::kIdle;
    }
    if (state_ != State::kIdle) KeepDigests();  // The next plan has another ledger.
    for (TrainerLink& source : sources_) {
      if (!source.failed) kept_.Add(source.trainer, std::move(source.lanes));
    }
    sources_.clear();
    relay_ = nullptr;
    connected_ = false;
  }

  // Returns how many lanes there are in all.
  absl::StatusOr<uint32_t> MakeSources(const TermLanes& lanes) {
    WAYBILL_ASSIGN_OR_RETURN(
        const uint32_t lane_count,
        MakeTrainerLinks(arrived_->routes(), arrived_->chunks(), lanes, sources_));
    for (TrainerLink& source : sources_) {
      source.digest_batch = std::make_unique<WorkPool::Batch>(
          [this, &source](uint32_t group) { DigestGroup(source, group); },
          [this, &source] {
            source.wave_is_over.store(true, std::memory_order_release);
            fabric_.Wake();
          });
    }
    return lane_count;
  }

  // --- lanes ---

  void Handle(TrainerLink& source, TrainerLane& lane, const FabricEvent& event) {
    switch (event.kind) {
      case FabricEvent::Kind::kConnected:
        return FailUnless(source, Grant(lane.id));
      case FabricEvent::Kind::kImmediate:
        return CountImmediate(source, lane, Immediate::Unpack(event.immediate));
      case FabricEvent::Kind::kComplete:
        return;
      case FabricEvent::Kind::kFailed:
        return Fail(source, fabric_.LaneStatus(lane.id));
    }
  }

  // Grants everything, then says so.
  absl::Status Grant(LaneId lane) {
    for (uint32_t b = 0; b < memory_->buffer_count(); ++b) {
      WAYBILL_RETURN_IF_ERROR(memory_->Grant(lane, b));
    }
    return fabric_.Post(lane, {}, Immediate{Immediate::Kind::kGranted, term_}.Pack(),
                        kGrantedToken);
  }

  void CountImmediate(TrainerLink& source, TrainerLane& lane, Immediate immediate) {
    if (immediate.kind == Immediate::Kind::kGranted) {
      if (immediate.sequence != term_) return;
      lane.granted = true;
      CheckConnected();
    } else if (immediate.kind == Immediate::Kind::kData) {
      gate_.Count(source.first_gate + static_cast<uint32_t>(&lane - source.lanes.data()),
                  immediate.sequence);
    } else if (immediate.kind == Immediate::Kind::kChunk) {
      const ChunkImmediate come = ChunkImmediate::Unpack(immediate);
      if (state_ == State::kReceiving && digests_ == Digests::kOn && come.IsOf(update_.sequence) &&
          come.chunk < source.chunk_count()) {
        source.AddReady(come.chunk);
        ++counts_.early_chunks;
      }
    }
  }

  void CheckConnected() {
    if (connected_) return;
    for (const TrainerLink& source : sources_) {
      for (const TrainerLane& lane : source.lanes) {
        if (!lane.granted) return;
      }
    }
    connected_ = true;
    sink_({.kind = WorkerEvent::Kind::kConnected});
  }

  void FailUnless(TrainerLink& source, absl::Status status) {
    if (!status.ok()) Fail(source, std::move(status));
  }

  void Fail(TrainerLink& source, absl::Status status) {
    if (source.failed) return;
    // If all of its data has arrived, the data is verified although the lane is dead.
    if (state_ == State::kReceiving && !source.verifying && Arrived(source) &&
        ShowToKernels(source).ok()) {
      BeginVerifying(source);
    }
    GiveUp(source, std::move(status));
  }

  void GiveUp(TrainerLink& source, absl::Status status) {
    source.failed = true;
    // One dead lane is a dead trainer: nothing of it can land by the others from now on.
    CloseLanes(source);
    if (!source.verifying) pool_.Cancel(*source.digest_batch);  // Another round brings it anew.
    sink_({.kind = WorkerEvent::Kind::kPeerFailed,
           .trainer = source.trainer,
           .status = WithScope(std::move(status), Scope::kPeer)});
  }

  void CloseLanes(const TrainerLink& source) {
    for (const TrainerLane& lane : source.lanes) (void)fabric_.CloseLane(lane.id);
  }

  // --- one update ---

  absl::Status CheckPrepare(const UpdateId& update) const {
    const auto refuse = [&](auto... why) {
      return absl::FailedPreconditionError(
          absl::StrCat("prepare version ", update.version, ": ", why...));
    };
    if (!connected_) return refuse("the lanes are not connected");
    if (prepared_) return refuse("version ", prepared_->update.version, " is not decided yet");
    if (state_ == State::kReceiving || state_ == State::kArrived || state_ == State::kLacking ||
        state_ == State::kFailed) {
      return refuse("version ", update_.version, " is not decided yet");
    }
    if (update.plan_hash != plan_hash_) {
      return refuse("its plan is ", absl::Hex(update.plan_hash), ", this worker's is ",
                    absl::Hex(plan_hash_));
    }
    if (shown_.anything_shown() && update.version <= shown_.version()) {
      return refuse("version ", shown_.version(), " is shown, and versions only grow");
    }
    return absl::OkStatus();
  }

  void Refuse(const UpdateId& update, absl::Status status) {
    sink_({.kind = WorkerEvent::Kind::kRefused, .update = update, .status = std::move(status)});
  }

  // Says who keeps the next update from beginning; empty if nobody does.
  std::string DescribeBusy(uint32_t target) const {
    if (state_ == State::kWaitingToCopy || state_ == State::kCopying) {
      const std::string holders = shown_.DescribeHolders(0);
      return absl::StrCat("version ", update_.version, " is committed and not shown yet",
                          holders.empty() ? "" : "; the engine's memory is still read: ", holders);
    }
    const std::string holders =
        options_.mode == Mode::kShadowCopy ? "" : shown_.DescribeHolders(target);
    return holders.empty() ? "" : absl::StrCat("buffer ", target, " is still read: ", holders);
  }

  void TryReady(absl::Time now) {
    const uint32_t target =
        options_.mode == Mode::kShadow && shown_.anything_shown() ? 1 - shown_.buffer() : 0;
    if (const std::string busy = DescribeBusy(target); !busy.empty()) {
      if (now < prepared_->deadline) return;
      const UpdateId update = std::exchange(prepared_, std::nullopt)->update;
      return Refuse(update, absl::DeadlineExceededError(
                                absl::StrCat("prepare version ", update.version, ": ", busy)));
    }
    was_dirty_ = shown_.dirty();
    const bool in_place = options_.mode == Mode::kInPlace;
    if (in_place && !shown_.BeginWriting(target)) return;  // A reader has come since.
    const Prepared prepared = *std::exchange(prepared_, std::nullopt);
    target_ = target;
    absl::StatusOr<BufferAddress> address = RenewIfAbandoned();
    if (!address.ok()) {
      if (in_place) shown_.SetDirty(was_dirty_);
      return Refuse(prepared.update, address.status());
    }
    update_ = prepared.update;
    digests_ = prepared.digests;
    continued_ = false;
    timeline_.Clear();
    BeginReceiving(*std::move(address));
  }

  void BeginReceiving(BufferAddress address) {
    gate_.Arm(update_.sequence);
    for (TrainerLink& source : sources_) source.BeginUpdate();
    if (relay_ != nullptr) relay_->Begin();
    arrived_->Begin(update_, digests_);
    if (!continued_) kept_digests_.reset();
    state_ = State::kReceiving;
    timeline_.Begin(Stage::kReceive);
    sink_({.kind = WorkerEvent::Kind::kReady,
           .update = update_,
           .buffer_index = target_,
           .address = std::move(address)});
  }

  std::vector<LaneId> AllLanes() const {
    std::vector<LaneId> lanes;
    for (const TrainerLink& source : sources_) {
      if (source.failed) continue;
      for (const TrainerLane& lane : source.lanes) lanes.push_back(lane.id);
    }
    return lanes;
  }

  // Returns where the buffer is from now on.
  absl::StatusOr<BufferAddress> RenewIfAbandoned() {
    WAYBILL_RETURN_IF_ERROR(memory_->AbandonIfMoved(target_));
    if (memory_->abandoned(target_)) {
      ++counts_.renewals;
      WAYBILL_RETURN_IF_ERROR(While("renew the buffer", memory_->Renew(target_, AllLanes())));
    }
    return memory_->Describe(target_);
  }

  // A buffer that was offered is only safe to offer again if every trainer's last write has landed.
  void AbandonUnlessQuiescent() {
    if (state_ == State::kLacking) memory_->Abandon(target_);
    if (state_ != State::kReceiving && state_ != State::kFailed) return;
    for (const TrainerLink& source : sources_) {
      if (Arrived(source)) continue;
      return memory_->Abandon(target_);
    }
  }

  void Receive() {
    bool all = true, any_lost = false;
    for (TrainerLink& source : sources_) {
      if (!source.verifying && !source.failed && Arrived(source) && MakeVisible(source)) {
        BeginVerifying(source);
      }
      if (state_ == State::kReceiving && !IsLost(source)) RelayWhatIsReady(source);
      if (state_ == State::kReceiving && !IsLost(source)) DigestWhatIsReady(source);
      if (state_ != State::kReceiving) return;
      if (source.verifying && !source.verified &&
          (digests_ == Digests::kOff || source.digested())) {
        absl::Status status =
            arrived_->Compare(source.first_route, source.last_route, memory_->ledger(target_));
        if (!status.ok()) {
          return FailUpdate(std::move(status));
        }
        source.verified = true;
        counts_.verified_bytes += source.bytes;
        CountArrived(source, source.bytes);
      }
      any_lost = any_lost || IsLost(source);
      all = all && (source.verified || IsLost(source));
    }
    if (!all) return;
    if (any_lost) return TellLacking();
    if (absl::Status status =
            arrived_->CompareWitnesses(memory_->regions(target_), memory_->ledger(target_));
        !status.ok()) {
      return FailUpdate(std::move(status));
    }
    timeline_.End(Stage::kVerify);
    arrived_bytes_.reset();
    // The plan of a rest does not have all routes.
    if (digests_ == Digests::kOn && !continued_) {
      arrived_bytes_ = {plan_hash_, arrived_->DigestOfAll(memory_->ledger(target_))};
    }
    state_ = State::kArrived;
    sink_({.kind = WorkerEvent::Kind::kArrived, .update = update_});
  }

  // Its lane died before its data was here.
  static bool IsLost(const TrainerLink& source) { return source.failed && !source.verifying; }

  void TellLacking() {
    state_ = State::kLacking;
    timeline_.End(Stage::kVerify);
    WorkerEvent event = {.kind = WorkerEvent::Kind::kLacking, .update = update_};
    for (const TrainerLink& source : sources_) {
      if (IsLost(source)) event.lacking.push_back(source.trainer);
    }
    sink_(event);
  }

  void FailUpdate(absl::Status status) {
    state_ = State::kFailed;
    StopVerifying();
    sink_({.kind = WorkerEvent::Kind::kFailed,
           .update = update_,
           .status = WithScope(std::move(status), Scope::kUpdate)});
  }

  bool Arrived(const TrainerLink& source) const {
    for (uint32_t i = 0; i < source.lanes.size(); ++i) {
      if (!gate_.arrived(source.first_gate + i)) return false;
    }
    return true;
  }

  InboundWrites inbound_writes() const {
    const Device* const device = memory_->receiving_device().get();
    return device == nullptr ? InboundWrites::kOrdered : device->inbound_writes();
  }

  absl::Status ShowToKernels(const TrainerLink& source) {
    switch (inbound_writes()) {
      case InboundWrites::kOrdered:
        break;
      case InboundWrites::kFlushed:
        return memory_->receiving_device()->FlushInboundWrites();
      case InboundWrites::kReadBack:
        for (const TrainerLane& lane : source.lanes) {
          WAYBILL_RETURN_IF_ERROR(fabric_.ReadBack(lane.id));
        }
        break;
    }
    return absl::OkStatus();
  }

  // Makes what has come from the trainer visible to kernels. Returns false if that fails: the
  // trainer has failed then, as by a dead lane, or the update if the GPU is to blame.
  bool MakeVisible(TrainerLink& source) {
    if (source.verifying) return true;
    absl::Status status = ShowToKernels(source);
    if (status.ok()) return true;
    if (inbound_writes() == InboundWrites::kReadBack) {
      GiveUp(source, std::move(status));
    } else {
      FailUpdate(std::move(status));
    }
    return false;
  }

  // All that the trainer sends has arrived, and is visible.
  void BeginVerifying(TrainerLink& source) {
    source.verifying = true;
    timeline_.End(Stage::kReceive);
    timeline_.Begin(Stage::kVerify);
    if (relay_ != nullptr) {
      relay_->OnLedger(source.first_route, source.last_route, memory_->ledger(target_));
    }
    if (digests_ == Digests::kOff && relay_ == nullptr) return;
    for (uint32_t chunk = 0; chunk < source.chunk_count(); ++chunk) source.AddReady(chunk);
  }

  // What is relayed is not verified yet here. Whoever gets it verifies it against the same digest,
  // which is the trainer's.
  void RelayWhatIsReady(TrainerLink& source) {
    const auto ready = static_cast<uint32_t>(source.ready.size());
    if (relay_ == nullptr || source.relayed == ready || !MakeVisible(source)) return;
    while (source.relayed < ready) relay_->OnArrived(source.ready[source.relayed++]);
  }

  // Returns true if this thread's cache has those chunks of the trainer that are ready.
  bool IsInCache(const TrainerLink& source) const {
    return !source.verifying && memory_->receiving_device() == nullptr &&
           std::all_of(source.lanes.begin(), source.lanes.end(),
                       [this](const TrainerLane& lane) { return fabric_.CopiesPosts(lane.id); });
  }

  // On any thread.
  void DigestGroup(const TrainerLink& source, uint32_t group) {
    const uint32_t at_once = arrived_->at_once();
    const uint32_t first = source.wave_begin + group * at_once;
    const uint32_t last = std::min(source.wave_end, first + at_once);
    arrived_->Digest({source.ready.data() + first, last - first}, memory_->regions(target_));
  }

  // Chunks may have more than what is written: what the worker only compares is in them, too.
  void CountArrived(TrainerLink& source, uint64_t bytes) {
    const uint64_t left = std::min(bytes, source.bytes - source.counted_bytes);
    source.counted_bytes += left;
    counts_.arrived_bytes += left;
  }

  void CountWhatIsDigested(TrainerLink& source) {
    while (source.counted < source.wave_end) {
      CountArrived(source, arrived_->chunks().chunks[source.ready[source.counted++]].size_bytes);
    }
  }

  void DigestWhatIsReady(TrainerLink& source) {
    if (digests_ == Digests::kOff) return;
    const auto ready = static_cast<uint32_t>(source.ready.size());
    while (true) {
      if (source.wave_runs && !source.wave_is_over.load(std::memory_order_acquire)) break;
      source.wave_runs = false;
      CountWhatIsDigested(source);
      // What has not come yet would cost a round trip to the device of its own.
      const uint32_t at_once = arrived_->at_once();
      if (!source.verifying && ready - source.wave_end < at_once) break;
      if (source.wave_end == ready || !MakeVisible(source)) break;
      source.wave_begin = std::exchange(source.wave_end, ready);
      const uint32_t groups = (ready - source.wave_begin + at_once - 1) / at_once;
      if (IsInCache(source)) {
        for (uint32_t group = 0; group < groups; ++group) DigestGroup(source, group);
        continue;
      }
      source.wave_runs = true;
      source.wave_is_over.store(false, std::memory_order_relaxed);
      pool_.Run(*source.digest_batch, groups);
    }
  }

  // --- showing ---

  void TryCopy(absl::Time now) {
    if (!shown_.BeginWriting(0)) return;
    copy_began_ = now;
    copied_.store(false, std::memory_order_relaxed);
    copy_status_ = absl::OkStatus();
    state_ = State::kCopying;
    const uint32_t at_once = memory_->copies_at_once();
    pool_.Run(copy_batch_, (manifest_->region_count() + at_once - 1) / at_once);
  }

  // On any thread.
  void CopyGroup(uint32_t group) {
    const uint32_t first = group * memory_->copies_at_once();
    const uint32_t last = std::min(first + memory_->copies_at_once(), manifest_->region_count());
    absl::Status status = memory_->CopyToShown(first, last);
    if (status.ok()) return;
    const std::lock_guard lock(copy_mutex_);
    copy_status_.Update(std::move(status));
  }

  // The engine's memory stays dirty where copying failed.
  void FinishCopy(absl::Time now) {
    absl::Status status;
    {
      const std::lock_guard lock(copy_mutex_);
      status = copy_status_;
    }
    if (status.ok()) return Show(0, now - copy_began_);
    state_ = State::kIdle;
    sink_({.kind = WorkerEvent::Kind::kFailed,
           .update = update_,
           .status = WithScope(std::move(status), Scope::kUpdate)});
  }

  // Keeps the digests of what the present plan has brought of the update at hand.
  void KeepDigests() {
    if (kept_digests_ == nullptr) kept_digests_ = std::make_shared<ShownDigests>(update_.version);
    for (const TrainerLink& source : sources_) {
      if (!source.verified) continue;
      if (digests_ == Digests::kOff) {
        kept_digests_->AddUnknown();
      } else {
        kept_digests_->Add(arrived_, source.first_route, source.last_route,
                           memory_->ledger(target_));
      }
    }
  }

  void Show(uint32_t buffer, absl::Duration pause) {
    state_ = State::kIdle;
    KeepDigests();
    {
      const std::lock_guard lock(digests_mutex_);
      shown_digests_ = std::exchange(kept_digests_, nullptr);
    }
    shown_.Show(buffer, update_.version);
    timeline_.End(Stage::kCommit);
    const bool unchanged = arrived_bytes_ && shown_bytes_ == arrived_bytes_;
    shown_bytes_ = arrived_bytes_;
    counts_.unchanged_versions += unchanged ? 1 : 0;
    sink_({.kind = WorkerEvent::Kind::kShown,
           .update = update_,
           .pause = pause,
           .unchanged = unchanged});
  }

  // After this no thread of ours reads what arrives.
  void StopVerifying() {
    for (TrainerLink& source : sources_) pool_.Cancel(*source.digest_batch);
  }
  // After this no thread of ours reads or writes the buffers.
  void StopWork() {
    StopVerifying();
    pool_.Cancel(copy_batch_);
  }

  Fabric& fabric_;
  const std::unique_ptr<Manifest> manifest_;
  const WorkerEngineOptions options_;
  const std::unique_ptr<WorkerMemory> memory_;
  ShownState shown_;

  uint32_t term_ = 0;  // Its tag.
  uint64_t plan_hash_ = 0;
  std::shared_ptr<ArrivedRoutes> arrived_;
  RelayedRoutes* relay_ = nullptr;
  KeptLanes<TrainerLane> kept_;
  std::deque<TrainerLink> sources_;  // In the order of the ledger; addresses are stable.
  ArrivalGate gate_;
  bool connected_ = false;

  std::optional<Prepared> prepared_;
  State state_ = State::kIdle;
  UpdateId update_;
  Digests digests_ = Digests::kOn;
  bool was_dirty_ = false;
  bool continued_ = false;  // Parts of it have arrived by another plan.
  uint32_t target_ = 0;
  std::optional<BytesOfVersion> arrived_bytes_, shown_bytes_;  // Null if not known.
  std::shared_ptr<ShownDigests> kept_digests_;  // Of the update at hand, once they are kept.
  std::mutex digests_mutex_;
  std::shared_ptr<const ShownDigests> shown_digests_;  // Of what is shown.
  absl::Time copy_began_;
  Timeline timeline_;
  std::atomic<bool> copied_ = false;
  std::mutex copy_mutex_;
  absl::Status copy_status_;
  WorkerCounts counts_;

  EventSink sink_;
  WorkPool::Batch copy_batch_;
  WorkPool pool_;  // Last: its threads end before what they use.
};

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerEngine>> WorkerEngine::Create(
    Fabric* fabric, Manifest manifest, const std::vector<MemorySpan>& user_regions,
    const WorkerEngineOptions& options, EventSink sink) {
  auto owned = std::make_unique<Manifest>(std::move(manifest));
  WAYBILL_ASSIGN_OR_RETURN(
      std::unique_ptr<WorkerMemory> memory,
      WorkerMemory::Create(fabric, owned.get(), options.mode, user_regions, options.arena_gpu));
  return std::make_unique<WorkerEngineImpl>(fabric, std::move(owned), options, std::move(memory),
                                            std::move(sink));
}

}  // namespace waybill
