#include "core/engine/worker_engine.h"

#include <atomic>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/engine/arrival_gate.h"
#include "core/engine/arrived_routes.h"
#include "core/engine/worker_memory.h"
#include "core/engine/worker_source.h"
#include "core/stage/work_pool.h"

namespace waybill {
namespace {

constexpr uint64_t kHelloToken = ~uint64_t{0};

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
        gate_(0),
        sink_(std::move(sink)),
        copy_batch_([this](uint32_t i) { CopyPart(i); },
                    [this] {
                      copied_.store(true, std::memory_order_release);
                      fabric_.Wake();
                    }),
        pool_(options.verify_threads) {
    events_.reserve(256);
  }

  ~WorkerEngineImpl() override { StopWork(); }

  absl::StatusOr<std::vector<LaneOffer>> SetPlan(RouteTable arrivals, uint64_t plan_hash,
                                                 const std::vector<PeerLanes>& lanes) override {
    CloseLanes();
    plan_hash_ = plan_hash;
    arrived_.emplace(manifest_.get(), std::move(arrivals));
    gate_ = ArrivalGate(MakeSources(lanes));
    WAYBILL_RETURN_IF_ERROR(memory_->AllocateLedgers(arrived_->routes().size()));
    std::vector<LaneOffer> offers;
    for (Source& source : sources_) {
      for (SourceLane& lane : source.lanes) {
        WAYBILL_ASSIGN_OR_RETURN(
            lane.id, fabric_.OpenLane(absl::StrCat("trainer ", source.trainer), lane.nic));
        WAYBILL_ASSIGN_OR_RETURN(std::string address, fabric_.LaneAddress(lane.id));
        offers.push_back({source.trainer, std::move(address)});
      }
    }
    return offers;
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
      Source* source = nullptr;
      for (Source& s : sources_) {
        if (s.trainer == trainer.trainer) source = &s;
      }
      if (source == nullptr) {
        return absl::InvalidArgumentError(
            absl::StrCat("the plan has no route from trainer ", trainer.trainer));
      }
      WAYBILL_RETURN_IF_ERROR(source->CheckLaneCount(trainer.lane_addresses.size()));
      for (size_t i = 0; i < source->lanes.size(); ++i) {
        WAYBILL_RETURN_IF_ERROR(
            fabric_.ConnectLane(source->lanes[i].id, trainer.lane_addresses[i]));
      }
    }
    CheckConnected();  // Without any trainer there is nothing to wait for.
    return absl::OkStatus();
  }

  void Prepare(const UpdateId& update, Digests digests, bool fence, absl::Time deadline) override {
    if (absl::Status status = CheckPrepare(update); !status.ok()) {
      sink_({.kind = WorkerEvent::Kind::kRefused, .update = update, .status = std::move(status)});
      return;
    }
    update_ = update;
    digests_ = digests;
    fence_ = fence;
    ready_deadline_ = deadline;
    target_ = options_.mode == Mode::kShadow && shown_.anything_shown() ? 1 - shown_.buffer() : 0;
    state_ = State::kWaitingForReaders;
  }

  void CloseLanes() override {
    StopWork();
    for (const Source& source : sources_) CloseLanes(source);
    sources_.clear();
    state_ = State::kIdle;
    connected_ = false;
  }

  void Commit(uint32_t sequence) override {
    if (state_ != State::kArrived || update_.sequence != sequence) return;
    timeline_.Begin(Stage::kCommit);
    if (options_.mode != Mode::kShadowCopy) return Show(target_, absl::ZeroDuration());
    state_ = State::kWaitingToCopy;
  }

  void Abort(uint32_t sequence, bool begun) override {
    if (state_ == State::kIdle || update_.sequence != sequence) return;
    StopWork();
    state_ = State::kIdle;
    if (options_.mode == Mode::kInPlace && !begun && !was_dirty_) shown_.SetDirty(false);
  }

