// A worker without threads and sockets: its session, and the engine that carries out what the
// session decides. See trainer_rank.h.
#ifndef WAYBILL_CORE_CONTROL_WORKER_RANK_H_
#define WAYBILL_CORE_CONTROL_WORKER_RANK_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
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
#include "core/engine/shown_state.h"
#include "core/engine/timeline.h"
#include "core/engine/worker_engine.h"
#include "core/fabric/fabric.h"
#include "core/protocol/worker_session.h"
#include "core/tensor/manifest.h"

namespace waybill {

// Not thread-safe, but for what says so.
class WorkerRank final : private WorkerHost {
 public:
  // `user_regions`: as WorkerMemory has them. They, the fabric and `actions` outlive the rank.
  // `asked`: as WorkerSession has it.
  static absl::StatusOr<std::unique_ptr<WorkerRank>> Create(
      SessionOptions options, const WorkerEngineOptions& engine, Manifest manifest,
      const std::vector<MemorySpan>& user_regions, std::set<Notice::Kind> asked, Fabric* fabric,
      RankActions* actions);

  void Join(uint64_t token, absl::Time deadline, absl::Time now);
  void Answer(Notice::Kind kind, const UpdateId& update, const absl::Status& answer,
              absl::Time now);
  void Leave(uint64_t token, absl::Time now);

  void OnStreamOpen(absl::Time now);
  void OnStreamEnd(const absl::Status& status, absl::Time now);
  void OnMessage(const proto::ControllerMessage& message, absl::Time now);

  // Does what can be done now.
  void Step(absl::Time now);
  // Step() has something to do then, whatever the fabric says.
  absl::Time next_deadline() const;
  // Every lane is quiescent and gone: nobody writes to this worker any more.
  void CloseLanes() { engine_->CloseLanes(); }

  // [any thread]
  absl::StatusOr<Snapshot> TakeSnapshot(absl::string_view holder) {
    return engine_->TakeSnapshot(holder);
  }
  uint64_t shown_version() const override { return engine_->shown_version(); }
  bool dirty() const { return engine_->dirty(); }

  const WorkerSession& session() const { return session_; }
  WorkerReport report() const;
  // Counts what changed in the report besides the progress of the update.
  uint64_t report_changes() const { return report_changes_; }
  uint64_t verified_bytes() const { return engine_->counts().verified_bytes - verified_before_; }

 private:
  WorkerRank(SessionOptions options, Manifest manifest, std::set<Notice::Kind> asked,
             Fabric* fabric, RankActions* actions);

  // WorkerHost.
  void OpenStream() override { actions_.OpenStream(); }
  void CloseStream() override { actions_.CloseStream(); }
  void Send(proto::RankMessage message) override { actions_.Send(std::move(message)); }
  void Tell(Notice notice) override;
  proto::RankReport MakeReport() const override { return EncodeReport(report(), fabric_); }
  absl::StatusOr<proto::Offers> SetPlan(const std::string& group, RankPlan plan, uint64_t plan_hash,
                                        const std::vector<PeerLanes>& lanes) override;
  absl::Status Connect(const std::string& group, const proto::Connect& connect) override;
  void Prepare(const UpdateId& update, bool digests_off, absl::Time deadline) override;
  void Commit(const UpdateId& update) override { engine_->Commit(update); }
  void Abort(const UpdateId& update, bool begun) override { engine_->Abort(update, begun); }

  void HandleEvents(absl::Time now);
  void Handle(const WorkerEvent& event, absl::Time now);

  const Manifest manifest_;
  Fabric& fabric_;
  RankActions& actions_;
  RankNics nics_;
  WorkerSession session_;
  std::unique_ptr<WorkerEngine> engine_;
  std::deque<WorkerEvent> events_;
  bool connected_ = false;
  std::vector<uint32_t> offered_generations_;  // By buffer, as this plan's offers said.
  uint64_t verified_before_ = 0;               // The update at hand.
  WorkerReport report_;
  uint64_t report_changes_ = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_WORKER_RANK_H_
