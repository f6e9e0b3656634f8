#include "core/control/trainer.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/control/messages.h"

namespace waybill {
namespace {

class TrainerClient final : public Trainer, private RankClient {
 public:
  TrainerClient(const TrainerOptions& options, const Manifest& manifest,
                std::vector<MemorySpan> regions, std::unique_ptr<Fabric> fabric)
      : RankClient({Role::kTrainer, options.identity.rank}, options.identity, manifest,
                   std::move(fabric)),
        options_(options),
        manifest_(manifest),
        regions_(std::move(regions)) {}

  ~TrainerClient() override { Leave(); }

  void Leave() override {
    if (!joined()) return;
    EndOnThread(absl::CancelledError("it has left the job"));
    {
      std::unique_lock lock(mutex_);
      AwaitLocked(lock, absl::InfiniteFuture(), [this] { return !publish_ || publish_->returned; });
    }
    Shut();
  }

  absl::Status Begin() {
    WAYBILL_ASSIGN_OR_RETURN(
        engine_, TrainerEngine::Create(&fabric(), options_.engine,
                                       [this](const TrainerEvent& event) { OnEvent(event); }));
    StartThread();
    return Attend({});
  }

  absl::Status Publish(uint64_t version, const PublishOptions& options) override {
    std::unique_lock lock(mutex_);
    if (!end_.ok()) return end_;
    if (publish_ && !publish_->returned) {
      return absl::FailedPreconditionError(absl::StrCat("publish version ", version, ": version ",
                                                        publish_->version, " is being published"));
    }
    publish_.emplace(
        PublishState{.version = version, .fail_on_nonfinite = options.fail_on_nonfinite});
    times_ = {.published = absl::Now()};
    proto::RankMessage message;
    message.mutable_publish()->set_version(version);
    message.mutable_publish()->set_deadline_ms(absl::ToInt64Milliseconds(options.timeout));
    message.mutable_publish()->set_digests_off(options.digests == Digests::kOff);
    Send(std::move(message));
    lock.unlock();
    const auto on_cancel = [this] { thread().Do([this] { Cancel(); }); };
    std::optional<std::stop_callback<decltype(on_cancel)>> cancel(std::in_place, options.cancel,
                                                                  on_cancel);
    lock.lock();
    // The controller ends it by the deadline; a little longer, and it is gone.
    const absl::Duration timeout =
        options.timeout > absl::ZeroDuration() ? options.timeout : absl::Seconds(60);
    const absl::Time deadline = absl::Now() + timeout + absl::Milliseconds(500);
    const auto ended = [this] {
      return publish_->sent || (!publish_->status.ok() && !publish_->writing);
    };
    bool told = AwaitLocked(lock, deadline, [&] { return ended() || publish_->cancelled; });
    if (told && !ended()) {
      // It is the controller who gives an update up; one that does not answer is not waited for.
      told = AwaitLocked(lock, std::min(deadline, absl::Now() + absl::Seconds(1)), ended);
      if (!told && publish_->status.ok()) publish_->status = CancelledPublish(version);
    }
    lock.unlock();
    cancel.reset();
    lock.lock();
    if (!told) {
      // The controller may have said why, and writes to a peer that has stopped not have ended.
      if (publish_->status.ok()) {
        publish_->status = absl::DeadlineExceededError(absl::StrCat(
            "publish version ", version, ": not sent after ", absl::FormatDuration(timeout)));
      }
      lock.unlock();
      // Nothing of ours may be reading the tensors when this returns.
      thread().DoAndWait([this] { engine_->StopNow(); });
      lock.lock();
    }
    publish_->returned = true;
    NotifyAll();
    return publish_->sent ? absl::OkStatus() : publish_->status;
  }