  void Step(absl::Time now) override {
    events_.clear();
    fabric_.Poll(events_);
    for (const FabricEvent& event : events_) Handle(event);
    if (state_ == State::kWaitingForReaders) TryReady(now);
    if (state_ == State::kReceiving) Receive();
    if (state_ == State::kWaitingToCopy) TryCopy(now);
    if (state_ == State::kCopying && copied_.load(std::memory_order_acquire)) FinishCopy(now);
  }

  absl::StatusOr<Snapshot> TakeSnapshot(absl::string_view holder) override {
    return shown_.Take(holder);
  }
  uint64_t shown_version() const override { return shown_.version(); }
  bool dirty() const override { return shown_.dirty(); }

  std::vector<LaneReport> ReportLanes() const override {
    std::vector<LaneReport> reports;
    for (const Source& source : sources_) source.Report(fabric_, reports);
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
    kWaitingForReaders,  // Prepared; a snapshot may hold the buffer.
    kReceiving,          // Ready was said.
    kArrived,            // Voted.
    kFailed,             // Reported; Abort() is to come.
    kWaitingToCopy,      // Committed, in shadow-copy; a snapshot may hold the engine's memory.
    kCopying,
  };

  // --- the plan ---

  // How many lanes there are in all.
  uint32_t MakeSources(const std::vector<PeerLanes>& lanes) {
    const uint32_t lane_count =
        waybill::MakeSources(arrived_->routes(), arrived_->chunks(), lanes, sources_);
    for (Source& source : sources_) {
      source.digest_batch = std::make_unique<WorkPool::Batch>(
          [this, &source](uint32_t i) {
            arrived_->Digest(source.first_chunk + i, memory_->regions(target_));
          },
          [this, &source] {
            source.digested.store(true, std::memory_order_release);
            fabric_.Wake();
          });
    }
    return lane_count;
  }

  // --- lanes ---

  void Handle(const FabricEvent& event) {
    for (Source& source : sources_) {
      for (SourceLane& lane : source.lanes) {
        if (lane.id == event.lane && !source.failed) return Handle(source, lane, event);
      }
    }
  }

  void Handle(Source& source, SourceLane& lane, const FabricEvent& event) {
    switch (event.kind) {
      case FabricEvent::Kind::kConnected:
        return FailUnless(source, Greet(lane.id));
      case FabricEvent::Kind::kImmediate:
        return CountImmediate(source, lane, Immediate::Unpack(event.immediate));
      case FabricEvent::Kind::kComplete:
        return;
      case FabricEvent::Kind::kFailed:
        return Fail(source, fabric_.LaneStatus(lane.id));
    }
  }

  // Grants everything, then says so by an empty write, which proves the lane as well.
  absl::Status Greet(LaneId lane) {
    for (uint32_t b = 0; b < memory_->buffer_count(); ++b) {
      WAYBILL_RETURN_IF_ERROR(memory_->Grant(lane, b));
    }
    return fabric_.Post(lane, {}, Immediate{Immediate::Kind::kHello}.Pack(), kHelloToken);
  }

  void CountImmediate(Source& source, SourceLane& lane, Immediate immediate) {
    if (immediate.kind == Immediate::Kind::kHello) {
      lane.greeted = true;
      CheckConnected();
    } else if (immediate.kind == Immediate::Kind::kData) {
      gate_.Count(source.first_gate + static_cast<uint32_t>(&lane - source.lanes.data()),
                  immediate.sequence);
    }
  }

  void CheckConnected() {
    if (connected_) return;
    for (const Source& source : sources_) {
      for (const SourceLane& lane : source.lanes) {
        if (!lane.greeted) return;
      }
    }
    connected_ = true;
    sink_({.kind = WorkerEvent::Kind::kConnected});
  }

  void FailUnless(Source& source, absl::Status status) {
    if (!status.ok()) Fail(source, std::move(status));
  }

