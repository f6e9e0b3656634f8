#include "core/control/worker.h"

#include <atomic>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/control/messages.h"
#include "core/control/notice_thread.h"

namespace waybill {
namespace {

// Where answers go to. They may be given when the worker is gone.
struct Answers {
  std::mutex mutex;
  EngineThread* thread = nullptr;
};

class WorkerClient final : public Worker, private RankClient {
 public:
  WorkerClient(const WorkerOptions& options, const Manifest& manifest,
               std::unique_ptr<Fabric> fabric)
      : RankClient({Role::kWorker, options.identity.rank}, options.identity, manifest,
                   std::move(fabric)),
        options_(options) {
    if (options_.handler) notices_ = std::make_unique<NoticeThread>();
  }

  ~WorkerClient() override { Leave(); }

  void Leave() override {
    if (!joined()) return;
    thread().DoAndWait([this] { SayShown(); });
    EndOnThread(absl::CancelledError("it has left the job"));
    {
      const std::lock_guard lock(answers_->mutex);
      answers_->thread = nullptr;
    }
    Shut();
    notices_.reset();
    engine_->CloseLanes();  // The progress thread is gone: this one is it now.
  }

  absl::Status Begin(Manifest manifest, const std::vector<MemorySpan>& user_regions) {
    absl::StatusOr<std::unique_ptr<WorkerEngine>> engine =
        WorkerEngine::Create(&fabric(), std::move(manifest), user_regions, options_.engine,
                             [this](const WorkerEvent& event) { OnEvent(event); });
    if (!engine.ok()) {
      return While(absl::StrCat("join job \"", identity_.job, "\" as ", ToString(id())),
                   engine.status());
    }
    engine_ = *std::move(engine);
    StartThread();
    answers_->thread = &thread();
    return Attend(MakeJoin());
  }

  absl::Status Rejoin() override {
    proto::Join join = MakeJoin();
    {
      const std::lock_guard lock(mutex_);
      if (doubt_) {
        join.set_doubtful_epoch(doubt_->epoch);
        join.set_doubtful_sequence(doubt_->sequence);
        join.set_doubtful_version(doubt_->version);
      }
    }
    return Attend(std::move(join));
  }

  absl::StatusOr<Snapshot> TakeSnapshot(absl::string_view holder) override {
    return engine_->TakeSnapshot(holder);
  }
  uint64_t shown_version() const override { return engine_->shown_version(); }
  bool dirty() const override { return engine_->dirty(); }
  bool in_doubt() const override {
    const std::lock_guard lock(mutex_);
    return doubt_.has_value() && !end_.ok();
  }

  absl::Status AwaitShown(uint64_t version, absl::Duration timeout) override {
    std::unique_lock lock(mutex_);
    const auto shown = [&] { return engine_->shown_version() >= version; };
    if (!AwaitLocked(lock, absl::Now() + timeout, [&] { return shown() || !end_.ok(); })) {
      return absl::DeadlineExceededError(absl::StrCat(
          "await version ", version, ": ",
          engine_->shown_version() == 0 ? std::string("none")
                                        : absl::StrCat("version ", engine_->shown_version()),
          " is shown after ", absl::FormatDuration(timeout)));
    }
    return shown() ? absl::OkStatus() : end_;
  }

  absl::Status AwaitEnd(absl::Duration timeout) override {
    std::unique_lock lock(mutex_);
    AwaitLocked(lock, absl::Now() + timeout, [this] { return !end_.ok(); });
    return end_;
  }

  std::vector<LaneReport> lanes() const override { return RankClient::lanes(); }

  StageSpans stages() const override {
    const std::lock_guard lock(mutex_);
    return stages_;
  }

  WorkerProgress progress() const override {
    const StageSpans stages = engine_->stages();
    const std::lock_guard lock(mutex_);
    WorkerProgress progress = progress_;
    progress.stages = stages;
    return progress;
  }

  WorkerCounts counts() const override {
    const std::lock_guard lock(mutex_);
    return counts_;
  }

 private:
  proto::Join MakeJoin() const {
    proto::Join join;
    join.set_mode(static_cast<uint32_t>(options_.engine.mode));
    join.set_shown_version(engine_->shown_version());
    return join;
  }

  void Step() override {
    engine_->Step(absl::Now());
    const uint64_t verified = engine_->counts().verified_bytes;
    if (verified == last_verified_bytes_) return;
    last_verified_bytes_ = verified;
    const std::lock_guard lock(mutex_);
    progress_.verified_bytes = verified - verified_before_bytes_;
  }

