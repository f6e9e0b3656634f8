// One update as the controller sees it, from the first publish to the last group's end.
//
// Pure: events in, actions out; no clocks, no sockets. Every rule of the two-phase commit is here.
#ifndef WAYBILL_CORE_CONTROL_UPDATE_ROUND_H_
#define WAYBILL_CORE_CONTROL_UPDATE_ROUND_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/control/control.pb.h"
#include "core/engine/update.h"
#include "core/plan/plan.h"

namespace waybill {

// What the round wants done; carried out by the coordinator, in order.
class RoundActions {
 public:
  virtual ~RoundActions() = default;
  virtual void ToWorker(uint32_t worker, proto::ControllerMessage message) = 0;
  virtual void ToTrainer(uint32_t trainer, proto::ControllerMessage message) = 0;
  // The decision is on disk when this returns OK.
  virtual absl::Status Record(const std::string& group) = 0;
};

class UpdateRound {
 public:
  // `groups`: by worker. `plan` outlives the round.
  UpdateRound(const UpdateId& update, bool digests_off, absl::Time deadline, const Plan* plan,
              std::vector<std::string> groups, RoundActions* actions);

  // PREPARE to every worker and trainer.
  void Begin(bool fence, absl::Time now);

  // A trainer has called publish() for this version.
  void OnPublish(uint32_t trainer, absl::Time deadline);
  void OnReady(uint32_t worker, const proto::Ready& ready);
  void OnRefused(uint32_t worker, const absl::Status& status);
  void OnArrived(uint32_t worker);
  void OnShown(uint32_t worker);
  void OnSent(uint32_t trainer);
  void OnStopped(uint32_t trainer);
  // What it sent is not to be shown.
  void OnTrainerFailed(uint32_t trainer, const absl::Status& status);
  void OnWorkerFailed(uint32_t worker, const absl::Status& status);
  void OnLaneFailed(uint32_t trainer, uint32_t worker, const absl::Status& status);
  // The lane between two trainers that own blocks together.
  void OnCoOwnerLost(uint32_t trainer, uint32_t other, const absl::Status& status);
  void OnTrainerGone(uint32_t trainer, const absl::Status& status);
  void OnWorkerGone(uint32_t worker, const absl::Status& status);
  void OnTime(absl::Time now);

  // Every group is shown or given up.
  bool over() const;
  bool committed_anything() const;
  const UpdateId& update() const { return update_; }
  absl::Time deadline() const { return deadline_; }
  // Trainers that were started and have not said that they are quiescent.
  const std::set<uint32_t>& unquiet_trainers() const { return unquiet_; }
  std::set<uint32_t> unpublished_trainers() const;
  // Why the first group that was given up was; OK where none was.
  const absl::Status& abort_status() const { return abort_status_; }
  // "READY of worker 1; publish by trainer 0"
  std::string DescribeWaiting() const;

 private:
  enum class GroupState { kPreparing, kMoving, kDecided, kShown, kAborted };
  struct Group {
    GroupState state = GroupState::kPreparing;
    std::set<uint32_t> workers;
    std::set<uint32_t> ready;
    std::set<uint32_t> arrived;
    std::set<uint32_t> shown;
    std::set<uint32_t> gone;
    std::map<uint32_t, absl::Status> unable;  // Cannot show what is decided.
  };
  struct Trainer {
    bool published = false;
    bool started = false;
    bool gone = false;
    std::set<uint32_t> workers;  // That its routes go to.
    bool trades = false;         // Maxima, with other trainers.
  };

  Group& GroupOf(uint32_t worker) { return groups_.at(group_of_[worker]); }
  bool Undecided(const Group& group) const {
    return group.state == GroupState::kPreparing || group.state == GroupState::kMoving;
  }
  bool AnyUndecided() const;
  bool HasWork(const Trainer& trainer);
  void AbortTraded(const absl::Status& why);
  void StartWhoCan();
  void Decide(const std::string& name, Group& group);
  void AbortGroup(const std::string& name, Group& group, const absl::Status& why);
  void AbortUndecided(const absl::Status& why);
  void StopTrainersWithoutWork(const absl::Status& why);
  void StopTrainer(uint32_t trainer, const absl::Status& why);
  void FinishShown(const std::string& name, Group& group);
  void TellOutcome(const std::string& group, bool committed, const absl::Status& status);

  const UpdateId update_;
  const bool digests_off_;
  absl::Time deadline_;
  RoundActions* const actions_;
  std::vector<std::string> group_of_;
  std::map<std::string, Group> groups_;
  std::vector<Trainer> trainers_;
  std::map<uint32_t, proto::Ready> ready_;
  std::set<uint32_t> unquiet_;
  absl::Status abort_status_;
  bool started_ = false;  // The first START is out: data may land.
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_UPDATE_ROUND_H_