  void Fail(Source& source, absl::Status status) {
    if (std::exchange(source.failed, true)) return;
    // One dead lane is a dead trainer: nothing of it can land by the others from now on.
    CloseLanes(source);
    sink_({.kind = WorkerEvent::Kind::kPeerFailed,
           .trainer = source.trainer,
           .status = WithScope(std::move(status), Scope::kPeer)});
  }

  void CloseLanes(const Source& source) {
    for (const SourceLane& lane : source.lanes) (void)fabric_.CloseLane(lane.id);
  }

  // --- one update ---

  absl::Status CheckPrepare(const UpdateId& update) const {
    const auto refuse = [&](auto... why) {
      return absl::FailedPreconditionError(
          absl::StrCat("prepare version ", update.version, ": ", why...));
    };
    if (!connected_) return refuse("the lanes are not connected");
    if (state_ != State::kIdle) return refuse("version ", update_.version, " is not decided yet");
    if (update.plan_hash != plan_hash_) {
      return refuse("its plan is ", absl::Hex(update.plan_hash), ", this worker's is ",
                    absl::Hex(plan_hash_));
    }
    if (shown_.anything_shown() && update.version <= shown_.version()) {
      return refuse("version ", shown_.version(), " is shown, and versions only grow");
    }
    for (const Source& source : sources_) {
      if (source.failed) return refuse("the lane to trainer ", source.trainer, " is dead");
    }
    return absl::OkStatus();
  }

  void TryReady(absl::Time now) {
    const std::string holders =
        options_.mode == Mode::kShadowCopy ? "" : shown_.DescribeHolders(target_);
    if (!holders.empty()) {
      if (now < ready_deadline_) return;
      state_ = State::kIdle;
      sink_({.kind = WorkerEvent::Kind::kRefused,
             .update = update_,
             .status = absl::DeadlineExceededError(absl::StrCat("prepare version ", update_.version,
                                                                ": buffer ", target_,
                                                                " is still read: ", holders))});
      return;
    }
    std::optional<BufferAddress> renewed;
    if (fence_) {
      absl::StatusOr<BufferAddress> address = Fence();
      if (!address.ok()) {
        state_ = State::kIdle;
        sink_({.kind = WorkerEvent::Kind::kRefused, .update = update_, .status = address.status()});
        return;
      }
      renewed = *std::move(address);
    }
    was_dirty_ = shown_.dirty();
    if (options_.mode == Mode::kInPlace) shown_.SetDirty(true);
    gate_.Arm(update_.sequence);
    for (Source& source : sources_) {
      source.verifying = source.verified = false;
      source.digested.store(false, std::memory_order_relaxed);
    }
    arrived_->Begin(update_, digests_);
    state_ = State::kReceiving;
    timeline_.Clear();
    timeline_.Begin(Stage::kReceive);
    sink_({.kind = WorkerEvent::Kind::kReady,
           .update = update_,
           .buffer_index = target_,
           .renewed = std::move(renewed)});
  }

  absl::StatusOr<BufferAddress> Fence() {
    ++counts_.renewals;
    WAYBILL_RETURN_IF_ERROR(While("fence the buffer", memory_->Renew(target_)));
    for (Source& source : sources_) {
      for (const SourceLane& lane : source.lanes) {
        WAYBILL_RETURN_IF_ERROR(memory_->Grant(lane.id, target_));
      }
    }
    return memory_->Describe(target_);
  }

  void Receive() {
    bool all = true;
    for (Source& source : sources_) {
      if (!source.verifying && Arrived(source)) BeginVerifying(source);
      if (source.verifying && !source.verified && source.digested.load(std::memory_order_acquire)) {
        absl::Status status =
            arrived_->Compare(source.first_route, source.last_route, memory_->ledger(target_));
        if (!status.ok()) {
          return FailUpdate(std::move(status));
        }
        source.verified = true;
        counts_.verified_bytes += arrived_->bytes(source.first_route, source.last_route);
      }
      all = all && source.verified;
    }
    if (!all) return;
    if (absl::Status status =
            arrived_->CompareWitnesses(memory_->regions(target_), memory_->ledger(target_));
        !status.ok()) {
      return FailUpdate(std::move(status));
    }
    timeline_.End(Stage::kVerify);
    state_ = State::kArrived;
    sink_({.kind = WorkerEvent::Kind::kArrived, .update = update_});
  }