  absl::StatusOr<proto::Offers> OnPlan(RankPlan plan, uint64_t plan_hash,
                                       const std::vector<PeerLanes>& planned) override {
    connected_ = false;
    {
      const std::lock_guard lock(mutex_);
      progress_.planned_bytes = plan.routes.total_bytes();
    }
    WAYBILL_ASSIGN_OR_RETURN(const std::vector<LaneOffer> lanes,
                             engine_->SetPlan(std::move(plan.routes), plan_hash, planned));
    WAYBILL_ASSIGN_OR_RETURN(const std::vector<BufferAddress> buffers, engine_->Describe());
    proto::Offers offers;
    for (const LaneOffer& lane : lanes) {
      proto::Lane* out = offers.add_lanes();
      out->set_peer(lane.peer);
      out->set_address(lane.address);
    }
    for (const BufferAddress& buffer : buffers) *offers.add_buffers() = EncodeBuffer(buffer);
    return offers;
  }

  absl::Status OnConnect(const proto::Connect& connect) override {
    std::vector<TrainerAddress> trainers;
    for (const proto::Peer& peer : connect.peers()) {
      trainers.push_back(
          {peer.rank(), {peer.lane_addresses().begin(), peer.lane_addresses().end()}});
    }
    return engine_->Connect(trainers);
  }

  void OnUpdateMessage(const proto::ControllerMessage& message) override {
    switch (message.kind_case()) {
      case proto::ControllerMessage::kPrepare:
        return OnPrepare(message.prepare());
      case proto::ControllerMessage::kCommit:
        EndDoubt();
        return engine_->Commit(message.commit().sequence());
      case proto::ControllerMessage::kAbort:
        EndDoubt();
        if (message.abort().sequence() == update_.sequence) given_up_ = true;
        engine_->Abort(message.abort().sequence(), message.abort().begun());
        return Tell({.kind = WorkerNotice::Kind::kAbort,
                     .update = update_,
                     .status = DecodeError(message.abort().error()),
                     .pause = {}},
                    [](const absl::Status&) {});
      default:
        return;
    }
  }

  // The user's word first, then the engine's.
  void OnPrepare(const proto::Prepare& prepare) {
    update_ = {.version = prepare.version(),
               .sequence = prepare.sequence(),
               .epoch = prepare.epoch(),
               .plan_hash = prepare.plan_hash()};
    given_up_ = false;
    verified_before_bytes_ = engine_->counts().verified_bytes;
    {
      const std::lock_guard lock(mutex_);
      progress_.version = update_.version;
      progress_.verified_bytes = 0;
    }
    const absl::Time deadline = absl::Now() + absl::Milliseconds(prepare.deadline_ms());
    const Digests digests = prepare.digests_off() ? Digests::kOff : Digests::kOn;
    const UpdateId update = update_;
    const bool fence = prepare.fence();
    Tell({.kind = WorkerNotice::Kind::kPrepare, .update = update_, .status = {}, .pause = {}},
         [this, update, digests, fence, deadline](const absl::Status& answer) {
           if (!GoesOn(update)) return;
           if (!answer.ok()) return Refuse(update, answer);
           engine_->Prepare(update, digests, fence, deadline);
         });
  }

  // False of one that was given up while the user was asked.
  bool GoesOn(const UpdateId& update) const { return update == update_ && !given_up_; }

  void Refuse(const UpdateId& update, const absl::Status& status) {
    proto::RankMessage message;
    message.mutable_refused()->set_sequence(update.sequence);
    *message.mutable_refused()->mutable_error() = EncodeError(status);
    Send(std::move(message));
  }

  void OnEvent(const WorkerEvent& event) {
    proto::RankMessage message;
    switch (event.kind) {
      case WorkerEvent::Kind::kConnected:
        connected_ = true;
        return LanesConnected(engine_->ReportLanes());
      case WorkerEvent::Kind::kPeerFailed:
        if (!connected_) return LanesFailed(event.status);
        SendNicsIfChanged();  // Before the new plan that this leads to.
        return SendFailed(event.status, /*lane=*/true, event.trainer);
      case WorkerEvent::Kind::kReady:
        message.mutable_ready()->set_sequence(event.update.sequence);
        message.mutable_ready()->set_buffer_index(event.buffer_index);
        if (event.renewed)
          *message.mutable_ready()->mutable_renewed() = EncodeBuffer(*event.renewed);
        return Send(std::move(message));
      case WorkerEvent::Kind::kRefused:
        return Refuse(event.update, event.status);
      case WorkerEvent::Kind::kArrived:
        return Tell(
            {.kind = WorkerNotice::Kind::kArrived,
             .update = event.update,
             .status = {},
             .pause = {}},
            [this, update = event.update](const absl::Status& answer) { Vote(update, answer); });
      case WorkerEvent::Kind::kFailed:
        return SendFailed(event.status, /*lane=*/false, 0);
      case WorkerEvent::Kind::kShown:
        return OnShown(event);
    }
  }