  absl::StatusOr<std::vector<GroupOutcome>> AwaitOutcome(absl::Duration timeout,
                                                         const std::stop_token& cancel) override {
    const std::stop_callback wake(cancel, [this] { WakeWaiters(); });
    std::unique_lock lock(mutex_);
    if (!publish_) return absl::FailedPreconditionError("await an outcome: nothing was published");
    const auto complete = [this] { return publish_->outcomes.size() == groups_.size(); };
    if (!AwaitLocked(lock, absl::Now() + timeout,
                     [&] { return complete() || !end_.ok() || cancel.stop_requested(); })) {
      return absl::DeadlineExceededError(absl::StrCat(
          "await the outcome of version ", publish_->version, ": ", publish_->outcomes.size(),
          " of ", groups_.size(), " groups are decided after ", absl::FormatDuration(timeout)));
    }
    if (!complete() && end_.ok()) {
      return absl::CancelledError(
          absl::StrCat("await the outcome of version ", publish_->version, ": cancelled"));
    }
    if (!complete()) return end_;
    std::vector<GroupOutcome> outcomes;
    for (const auto& [group, outcome] : publish_->outcomes) outcomes.push_back(outcome);
    return outcomes;
  }

  std::vector<LaneReport> lanes() const override { return RankClient::lanes(); }
  std::vector<std::string> groups() const override {
    const std::lock_guard lock(mutex_);
    return groups_;
  }

  TrainerProgress progress() const override {
    const StageSpans stages = engine_->timeline().spans();
    const std::lock_guard lock(mutex_);
    TrainerProgress progress = progress_;
    progress.stages = stages;
    return progress;
  }

  TransferCounts counts() const override {
    const std::lock_guard lock(mutex_);
    return counts_;
  }
  StageSpans stages() const override {
    const std::lock_guard lock(mutex_);
    return stages_;
  }
  std::vector<NonFinite> nonfinite() const override {
    const std::lock_guard lock(mutex_);
    return nonfinite_;
  }
  PublishTimes times() const override {
    const std::lock_guard lock(mutex_);
    return times_;
  }
  uint64_t ring_high_water_bytes() const override {
    const std::lock_guard lock(mutex_);
    return ring_high_water_bytes_;
  }

 private:
  struct PublishState {
    uint64_t version = 0;
    bool fail_on_nonfinite = false;
    bool writing = false;  // START came, and the engine is not through.
    bool sent = false;
    bool returned = false;  // To the caller.
    bool cancelled = false;
    absl::Status status;
    std::map<std::string, GroupOutcome> outcomes;
  };

  void Step() override {
    engine_->Step();
    const TransferCounts counts = engine_->counts();
    if (counts == shown_counts_) return;
    shown_counts_ = counts;
    const std::lock_guard lock(mutex_);
    progress_.counts = counts;
  }

