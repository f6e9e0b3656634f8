// SPDX-License-Identifier: Apache-2.0

// A worker without threads and sockets: its session, and the engine that executes the session's
// commands. See trainer_rank.h.
#ifndef WAYBILL_CORE_CONTROL_WORKER_RANK_H_
#define WAYBILL_CORE_CONTROL_WORKER_RANK_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/control/group_sender.h"
#include "core/control/rank_actions.h"
#include "core/control/rank_nics.h"
#include "core/control/rank_report.h"
#include "core/engine/receiver_engine.h"
#include "core/engine/relayed_routes.h"
#include "core/engine/shown_state.h"
#include "core/engine/staging_area.h"
#include "core/engine/timeline.h"
#include "core/fabric/fabric.h"
#include "core/protocol/worker_session.h"
#include "core/tensor/manifest.h"

namespace waybill {

// Not thread-safe, except for functions marked [any thread].
class WorkerRank final : private WorkerHost {
 public:
  // `user_regions`: see ReceiverMemory::Create(). They, the fabric and `actions` must outlive the
  // rank. `asked`: see WorkerSession. `lending`: the options of the engines that lend and relay.
  static absl::StatusOr<std::unique_ptr<WorkerRank>> Create(
      SessionOptions options, const ReceiverEngineOptions& engine,
      const SenderEngineOptions& lending, Manifest manifest,
      const std::vector<MemorySpan>& user_regions, std::set<Notice::Kind> asked, Fabric* fabric,
      RankActions* actions);

  void Join(uint64_t token, absl::Time deadline, absl::Time now);
  void Fetch(uint64_t token, uint64_t at_least, absl::Time deadline, absl::Time now);
  void Answer(Notice::Kind kind, const UpdateId& update, const absl::Status& answer,
              absl::Time now);
  void Leave(uint64_t token, absl::Time now);

  void OnStreamOpen(absl::Time now);
  void OnStreamEnd(const absl::Status& status, absl::Time now);
  void OnMessage(const proto::ControllerMessage& message, absl::Time now);

  // Makes progress.
  void Step(absl::Time now);
  // Returns the time at which Step() must be called again, even without events of the fabric.
  absl::Time next_deadline() const;
  // Closes every lane. When it returns, no rank can write to this worker.
  void CloseLanes() {
    relay_.reset();
    loans_.clear();
    loan_events_.clear();
    engine_->CloseLanes();
  }

  // Answers a kVerify.
  void OnVerified(proto::Verified verified) { session_.OnVerified(std::move(verified)); }

  // See ReceiverEngine.
  absl::Status Pause();
  void Resume(bool kept);

  // [any thread]
  absl::StatusOr<Snapshot> TakeSnapshot(absl::string_view holder) {
    return engine_->TakeSnapshot(holder);
  }
  absl::StatusOr<uint64_t> Verify() { return engine_->Verify(); }
  Comparison CompareShown(const std::stop_token& stop) { return engine_->CompareShown(stop); }
  uint64_t shown_version() const override { return engine_->shown_version(); }
  bool dirty() const { return engine_->dirty(); }

  const WorkerSession& session() const { return session_; }
  WorkerReport report() const;
  // Returns the number of changes of the report so far, other than the update's progress.
  uint64_t report_changes() const { return report_changes_; }
  uint64_t planned_bytes() const { return report_.planned_bytes; }
  uint64_t arrived_bytes() const { return engine_->counts().arrived_bytes - arrived_before_; }

 private:
  WorkerRank(SessionOptions options, uint64_t chunk_bytes, const SenderEngineOptions& lending,
             Manifest manifest, std::set<Notice::Kind> asked, Fabric* fabric, RankActions* actions);