  void FailUpdate(absl::Status status) {
    state_ = State::kFailed;
    StopWork();
    sink_({.kind = WorkerEvent::Kind::kFailed,
           .update = update_,
           .status = WithScope(std::move(status), Scope::kUpdate)});
  }

  bool Arrived(const Source& source) const {
    for (uint32_t i = 0; i < source.lanes.size(); ++i) {
      if (!gate_.arrived(source.first_gate + i)) return false;
    }
    return true;
  }

  void BeginVerifying(Source& source) {
    source.verifying = true;
    timeline_.End(Stage::kReceive);
    timeline_.Begin(Stage::kVerify);
    if (digests_ == Digests::kOn) {
      pool_.Run(*source.digest_batch, source.last_chunk - source.first_chunk);
    } else {
      source.digested.store(true, std::memory_order_relaxed);
    }
  }

  // --- showing ---

  void TryCopy(absl::Time now) {
    if (!shown_.DescribeHolders(0).empty()) return;
    shown_.SetDirty(true);
    copy_began_ = now;
    copied_.store(false, std::memory_order_relaxed);
    copy_status_ = absl::OkStatus();
    state_ = State::kCopying;
    pool_.Run(copy_batch_, manifest_->region_count());
  }

  // On any thread.
  void CopyPart(uint32_t region) {
    absl::Status status = memory_->CopyToShown(region);
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

  void Show(uint32_t buffer, absl::Duration pause) {
    state_ = State::kIdle;
    shown_.Show(buffer, update_.version);
    timeline_.End(Stage::kCommit);
    sink_({.kind = WorkerEvent::Kind::kShown, .update = update_, .pause = pause});
  }

  // After this no thread of ours reads or writes the buffers.
  void StopWork() {
    for (Source& source : sources_) pool_.Cancel(*source.digest_batch);
    pool_.Cancel(copy_batch_);
  }

  Fabric& fabric_;
  const std::unique_ptr<Manifest> manifest_;
  const WorkerEngineOptions options_;
  const std::unique_ptr<WorkerMemory> memory_;
  ShownState shown_;

  uint64_t plan_hash_ = 0;
  std::optional<ArrivedRoutes> arrived_;
  std::deque<Source> sources_;  // In the order of the ledger; addresses are stable.
  ArrivalGate gate_;
  bool connected_ = false;

  State state_ = State::kIdle;
  UpdateId update_;
  Digests digests_ = Digests::kOn;
  bool fence_ = false;
  bool was_dirty_ = false;
  absl::Time ready_deadline_;
  uint32_t target_ = 0;
  absl::Time copy_began_;
  Timeline timeline_;
  std::atomic<bool> copied_ = false;
  std::mutex copy_mutex_;
  absl::Status copy_status_;
  WorkerCounts counts_;

  EventSink sink_;
  std::vector<FabricEvent> events_;
  WorkPool::Batch copy_batch_;
  WorkPool pool_;  // Last: its threads end before what they use.
};

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerEngine>> WorkerEngine::Create(
    Fabric* fabric, Manifest manifest, const std::vector<MemorySpan>& user_regions,
    const WorkerEngineOptions& options, EventSink sink) {
  auto owned = std::make_unique<Manifest>(std::move(manifest));
  WAYBILL_ASSIGN_OR_RETURN(std::unique_ptr<WorkerMemory> memory,
                           WorkerMemory::Create(fabric, owned.get(), options.mode, user_regions));
  return std::make_unique<WorkerEngineImpl>(fabric, std::move(owned), options, std::move(memory),
                                            std::move(sink));
}

}  // namespace waybill
