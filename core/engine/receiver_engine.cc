// SPDX-License-Identifier: Apache-2.0

#include "core/engine/receiver_engine.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/engine/arrived_routes.h"
#include "core/engine/kept_lanes.h"
#include "core/engine/receiver_memory.h"
#include "core/engine/sender_link.h"
#include "core/engine/shown_digests.h"
#include "core/protocol/receive_schedule.h"
#include "core/stage/work_pool.h"

namespace waybill {
namespace {

constexpr uint64_t kGrantedToken = ~uint64_t{0};

class ReceiverEngineImpl final : public ReceiverEngine {
 public:
  ReceiverEngineImpl(Fabric* fabric, std::unique_ptr<Manifest> manifest,
                     const ReceiverEngineOptions& options, std::unique_ptr<ReceiverMemory> memory,
                     EventSink sink)
      : fabric_(*fabric),
        manifest_(std::move(manifest)),
        options_(options),
        memory_(std::move(memory)),
        shown_(memory_->shown_buffers(), [fabric] { fabric->Wake(); }),
        kept_(fabric),
        schedule_(options.mode),
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

  ~ReceiverEngineImpl() override { StopWork(); }

  absl::StatusOr<std::vector<LaneOffer>> SetPlan(RouteTable arrivals, uint64_t plan_hash,
                                                 const TermLanes& lanes) override {
    EndTerm();
    kept_.CloseAllBut(lanes.peers);
    term_ = lanes.tag;
    plan_hash_ = plan_hash;
    std::map<uint32_t, RankId> senders;
    for (const PeerLanes& peer : lanes.peers) senders[peer.peer] = peer.id;
    arrived_ = std::make_shared<ArrivedRoutes>(manifest_.get(), std::move(arrivals),
                                               options_.chunk_bytes, std::move(senders));
    if (memory_->receiving_device() != nullptr) {
      WAYBILL_RETURN_IF_ERROR(
          arrived_->DigestOn(memory_->receiving_device(), options_.verify_threads,
                             [this](uint32_t region) { return memory_->ArrivesOnDevice(region); }));
    }
    WAYBILL_RETURN_IF_ERROR(MakeSources(lanes));
    for (SenderLink& source : sources_) {
      if (!IsKept(lanes.peers, source.sender)) continue;
      WAYBILL_RETURN_IF_ERROR(kept_.Take(source.sender, source.lanes));
      for (SenderLane& lane : source.lanes) {
        lane.kept = true;
        lane.granted = false;
      }
    }
    WAYBILL_RETURN_IF_ERROR(memory_->AllocateLedgers(arrived_->routes().size()));
    std::vector<LaneOffer> offers;
    for (SenderLink& source : sources_) {
      for (SenderLane& lane : source.lanes) {
        if (!lane.kept) {
          WAYBILL_ASSIGN_OR_RETURN(lane.id, fabric_.OpenLane(ToString(source.id), lane.nic));
        }
        WAYBILL_ASSIGN_OR_RETURN(std::string address, fabric_.LaneAddress(lane.id));
        offers.push_back({source.sender, std::move(address)});
      }
    }
    return offers;
  }

  void RelayBy(RelayedRoutes* relay) override {
    relay_ = relay;
    schedule_.set_passes_on(relay != nullptr);
  }
  const RouteTable& arrivals() const override { return arrived_->routes(); }