  void Vote(const UpdateId& update, const absl::Status& answer) {
    if (!GoesOn(update)) return;
    if (!answer.ok()) return SendFailed(While("vetoed", answer), /*lane=*/false, 0);
    {
      const std::lock_guard lock(mutex_);
      doubt_ = update;
    }
    proto::RankMessage message;
    message.mutable_arrived()->set_sequence(update.sequence);
    Send(std::move(message));
  }

  void EndDoubt() {
    const std::lock_guard lock(mutex_);
    doubt_.reset();
  }

  void SendFailed(const absl::Status& status, bool lane, uint32_t trainer) {
    proto::RankMessage message;
    message.mutable_failed()->set_sequence(update_.sequence);
    message.mutable_failed()->set_lane(lane);
    message.mutable_failed()->set_peer(trainer);
    *message.mutable_failed()->mutable_error() = EncodeError(status);
    Send(std::move(message));
  }

  void OnShown(const WorkerEvent& event) {
    {
      const std::lock_guard lock(mutex_);
      counts_ = engine_->counts();
      stages_ = engine_->stages();
    }
    unsaid_shown_ = event;
    NotifyAll();
    Tell({.kind = WorkerNotice::Kind::kCommit,
          .update = event.update,
          .status = {},
          .pause = event.pause},
         [this, event](const absl::Status&) {
           if (unsaid_shown_ && unsaid_shown_->update == event.update) SayShown();
         });
  }

  // When the user has answered; or leaves, who cannot refuse what it shows.
  void SayShown() {
    if (!unsaid_shown_) return;
    proto::RankMessage message;
    message.mutable_shown()->set_sequence(unsaid_shown_->update.sequence);
    message.mutable_shown()->set_pause_seconds(absl::ToDoubleSeconds(unsaid_shown_->pause));
    unsaid_shown_.reset();
    Send(std::move(message));
  }

  // Asks the user, if there is one to ask; `then` runs on the progress thread.
  void Tell(const WorkerNotice& notice, const std::function<void(const absl::Status&)>& then) {
    if (notices_ == nullptr) return then(absl::OkStatus());
    auto answered = std::make_shared<std::atomic_flag>();
    const auto answer = [answers = answers_, answered, then](const absl::Status& status) {
      if (answered->test_and_set()) return;
      const std::lock_guard lock(answers->mutex);
      if (answers->thread != nullptr) answers->thread->Do([then, status] { then(status); });
    };
    notices_->Do([this, notice, answer] { options_.handler(notice, answer); });
  }

  void OnStreamEnd(const absl::Status&) override {
    // Who has not voted cannot be in doubt: nothing was decided, and nothing will be.
    const std::lock_guard lock(mutex_);
    if (doubt_) return;
    given_up_ = true;
    engine_->Abort(update_.sequence, /*begun=*/true);
  }

  const WorkerOptions options_;
  std::unique_ptr<WorkerEngine> engine_;  // On the progress thread, as is what follows.
  bool connected_ = false;
  UpdateId update_;
  bool given_up_ = false;
  std::optional<WorkerEvent> unsaid_shown_;  // It is shown, and the user has not answered.
  uint64_t verified_before_bytes_ = 0;       // The update.
  uint64_t last_verified_bytes_ = 0;
  const std::shared_ptr<Answers> answers_ = std::make_shared<Answers>();
  // Guarded by mutex_.
  WorkerProgress progress_;
  std::optional<UpdateId> doubt_;
  WorkerCounts counts_;
  StageSpans stages_;
  std::unique_ptr<NoticeThread> notices_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Worker>> Worker::Join(const WorkerOptions& options,
                                                     Manifest manifest,
                                                     const std::vector<MemorySpan>& user_regions,
                                                     std::unique_ptr<Fabric> fabric) {
  auto worker = std::make_unique<WorkerClient>(options, manifest, std::move(fabric));
  WAYBILL_RETURN_IF_ERROR(worker->Begin(std::move(manifest), user_regions));
  return worker;
}

}  // namespace waybill