  absl::StatusOr<proto::Offers> OnPlan(RankPlan plan, uint64_t plan_hash,
                                       const std::vector<PeerLanes>& planned) override {
    plan_hash_ = plan_hash;
    connected_ = false;
    {
      const std::lock_guard lock(mutex_);
      progress_.planned_bytes = plan.routes.total_bytes();
    }
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

  absl::Status OnConnect(const proto::Connect& connect) override {
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

  void OnUpdateMessage(const proto::ControllerMessage& message) override {
    switch (message.kind_case()) {
      case proto::ControllerMessage::kPrepare:
        update_ = {.version = message.prepare().version(),
                   .sequence = message.prepare().sequence(),
                   .epoch = message.prepare().epoch(),
                   .plan_hash = message.prepare().plan_hash()};
        digests_ = message.prepare().digests_off() ? Digests::kOff : Digests::kOn;
        return CancelIfWanted();
      case proto::ControllerMessage::kStart:
        return OnStart(message.start());
      case proto::ControllerMessage::kAbort:
        // Else the same version could be published again before the first publish is answered.
        if (message.abort().published()) {
          Fail(update_.version, DecodeError(message.abort().error()));
        }
        return engine_->Abort(message.abort().sequence());
      case proto::ControllerMessage::kOutcome:
        return OnOutcome(message.outcome());
      case proto::ControllerMessage::kPublishRefused:
        return Fail(message.publish_refused().version(),
                    DecodeError(message.publish_refused().error()));
      default:
        return;
    }
  }

  // On the progress thread, as is what follows.
  void Cancel() {
    {
      const std::lock_guard lock(mutex_);
      if (!publish_ || publish_->returned) return;
      publish_->cancelled = true;
    }
    NotifyAll();
    CancelIfWanted();
  }

  // Where PREPARE has not come yet it is looked at again when it does.
  void CancelIfWanted() {
    {
      const std::lock_guard lock(mutex_);
      if (!publish_ || !publish_->cancelled || publish_->version != update_.version) return;
    }
    proto::RankMessage message;
    message.mutable_failed()->set_sequence(update_.sequence);
    *message.mutable_failed()->mutable_error() = EncodeError(CancelledPublish(update_.version));
    Send(std::move(message));
  }

  static absl::Status CancelledPublish(uint64_t version) {
    return absl::CancelledError(absl::StrCat("publish version ", version, ": cancelled"));
  }

  void OnStart(const proto::Start& start) {
    std::vector<StartTarget> targets;
    for (const proto::Target& target : start.targets()) {
      targets.push_back(
          {.worker = target.worker(), .buffer_index = target.buffer_index(), .renewed = {}});
      if (target.has_renewed()) targets.back().renewed = DecodeBuffer(target.renewed());
    }
    if (start.sequence() != update_.sequence) return;
    if (update_.plan_hash != plan_hash_) {
      return Fail(update_.version, absl::FailedPreconditionError(absl::StrCat(
                                       "start version ", update_.version, ": its plan is ",
                                       absl::Hex(update_.plan_hash), ", this trainer's is ",
                                       absl::Hex(plan_hash_))));
    }
    NonFiniteRule rule = NonFiniteRule::kKept;
    {
      const std::lock_guard lock(mutex_);
      // Who has returned to its caller may be changing its tensors.
      if (!publish_ || publish_->version != update_.version || publish_->returned) return;
      publish_->writing = true;
      progress_.version = update_.version;
      progress_.counts = {};
      times_.started = absl::Now();
      if (publish_->fail_on_nonfinite) rule = NonFiniteRule::kRefused;
    }
    const absl::Time begin = absl::Now();
    const absl::Status status = engine_->Start(update_, digests_, targets, rule);
    const absl::Duration enqueued = absl::Now() - begin;
    {
      const std::lock_guard lock(mutex_);
      times_.enqueued = enqueued;
      publish_->writing = status.ok();
    }
    if (!status.ok()) Fail(update_.version, status);
  }

  void OnOutcome(const proto::Outcome& outcome) {
    const GroupOutcome told = {
        .group = outcome.group(),
        .committed = outcome.committed(),
        .status = outcome.has_error() ? DecodeError(outcome.error()) : absl::OkStatus()};
    if (options_.on_outcome) options_.on_outcome(outcome.version(), told);
    const std::lock_guard lock(mutex_);
    if (!publish_ || publish_->version != outcome.version()) return;
    publish_->outcomes[outcome.group()] = told;
    NotifyAll();
  }

  void Fail(uint64_t version, const absl::Status& status) {
    const std::lock_guard lock(mutex_);
    if (!publish_ || publish_->version != version || !publish_->status.ok()) return;
    publish_->status = status;
    NotifyAll();
  }

  void OnEvent(const TrainerEvent& event) {
    proto::RankMessage message;
    switch (event.kind) {
      case TrainerEvent::Kind::kConnected:
        connected_ = true;
        return LanesConnected(engine_->ReportLanes());
      case TrainerEvent::Kind::kPeerFailed:
        if (!connected_) return LanesFailed(event.status);
        SendNicsIfChanged();  // Before the new plan that this leads to.
        message.mutable_failed()->set_sequence(update_.sequence);
        message.mutable_failed()->set_lane(true);
        message.mutable_failed()->set_peer(event.worker);
        *message.mutable_failed()->mutable_error() = EncodeError(event.status);
        return Send(std::move(message));
      case TrainerEvent::Kind::kCoOwnerFailed:
        if (!connected_) return LanesFailed(event.status);
        SendNicsIfChanged();
        message.mutable_failed()->set_sequence(update_.sequence);
        message.mutable_failed()->set_lane(true);
        message.mutable_failed()->set_co_owner(true);
        message.mutable_failed()->set_peer(event.trainer);
        *message.mutable_failed()->mutable_error() = EncodeError(event.status);
        return Send(std::move(message));
      case TrainerEvent::Kind::kRefused:
        message.mutable_failed()->set_sequence(event.update.sequence);
        *message.mutable_failed()->mutable_error() =
            EncodeError(event.status.ok() ? DescribeNonFinite() : event.status);
        return Send(std::move(message));
      case TrainerEvent::Kind::kSent: {
        std::vector<NonFinite> nonfinite = engine_->FindNonFinite();
        message.mutable_sent()->set_sequence(event.update.sequence);
        *message.mutable_sent()->mutable_counts() = EncodeCounts(event.counts);
        Send(std::move(message));
        const std::lock_guard lock(mutex_);
        counts_ = event.counts;
        times_.sent = absl::Now();
        stages_ = engine_->timeline().spans();
        times_.maxima_cpu = absl::Nanoseconds(engine_->timeline().cpu_ns(Timeline::Work::kMaxima));
        times_.trade_cpu = absl::Nanoseconds(engine_->timeline().cpu_ns(Timeline::Work::kTrade));
        nonfinite_ = std::move(nonfinite);
        ring_high_water_bytes_ = engine_->ring_high_water_bytes();
        if (!publish_) return;
        publish_->writing = false;
        publish_->sent = true;
        return NotifyAll();
      }
      case TrainerEvent::Kind::kStopped: {
        message.mutable_stopped()->set_sequence(event.update.sequence);
        Send(std::move(message));
        const std::lock_guard lock(mutex_);
        if (publish_) publish_->writing = false;
        return NotifyAll();
      }
    }
  }

  absl::Status DescribeNonFinite() const {
    std::string text;
    for (const NonFinite& found : engine_->FindNonFinite()) {
      const ShardView shard = manifest_.shard(found.shard);
      absl::StrAppend(&text, text.empty() ? "" : "; ", "tensor \"",
                      manifest_.tensor_name(shard.tensor_index), "\" ", ToString(shard.box),
                      " has ", found.elements, " NaNs or infinities");
    }
    return absl::InvalidArgumentError(
        absl::StrCat("publish version ", update_.version, ": ", text));
  }

  void OnStreamEnd(const absl::Status& status) override {
    // Without a controller nobody can decide: what is being sent is given up.
    engine_->StopNow();
    const std::lock_guard lock(mutex_);
    if (publish_) {
      publish_->writing = false;
      if (publish_->status.ok()) publish_->status = status;
    }
  }

  const TrainerOptions options_;
  const Manifest manifest_;
  const std::vector<MemorySpan> regions_;
  std::unique_ptr<TrainerEngine> engine_;  // On the progress thread, as is what follows.
  uint64_t plan_hash_ = 0;
  bool connected_ = false;
  UpdateId update_;
  Digests digests_ = Digests::kOn;
  TransferCounts shown_counts_;  // As progress_ has them.
  // Guarded by mutex_.
  TrainerProgress progress_;
  std::optional<PublishState> publish_;
  TransferCounts counts_;
  PublishTimes times_;
  StageSpans stages_;
  std::vector<NonFinite> nonfinite_;
  uint64_t ring_high_water_bytes_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Join(const TrainerOptions& options,
                                                       const Manifest& manifest,
                                                       std::vector<MemorySpan> regions,
                                                       std::unique_ptr<Fabric> fabric) {
  auto trainer =
      std::make_unique<TrainerClient>(options, manifest, std::move(regions), std::move(fabric));
  WAYBILL_RETURN_IF_ERROR(trainer->Begin());
  return trainer;
}

}  // namespace waybill