  std::vector<MemorySpan> Receiving() const override {
    std::vector<MemorySpan> memory;
    memory.reserve(regions().size());
    for (uint32_t r = 0; r < regions().size(); ++r) {
      memory.push_back(
          {.kind = memory_->ArrivesOnDevice(r) ? MemoryKind::kDevice : MemoryKind::kHost,
           .data = regions()[r].data(),
           .size_bytes = regions()[r].size()});
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

  absl::Status Connect(absl::Span<const SenderAddress> senders) override {
    for (const SenderAddress& sender : senders) {
      SenderLink* source = nullptr;
      for (SenderLink& s : sources_) {
        if (s.sender == sender.sender) source = &s;
      }
      if (source == nullptr) {
        return absl::InvalidArgumentError(
            absl::StrCat("the plan has no route from trainer ", sender.sender));
      }
      WAYBILL_RETURN_IF_ERROR(source->CheckLaneCount(sender.lane_addresses.size()));
      for (size_t i = 0; i < source->lanes.size(); ++i) {
        const SenderLane& lane = source->lanes[i];
        WAYBILL_RETURN_IF_ERROR(lane.kept ? Grant(lane.id)
                                          : fabric_.ConnectLane(lane.id, sender.lane_addresses[i]));
      }
    }
    CheckConnected();  // A plan without senders is connected at once.
    return absl::OkStatus();
  }

  void Prepare(const UpdateId& update, Digests digests, absl::Time deadline) override {
    absl::Status status = schedule_.Prepare(
        update, digests == Digests::kOn ? Verification::kOn : Verification::kOff, deadline);
    if (!status.ok()) Refuse(update, std::move(status));
  }

  void Continue(const UpdateId& from, const UpdateId& to) override {
    absl::Status status = schedule_.Continue(from, to);
    if (!status.ok()) return Refuse(to, std::move(status));
    Run();
  }

  void LoseSender(uint32_t sender, const absl::Status& why) override {
    for (SenderLink& source : sources_) {
      if (source.sender == sender) Fail(source, why);
    }
  }

  void CloseLanes() override {
    EndTerm();
    kept_.CloseAllBut({});
  }

  void Commit(const UpdateId& update) override {
    if (!schedule_.Commit(update)) return;
    timeline_.Begin(Stage::kCommit);
    copy_began_ = now_;  // The pause is 0 unless kCopy follows.
    Run();
  }

  void Abort(const UpdateId& update, bool begun) override {
    shown_.StopWaiting();
    if (!schedule_.Abort(update, begun)) return;
    StopVerifying();
    if (options_.mode == Mode::kInPlace && !begun && !was_dirty_) shown_.SetDirty(false);
  }

  absl::Status Pause() override {
    if (const UpdateId* update = schedule_.at_hand(); update != nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("version ", update->version, " is being received, or waits to be shown"));
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
    for (SenderLink& source : sources_) {
      for (SenderLane& lane : source.lanes) {
        if (lane.id != event.lane || source.failed) continue;
        Handle(source, lane, event);
        return true;
      }
    }
    return kept_.Handle(event);
  }

  void Step(absl::Time now) override {
    now_ = now;
    schedule_.Retry(now, [this](uint32_t buffer) { return Claim(buffer); });
    ReportProgress();
    Run();
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
      // A newer version is being shown right now.
      if (digests->version() != snapshot->version()) continue;
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
    for (const SenderLink& source : sources_) source.Report(fabric_, reports);
    return reports;
  }

  StageSpans stages() const override { return timeline_.spans(); }

  ReceiverCounts counts() const override {
    ReceiverCounts counts = counts_;
    counts.early_chunks = schedule_.early_chunks();
    counts.stragglers = schedule_.stragglers();
    counts.repeats = schedule_.repeats();
    return counts;
  }

 private:
  // Compares equal if the bytes of two versions are equal.
  struct BytesOfVersion {
    uint64_t plan_hash;
    uint64_t digest;
    bool operator==(const BytesOfVersion&) const = default;
  };

  // --- the plan ---

  // Ends the current update, drops the plan, and keeps the lanes that work.
  void EndTerm() {
    // A committed version that has yet to be copied waits again from the next Retry() on.
    shown_.StopWaiting();
    StopVerifying();
    if (schedule_.EndTerm()) KeepDigests();            // The next plan has another ledger.
    if (arrived_ != nullptr) arrived_->LeaveDevice();  // The digests that are kept name its routes.
    for (SenderLink& source : sources_) {
      if (!source.failed) kept_.Add(source.sender, std::move(source.lanes));
    }
    sources_.clear();
    relay_ = nullptr;
  }

  absl::Status MakeSources(const TermLanes& lanes) {
    absl::Status status = MakeSenderLinks(arrived_->routes(), arrived_->chunks(), lanes, sources_);
    if (!status.ok()) {
      sources_.clear();  // The schedule was not given these senders.
      return status;
    }
    std::vector<ReceiveSender> senders;
    for (SenderLink& source : sources_) {
      senders.push_back({.lane_count = static_cast<uint32_t>(source.lanes.size()),
                         .chunk_count = source.chunk_count});
      source.digest_batch = std::make_unique<WorkPool::Batch>(
          [this, &source](uint32_t group) { DigestGroup(source, group); },
          [this, &source] {
            source.wave_is_over.store(true, std::memory_order_release);
            fabric_.Wake();
          });
    }
    schedule_.SetSenders(plan_hash_, senders, arrived_->at_once());
    return absl::OkStatus();
  }

  // --- lanes ---

  void Handle(SenderLink& source, SenderLane& lane, const FabricEvent& event) {
    switch (event.kind) {
      case FabricEvent::Kind::kConnected:
        return FailOnError(source, Grant(lane.id));
      case FabricEvent::Kind::kImmediate:
        return CountImmediate(source, lane, Immediate::Unpack(event.immediate));
      case FabricEvent::Kind::kComplete:
        return;
      case FabricEvent::Kind::kFailed:
        return Fail(source, fabric_.LaneStatus(lane.id));
    }
  }

  // Grants all buffers on the lane, then sends kGranted.
  absl::Status Grant(LaneId lane) {
    for (uint32_t b = 0; b < memory_->buffer_count(); ++b) {
      WAYBILL_RETURN_IF_ERROR(memory_->Grant(lane, b));
    }
    return fabric_.Post(lane, {}, Immediate{Immediate::Kind::kGranted, term_}.Pack(),
                        kGrantedToken);
  }

  void CountImmediate(SenderLink& source, SenderLane& lane, Immediate immediate) {
    if (immediate.kind == Immediate::Kind::kGranted) {
      if (immediate.sequence != term_) return;
      lane.granted = true;
      CheckConnected();
    } else if (immediate.kind == Immediate::Kind::kData) {
      schedule_.OnLaneEnd(source.index, static_cast<uint32_t>(&lane - source.lanes.data()),
                          immediate.sequence);
    } else if (immediate.kind == Immediate::Kind::kChunk ||
               immediate.kind == Immediate::Kind::kChanges) {
      const std::optional<uint32_t> chunk =
          schedule_.OnChunk(source.index, ChunkImmediate::Unpack(immediate));
      if (chunk && immediate.kind == Immediate::Kind::kChanges) {
        arrived_->NoteChanges(*chunk);
        completes_ = true;
      }
    }
  }

  void CheckConnected() {
    if (schedule_.connected()) return;
    for (const SenderLink& source : sources_) {
      for (const SenderLane& lane : source.lanes) {
        if (!lane.granted) return;
      }
    }
    schedule_.OnConnected();
    sink_({.kind = ReceiverEvent::Kind::kConnected});
  }

  void FailOnError(SenderLink& source, absl::Status status) {
    if (!status.ok()) Fail(source, std::move(status));
  }

  void Fail(SenderLink& source, absl::Status status) {
    if (source.failed) return;
    // If all data of the sender has arrived, it is verified although the lane is dead.
    if (schedule_.waits_for_visibility(source.index) && ShowToKernels(source).ok()) {
      BecomeVisible(source);
    }
    GiveUp(source, std::move(status));
  }

  void GiveUp(SenderLink& source, absl::Status status) {
    source.failed = true;
    // A dead lane means a dead sender. Its other lanes are closed, so that none of its writes can
    // land.
    CloseLanes(source);
    schedule_.OnSenderFailed(source.index);
    if (schedule_.is_lost(source.index)) pool_.Cancel(*source.digest_batch);
    sink_({.kind = ReceiverEvent::Kind::kPeerFailed,
           .sender = source.sender,
           .status = WithScope(std::move(status), Scope::kPeer)});
  }

  void CloseLanes(const SenderLink& source) {
    for (const SenderLane& lane : source.lanes) (void)fabric_.CloseLane(lane.id);
  }

  // --- one update ---

  // Returns true if no snapshot holds the buffer, whose memory is then marked as dirty.
  bool Claim(uint32_t buffer) {
    if (options_.mode == Mode::kShadow) return shown_.DescribeHolders(buffer).empty();
    was_dirty_ = shown_.dirty();
    return shown_.BeginWriting(buffer);
  }

  // Reports finished work of the threads to the schedule.
  void ReportProgress() {
    for (SenderLink& source : sources_) {
      if (schedule_.is_digesting(source.index) &&
          source.wave_is_over.load(std::memory_order_acquire)) {
        EndWave(source);
      }
    }
    FinishCopy();
  }

  // Executes the schedule's commands until none is left.
  void Run() {
    for (ReceiveCommand command; schedule_.Next(command);) Execute(command);
  }

  void Execute(const ReceiveCommand& command) {
    using Kind = ReceiveCommand::Kind;
    switch (command.kind) {
      case Kind::kOffer:
      case Kind::kContinue:
        return Offer(command);
      case Kind::kExpire:
        shown_.StopWaiting();
        return Refuse(command.update, absl::DeadlineExceededError(
                                          absl::StrCat("prepare version ", command.update.version,
                                                       ": ", DescribeBusy(command.buffer))));
      case Kind::kMakeVisible:
        return MakeVisible(sources_[command.sender]);
      case Kind::kPassOn:
        // A chunk of which the changes came is passed on once it is complete.
        for (const uint32_t chunk : command.chunks) {
          if (!arrived_->has_changes(chunk)) relay_->OnArrived(chunk);
        }
        return;
      case Kind::kDigest:
        return BeginWave(sources_[command.sender], command.chunks);
      case Kind::kCompare:
        return Compare(sources_[command.sender]);
      case Kind::kCheck:
        return Check();
      case Kind::kLacking:
        return TellLacking();
      case Kind::kCopy:
        return BeginCopy();
      case Kind::kShow:
        return Show(command);
    }
  }

  void Refuse(const UpdateId& update, absl::Status status) {
    sink_({.kind = ReceiverEvent::Kind::kRefused, .update = update, .status = std::move(status)});
  }

  // Describes which snapshots keep the next update from beginning.
  std::string DescribeBusy(uint32_t buffer) const {
    if (!schedule_.is_committed()) {
      return absl::StrCat("buffer ", buffer, " is still read: ", shown_.DescribeHolders(buffer));
    }
    const std::string holders = shown_.DescribeHolders(0);
    return absl::StrCat("version ", schedule_.update().version, " is committed and not shown yet",
                        holders.empty() ? "" : "; the engine's memory is still read: ", holders);
  }

  void Offer(const ReceiveCommand& command) {
    const bool continues = command.kind == ReceiveCommand::Kind::kContinue;
    absl::StatusOr<BufferAddress> address =
        continues ? RenewAndKeep(command.buffer) : RenewIfAbandoned(command.buffer);
    if (!address.ok()) {
      schedule_.OnOfferFailed();
      if (options_.mode == Mode::kInPlace && !continues) shown_.SetDirty(was_dirty_);
      return Refuse(command.update, address.status());
    }
    schedule_.OnOffered();
    if (!continues) {
      completes_ = false;
      timeline_.Clear();
      kept_digests_.reset();
    }
    for (SenderLink& source : sources_) source.BeginUpdate();
    if (relay_ != nullptr) relay_->Begin();
    const uint64_t base = FindBase();
    arrived_->Begin(command.update, digests(),
                    base == 0 ? nullptr : &memory_->shown_buffers()[shown_.buffer()]);
    timeline_.Begin(Stage::kReceive);
    sink_({.kind = ReceiverEvent::Kind::kReady,
           .update = command.update,
           .buffer_index = command.buffer,
           .address = *std::move(address),
           .base = base});
  }

  // Returns the shown version if chunks can be completed from it: if it stays as it is while the
  // update arrives, in host memory, and errors would be detected.
  uint64_t FindBase() const {
    const bool can = options_.mode != Mode::kInPlace && memory_->device() == nullptr &&
                     digests() == Digests::kOn && !shown_.dirty() && counts_.wrong_bases == 0;
    return can ? shown_.version() : 0;
  }

  std::vector<LaneId> AllLanes() const {
    std::vector<LaneId> lanes;
    for (const SenderLink& source : sources_) {
      if (source.failed) continue;
      for (const SenderLane& lane : source.lanes) lanes.push_back(lane.id);
    }
    return lanes;
  }

  // Returns the buffer's current address.
  absl::StatusOr<BufferAddress> RenewIfAbandoned(uint32_t buffer) {
    WAYBILL_ASSIGN_OR_RETURN(const bool moved, memory_->HasMoved(buffer));
    if (moved) schedule_.Abandon(buffer);
    if (schedule_.is_abandoned(buffer)) {
      ++counts_.renewals;
      WAYBILL_RETURN_IF_ERROR(While("renew the buffer", memory_->Renew(buffer, AllLanes())));
    }
    return memory_->Describe(buffer);
  }

  absl::StatusOr<BufferAddress> RenewAndKeep(uint32_t buffer) {
    WAYBILL_RETURN_IF_ERROR(While("renew the buffer", memory_->RenewAndKeep(buffer, AllLanes())));
    ++counts_.renewals;
    return memory_->Describe(buffer);
  }

  void Compare(SenderLink& source) {
    absl::Status status = arrived_->Compare(source.first_route, source.last_route, ledger());
    if (!status.ok()) return FailUpdate(std::move(status));
    schedule_.OnVerified(source.index);
    counts_.verified_bytes += source.bytes;
    CountArrived(source, source.bytes);
  }

  void Check() {
    absl::Status status = arrived_->CompareWitnesses(regions(), ledger());
    if (!status.ok()) return FailUpdate(std::move(status));
    schedule_.OnArrived();
    timeline_.End(Stage::kVerify);
    arrived_bytes_.reset();
    // A plan for missing routes does not contain all routes.
    if (digests() == Digests::kOn && !schedule_.continued()) {
      arrived_bytes_ = {plan_hash_, arrived_->DigestOfAll(ledger())};
    }
    sink_({.kind = ReceiverEvent::Kind::kArrived, .update = schedule_.update()});
  }

  void TellLacking() {
    timeline_.End(Stage::kVerify);
    ReceiverEvent event = {.kind = ReceiverEvent::Kind::kLacking, .update = schedule_.update()};
    for (const SenderLink& source : sources_) {
      if (schedule_.is_lost(source.index)) event.lacking.push_back(source.sender);
    }
    sink_(event);
  }

  void FailUpdate(absl::Status status) {
    if (completes_) ++counts_.wrong_bases;
    schedule_.Fail();
    StopVerifying();
    TellFailed(std::move(status), /*wrong_base=*/completes_);
  }

  void TellFailed(absl::Status status, bool wrong_base = false) {
    sink_({.kind = ReceiverEvent::Kind::kFailed,
           .update = schedule_.update(),
           .status = WithScope(std::move(status), Scope::kUpdate),
           .wrong_base = wrong_base});
  }

  InboundWrites inbound_writes() const {
    const Device* const device = memory_->receiving_device().get();
    return device == nullptr ? InboundWrites::kOrdered : device->inbound_writes();
  }

  absl::Status ShowToKernels(const SenderLink& source) {
    switch (inbound_writes()) {
      case InboundWrites::kOrdered:
        break;
      case InboundWrites::kFlushed:
        return memory_->receiving_device()->FlushInboundWrites();
      case InboundWrites::kReadBack:
        for (const SenderLane& lane : source.lanes) {
          WAYBILL_RETURN_IF_ERROR(fabric_.ReadBack(lane.id));
        }
        break;
    }
    return absl::OkStatus();
  }

  // Makes the sender's arrived bytes visible to kernels. If that fails, fails the sender, as for a
  // dead lane; or fails the update if the error is the GPU's.
  void MakeVisible(SenderLink& source) {
    absl::Status status = ShowToKernels(source);
    if (status.ok()) return BecomeVisible(source);
    if (inbound_writes() == InboundWrites::kReadBack) return GiveUp(source, std::move(status));
    FailUpdate(std::move(status));
  }

  void BecomeVisible(SenderLink& source) {
    if (!schedule_.OnVisible(source.index)) return;
    timeline_.End(Stage::kReceive);
    timeline_.Begin(Stage::kVerify);
    if (relay_ != nullptr) relay_->OnLedger(source.first_route, source.last_route, ledger());
  }

  // Returns true if the latest chunks of the sender are likely in this thread's cache. Chunks that
  // are to be completed from the shown version are not.
  bool IsInCache(const SenderLink& source) const {
    return !schedule_.is_complete(source.index) && memory_->receiving_device() == nullptr &&
           std::none_of(source.wave.begin(), source.wave.end(),
                        [this](uint32_t chunk) { return arrived_->has_changes(chunk); }) &&
           std::all_of(source.lanes.begin(), source.lanes.end(),
                       [this](const SenderLane& lane) { return fabric_.CopiesPosts(lane.id); });
  }

  void BeginWave(SenderLink& source, absl::Span<const uint32_t> chunks) {
    source.wave = chunks;
    const auto count = static_cast<uint32_t>(chunks.size());
    const uint32_t at_once = arrived_->at_once();
    const uint32_t groups = (count + at_once - 1) / at_once;
    if (IsInCache(source)) {
      for (uint32_t group = 0; group < groups; ++group) DigestGroup(source, group);
      return EndWave(source);
    }
    source.wave_is_over.store(false, std::memory_order_relaxed);
    pool_.Run(*source.digest_batch, groups);
    // A pool without threads has finished already.
    if (source.wave_is_over.load(std::memory_order_acquire)) EndWave(source);
  }

  // On any thread.
  void DigestGroup(const SenderLink& source, uint32_t group) {
    const uint32_t at_once = arrived_->at_once();
    arrived_->Digest(source.wave.subspan(uint64_t{group} * at_once, at_once), regions());
  }

  void EndWave(SenderLink& source) {
    for (const uint32_t chunk : std::exchange(source.wave, {})) {
      const uint64_t size_bytes = arrived_->chunks().chunks[chunk].size_bytes;
      CountArrived(source, size_bytes);
      if (!arrived_->has_changes(chunk)) continue;
      counts_.completed_bytes += size_bytes;
      if (relay_ != nullptr) relay_->OnArrived(chunk);
    }
    schedule_.OnDigested(source.index);
  }

  // Chunks may contain more bytes than are written: witness routes are only compared.
  void CountArrived(SenderLink& source, uint64_t bytes) {
    const uint64_t left = std::min(bytes, source.bytes - source.counted_bytes);
    source.counted_bytes += left;
    counts_.arrived_bytes += left;
  }

  // --- showing ---

  void BeginCopy() {
    copy_began_ = now_;
    copy_status_ = absl::OkStatus();
    const uint32_t at_once = memory_->copies_at_once();
    pool_.Run(copy_batch_, (manifest_->region_count() + at_once - 1) / at_once);
    FinishCopy();  // A pool without threads has finished already.
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

  // Finishes the copy once all threads are done. If copying failed, the inference engine's memory
  // stays dirty.
  void FinishCopy() {
    if (!copied_.load(std::memory_order_acquire)) return;
    copied_.store(false, std::memory_order_relaxed);
    absl::Status status;
    {
      const std::lock_guard lock(copy_mutex_);
      status = copy_status_;
    }
    schedule_.OnCopied(status.ok());
    if (!status.ok()) TellFailed(std::move(status));
  }

  // Keeps the digests of the routes that the current plan has brought.
  void KeepDigests() {
    if (kept_digests_ == nullptr) {
      kept_digests_ = std::make_shared<ShownDigests>(schedule_.update().version);
    }
    for (const SenderLink& source : sources_) {
      if (!schedule_.is_verified(source.index)) continue;
      if (digests() == Digests::kOff) {
        kept_digests_->AddUnknown();
      } else {
        kept_digests_->Add(arrived_, source.first_route, source.last_route, ledger());
      }
    }
  }

  void Show(const ReceiveCommand& command) {
    KeepDigests();
    {
      const std::lock_guard lock(digests_mutex_);
      shown_digests_ = std::exchange(kept_digests_, nullptr);
    }
    shown_.Show(command.buffer, command.update.version);
    timeline_.End(Stage::kCommit);
    const bool unchanged = arrived_bytes_ && shown_bytes_ == arrived_bytes_;
    shown_bytes_ = arrived_bytes_;
    counts_.unchanged_versions += unchanged ? 1 : 0;
    sink_({.kind = ReceiverEvent::Kind::kShown,
           .update = command.update,
           .pause = now_ - copy_began_,
           .unchanged = unchanged});
  }

  // The buffer of the update that was prepared last, and its ledger.
  const RegionSpans& regions() const { return memory_->regions(schedule_.buffer()); }
  const LedgerEntry* ledger() const { return memory_->ledger(schedule_.buffer()); }
  Digests digests() const {
    return schedule_.verification() == Verification::kOn ? Digests::kOn : Digests::kOff;
  }

  // Stops verifying. When it returns, no thread reads arriving bytes.
  void StopVerifying() {
    for (SenderLink& source : sources_) pool_.Cancel(*source.digest_batch);
  }
  // Stops all work. When it returns, no thread reads or writes the buffers.
  void StopWork() {
    StopVerifying();
    pool_.Cancel(copy_batch_);
  }

  Fabric& fabric_;
  const std::unique_ptr<Manifest> manifest_;
  const ReceiverEngineOptions options_;
  const std::unique_ptr<ReceiverMemory> memory_;
  ShownState shown_;

  uint32_t term_ = 0;  // The term's tag.
  uint64_t plan_hash_ = 0;
  std::shared_ptr<ArrivedRoutes> arrived_;
  RelayedRoutes* relay_ = nullptr;
  KeptLanes<SenderLane> kept_;
  std::deque<SenderLink> sources_;  // In the order of the ledger; addresses are stable.
  ReceiveSchedule schedule_;

  absl::Time now_;          // The time of the last Step().
  bool was_dirty_ = false;  // The value of dirty() before the buffer was claimed.
  bool completes_ = false;  // The update has chunks of which only the changes came.
  std::optional<BytesOfVersion> arrived_bytes_, shown_bytes_;  // Nullopt if unknown.
  // The current update's; null until digests are kept.
  std::shared_ptr<ShownDigests> kept_digests_;
  std::mutex digests_mutex_;
  std::shared_ptr<const ShownDigests> shown_digests_;  // The shown version's digests.
  absl::Time copy_began_;
  Timeline timeline_;
  std::atomic<bool> copied_ = false;
  std::mutex copy_mutex_;
  absl::Status copy_status_;
  ReceiverCounts counts_;

  EventSink sink_;
  WorkPool::Batch copy_batch_;
  WorkPool pool_;  // Last: its threads end before what they use.
};

}  // namespace

absl::StatusOr<std::unique_ptr<ReceiverEngine>> ReceiverEngine::Create(
    Fabric* fabric, Manifest manifest, const std::vector<MemorySpan>& user_regions,
    const ReceiverEngineOptions& options, EventSink sink) {
  auto owned = std::make_unique<Manifest>(std::move(manifest));
  WAYBILL_ASSIGN_OR_RETURN(
      std::unique_ptr<ReceiverMemory> memory,
      ReceiverMemory::Create(fabric, owned.get(), options.mode, user_regions, options.arena_gpu));
  return std::make_unique<ReceiverEngineImpl>(fabric, std::move(owned), options, std::move(memory),
                                              std::move(sink));
}

}  // namespace waybill
