// SPDX-License-Identifier: Apache-2.0

// A worker without threads and sockets: its session, the engine that executes the session's
// commands, and what it sends to other workers. See trainer_rank.h.
#ifndef WAYBILL_CORE_CONTROL_WORKER_RANK_H_
#define WAYBILL_CORE_CONTROL_WORKER_RANK_H_

#include <cstdint>
#include <deque>
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
#include "core/control/rank_actions.h"
#include "core/control/rank_nics.h"
#include "core/control/rank_report.h"
#include "core/control/version_lender.h"
#include "core/engine/receiver_engine.h"
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
    lender_->CloseLanes();
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
  WorkerRank(SessionOptions options, Manifest manifest, std::set<Notice::Kind> asked,
             Fabric* fabric, RankActions* actions);

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
    lender_->OnReceived(update);
    engine_->Abort(update, begun);
  }
  absl::Status SetBufferAddress(const std::string& group, uint32_t worker, uint32_t buffer_index,
                                const proto::Buffer& buffer) override {
    return lender_->SetBufferAddress(group, worker, buffer_index, buffer);
  }
  absl::Status StartSending(const std::string& group, const UpdateId& update,
                            const proto::Start& start) override {
    return lender_->Start(group, update, start);
  }
  void StopRelaying(uint64_t epoch, uint32_t sequence) override {
    lender_->StopRelaying(epoch, sequence, now_);
  }
  void ForgetGroup(const std::string& group) override { lender_->ForgetGroup(group); }

  void StepEngines(absl::Time now);
  void HandleEvents(absl::Time now);
  void Handle(const ReceiverEvent& event, absl::Time now);

  const Manifest manifest_;
  const Mode mode_;
  Fabric& fabric_;
  RankActions& actions_;
  RankNics nics_;
  WorkerSession session_;
  std::unique_ptr<ReceiverEngine> engine_;
  std::vector<FabricEvent> fabric_events_;
  std::deque<ReceiverEvent> events_;
  std::optional<VersionLender> lender_;    // Set by Create().
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