  // WorkerHost.
  void OpenStream() override { actions_.OpenStream(); }
  void CloseStream() override { actions_.CloseStream(); }
  void Send(proto::RankMessage message) override { actions_.Send(std::move(message)); }
  void Tell(Notice notice) override;
  proto::RankReport MakeReport() const override { return EncodeReport(report(), fabric_); }
  absl::StatusOr<proto::Offers> SetPlan(TermPlan plan) override;
  absl::Status Connect(const std::string& group, const proto::Connect& connect) override;
  void Prepare(const UpdateId& update, bool digests_off, absl::Time deadline) override;
  void Continue(const UpdateId& from, const UpdateId& to) override { engine_->Continue(from, to); }
  void LoseSender(uint32_t sender) override {
    engine_->LoseSender(sender, absl::UnavailableError("the controller says that it is lost"));
  }
  void Commit(const UpdateId& update) override { engine_->Commit(update); }
  void Abort(const UpdateId& update, bool begun) override {
    if (receiving_ == update) receiving_.reset();
    engine_->Abort(update, begun);
  }
  absl::Status SetBufferAddress(const std::string& group, uint32_t worker, uint32_t buffer_index,
                                const proto::Buffer& buffer) override;
  absl::Status StartSending(const std::string& group, const UpdateId& update,
                            const proto::Start& start) override;
  void StopRelaying(uint64_t epoch, uint32_t sequence) override;
  void ForgetGroup(const std::string& group) override;

  // An engine that sends to another group, which catches up, or to other workers of this group.
  struct Loan {
    std::optional<Snapshot> snapshot;  // The version that is lent; released once it is sent.
    std::unique_ptr<GroupSender> sender;
  };
  struct RelayStart {
    UpdateId update;
    proto::Start start;
  };
  // The state of relaying to other workers of the group.
  struct Relay {
    RelayedRoutes routes;
    UpdateId update;                      // The update that is relayed now, or was relayed last.
    bool sending = false;                 // The update is neither sent nor stopped.
    bool arriving = false;                // The update is relayed while it arrives.
    uint64_t received = 0;                // The value of routes.updates() for the update.
    size_t released = 0;                  // The number of routes.chunks() that were released.
    size_t given = 0;                     // The number of routes.digests() that were given.
    std::optional<RelayStart> next = {};  // An update that waits for this one to end.
    // The time at which lanes with outstanding writes of an aborted update are closed.
    absl::Time stop_now_at = absl::InfiniteFuture();
  };

  absl::StatusOr<proto::Offers> SetLoan(TermPlan plan);
  absl::StatusOr<proto::Offers> SetRelay(TermPlan plan);
  absl::Status MakeStaging();
  GroupSender& MakeSender(const std::string& group);
  // kFailedPrecondition: this worker sends nothing to that group.
  absl::StatusOr<GroupSender*> FindSender(const std::string& group);
  // Requires relay_.
  SenderEngine& RelayingEngine();
  absl::Status StartRelaying(const UpdateId& update, const proto::Start& start);
  void StartNextRelay();
  // Returns true while that update is being relayed.
  bool IsRelaying(uint64_t epoch, uint32_t sequence) const {
    return relay_ && relay_->sending && relay_->update.epoch == epoch &&
           relay_->update.sequence == sequence;
  }
  void ReportStoppedRelay();
  void ReleaseArrivedChunks();
  std::vector<MemorySpan> Spans(const Snapshot& snapshot) const;
  void StepEngines(absl::Time now);
  void HandleEvents(absl::Time now);
  void Handle(const ReceiverEvent& event, absl::Time now);
  void Handle(const std::string& group, const SenderEvent& event);

  const Manifest manifest_;
  const Mode mode_;
  const uint64_t chunk_bytes_;  // The size of the chunks that trainers send.
  Fabric& fabric_;
  RankActions& actions_;
  RankNics nics_;
  WorkerSession session_;
  std::unique_ptr<ReceiverEngine> engine_;
  std::vector<FabricEvent> fabric_events_;
  std::deque<ReceiverEvent> events_;
  const SenderEngineOptions lending_;
  std::unique_ptr<StagingArea> staging_;  // Null until something is lent or relayed.
  // By the group to which this worker sends; its own group if it relays.
  std::map<std::string, Loan> loans_;
  // Each with the group to which this worker sends.
  std::deque<std::pair<std::string, SenderEvent>> loan_events_;
  std::optional<Relay> relay_;  // Set in terms in which this worker relays.
  // Epochs and sequences of aborted updates whose relaying has not stopped yet.
  std::set<std::pair<uint64_t, uint32_t>> stopping_;
  std::optional<UpdateId> receiving_;      // The update from READY until it is shown or aborted.
  absl::Time now_ = absl::InfinitePast();  // The time of the latest message or step.
  bool connected_ = false;
  // By buffer: the generation that this plan's offers named.
  std::vector<uint32_t> offered_generations_;
  uint64_t arrived_before_ = 0;  // The engine's arrived bytes before the current update.
  WorkerReport report_;
  uint64_t report_changes_ = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_WORKER_RANK_H_
