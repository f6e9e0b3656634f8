#include "core/protocol/update_round.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/protocol/message_codec.h"
#include "core/protocol/mutation.h"

namespace waybill {
namespace {

std::string List(const std::set<uint32_t>& all, const std::set<uint32_t>& without) {
  std::string text;
  for (const uint32_t rank : all) {
    if (!without.contains(rank)) absl::StrAppend(&text, text.empty() ? "" : ", ", rank);
  }
  return text;
}

}  // namespace

UpdateRound::UpdateRound(const UpdateId& update, bool digests_off, absl::Time deadline,
                         const Plan* plan, std::vector<std::string> groups, RoundActions* actions)
    : update_(update),
      digests_off_(digests_off),
      deadline_(deadline),
      actions_(actions),
      group_of_(std::move(groups)),
      trainers_(plan->trainers.size()) {
  for (uint32_t w = 0; w < group_of_.size(); ++w) groups_[group_of_[w]].workers.insert(w);
  for (uint32_t t = 0; t < trainers_.size(); ++t) {
    const RouteTable& routes = plan->trainers[t];
    for (uint32_t r = 0; r < routes.size(); ++r) trainers_[t].workers.insert(routes.worker(r));
    const Exchange& exchange = plan->exchanges[t];
    trainers_[t].trades = !exchange.outgoing.empty() || !exchange.incoming.empty();
  }
}

void UpdateRound::Begin(absl::Time now) {
  proto::ControllerMessage message;
  proto::Prepare* prepare = message.mutable_prepare();
  *prepare->mutable_round() = EncodeRound(update_);
  prepare->set_version(update_.version);
  prepare->set_plan_hash(update_.plan_hash);
  prepare->set_digests_off(digests_off_);
  prepare->set_deadline_ms(std::max<int64_t>(1, absl::ToInt64Milliseconds(deadline_ - now)));
  for (uint32_t w = 0; w < group_of_.size(); ++w) actions_->ToWorker(w, message);
  for (uint32_t t = 0; t < trainers_.size(); ++t) actions_->ToTrainer(t, message);
}

void UpdateRound::OnPublish(uint32_t trainer, uint64_t attempt, absl::Time deadline) {
  trainers_[trainer].published = true;
  trainers_[trainer].attempt = attempt;
  deadline_ = std::min(deadline_, deadline);
  StartWhoCan();
  const bool too_late = !trainers_[trainer].workers.empty() && !HasWork(trainers_[trainer]);
  if (!too_late) return;
  proto::ControllerMessage message;
  message.mutable_publish_refused()->set_version(update_.version);
  message.mutable_publish_refused()->set_attempt(attempt);
  *message.mutable_publish_refused()->mutable_error() = EncodeError(abort_status_);
  actions_->ToTrainer(trainer, std::move(message));
}

void UpdateRound::OnReady(uint32_t worker, const proto::Ready& ready) {
  Group& group = GroupOf(worker);
  if (!Abortable(group)) return;
  ready_[worker] = ready;
  group.ready.insert(worker);
  if (group.ready == group.workers) group.state = GroupState::kMoving;
  StartWhoCan();
}

bool UpdateRound::AnyAbortable() const {
  return std::any_of(groups_.begin(), groups_.end(),
                     [&](const auto& g) { return Abortable(g.second); });
}

// Others wait for the maxima of one that trades, even if its own groups are given up.
bool UpdateRound::HasWork(const Trainer& trainer) {
  return (trainer.trades && AnyAbortable()) ||
         std::any_of(trainer.workers.begin(), trainer.workers.end(),
                     [&](uint32_t worker) { return Abortable(GroupOf(worker)); });
}

// A trainer starts once every worker that it writes to is READY, those of given-up groups apart.
void UpdateRound::StartWhoCan() {
  for (uint32_t t = 0; t < trainers_.size(); ++t) {
    Trainer& trainer = trainers_[t];
    if (!trainer.published || trainer.started || trainer.gone) continue;
    proto::ControllerMessage message;
    proto::Start* start = message.mutable_start();
    *start->mutable_round() = EncodeRound(update_);
    start->set_attempt(trainer.attempt);
    bool all_ready = true;
    for (const uint32_t worker : trainer.workers) {
      const Group& group = GroupOf(worker);
      if (group.state == GroupState::kAborted) continue;
      if (!group.ready.contains(worker) && !Mutated(Mutation::kStartBeforeReady)) {
        all_ready = false;
        break;
      }
      proto::Target* target = start->add_targets();
      target->set_worker(worker);
      target->set_buffer_index(ready_[worker].buffer_index());
      target->set_generation(ready_[worker].generation());
    }
    const bool all_given_up =
        start->targets().empty() && !trainer.workers.empty() && !HasWork(trainer);
    if (!all_ready || all_given_up) continue;
    trainer.started = true;
    started_ = true;
    actions_->ToTrainer(t, std::move(message));
  }
}

void UpdateRound::OnRefused(uint32_t worker, const absl::Status& status) {
  Group& group = GroupOf(worker);
  if (Abortable(group)) {
    AbortGroup(group_of_[worker], group,
               While(absl::StrCat("worker ", worker, " refused"), status));
  }
}

void UpdateRound::OnArrived(uint32_t worker) {
  Group& group = GroupOf(worker);
  if (!Abortable(group) || !group.ready.contains(worker)) return;
  group.arrived.insert(worker);
  if (group.arrived != group.workers && !Mutated(Mutation::kOneArrivalDecides)) return;
  group.state = GroupState::kRecording;
  actions_->Record(group_of_[worker]);
}

void UpdateRound::OnRecorded(const std::string& name, Recorded recorded,
                             const absl::Status& status) {
  Group& group = groups_.at(name);
  if (group.state != GroupState::kRecording || recorded == Recorded::kUnknown) return;
  if (recorded == Recorded::kNotRecorded) {
    AbortGroup(name, group, While("record the decision to commit", status));
    return;
  }
  group.state = GroupState::kDecided;
  for (const uint32_t worker : group.workers) {
    proto::ControllerMessage message;
    *message.mutable_commit()->mutable_round() = EncodeRound(update_);
    message.mutable_commit()->set_version(update_.version);
    actions_->ToWorker(worker, std::move(message));
  }
  FinishShown(name, group);  // Nothing is awaited of workers that are gone.
}

void UpdateRound::OnShown(uint32_t worker) {
  Group& group = GroupOf(worker);
  if (group.state != GroupState::kDecided) return;
  group.shown.insert(worker);
  FinishShown(group_of_[worker], group);
}

void UpdateRound::FinishShown(const std::string& name, Group& group) {
  for (const uint32_t worker : group.workers) {
    if (!group.shown.contains(worker) && !group.gone.contains(worker) &&
        !group.unable.contains(worker)) {
      return;
    }
  }
  group.state = GroupState::kShown;
  absl::Status status;
  if (!group.unable.empty()) {
    const auto& [worker, why] = *group.unable.begin();
    status = While(absl::StrCat("version ", update_.version, " is committed, but worker ", worker,
                                " cannot show it"),
                   why);
  }
  // One that left when it had shown it is not lost.
  if (const std::string lost = List(group.gone, group.shown); !lost.empty()) {
    status = absl::UnavailableError(
        absl::StrCat("version ", update_.version,
                     " is committed, but lost before they showed it: worker ", lost));
  }
  TellOutcome(name, /*committed=*/true, status);
}

void UpdateRound::OnWorkerFailed(uint32_t worker, const absl::Status& status) {
  Group& group = GroupOf(worker);
  if (Abortable(group)) {
    AbortGroup(group_of_[worker], group, While(absl::StrCat("worker ", worker), status));
  } else if (group.state == GroupState::kDecided) {
    group.unable.emplace(worker, status);
    FinishShown(group_of_[worker], group);
  }
}

void UpdateRound::OnLaneFailed(uint32_t trainer, uint32_t worker, const absl::Status& status) {
  Group& group = GroupOf(worker);
  // What has arrived whole does not need the lane any more.
  if (!Abortable(group) || group.arrived.contains(worker)) return;
  AbortGroup(group_of_[worker], group,
             While(absl::StrCat("lane from trainer ", trainer, " to worker ", worker), status));
}

void UpdateRound::OnTrainerFailed(uint32_t trainer, const absl::Status& status) {
  for (auto& [name, group] : groups_) {
    const bool concerned =
        std::any_of(trainers_[trainer].workers.begin(), trainers_[trainer].workers.end(),
                    [&](uint32_t worker) { return group.workers.contains(worker); });
    if (Abortable(group) && concerned) {
      AbortGroup(name, group, While(absl::StrCat("trainer ", trainer), status));
    }
  }
}

void UpdateRound::OnCoOwnerLost(uint32_t trainer, uint32_t other, const absl::Status& status) {
  AbortTraded(
      While(absl::StrCat("lane between trainer ", trainer, " and trainer ", other), status));
}

// What is quantised by maxima that may not come any more: whatever a trading trainer has still to
// bring. Which of them have them already is not known here.
void UpdateRound::AbortTraded(const absl::Status& why) {
  for (auto& [name, group] : groups_) {
    bool concerned = false;
    for (const Trainer& trainer : trainers_) {
      if (!trainer.trades) continue;
      for (const uint32_t worker : trainer.workers) {
        concerned =
            concerned || (group.workers.contains(worker) && !group.arrived.contains(worker));
      }
    }
    if (Abortable(group) && concerned) AbortGroup(name, group, why);
  }
}

void UpdateRound::OnTrainerGone(uint32_t trainer, const absl::Status& status) {
  trainers_[trainer].gone = true;
  if (trainers_[trainer].trades) AbortTraded(status);
  for (auto& [name, group] : groups_) {
    const bool concerned = std::any_of(
        trainers_[trainer].workers.begin(), trainers_[trainer].workers.end(), [&](uint32_t worker) {
          return group.workers.contains(worker) && !group.arrived.contains(worker);
        });
    if (Abortable(group) && concerned) AbortGroup(name, group, status);
  }
}

void UpdateRound::OnWorkerGone(uint32_t worker, const absl::Status& status) {
  Group& group = GroupOf(worker);
  group.gone.insert(worker);
  if (Abortable(group)) AbortGroup(group_of_[worker], group, status);
  if (group.state == GroupState::kDecided) FinishShown(group_of_[worker], group);
}

void UpdateRound::OnTime(absl::Time now) {
  if (now < deadline_) return;
  const absl::Status late = absl::DeadlineExceededError(absl::StrCat(
      "version ", update_.version, ": the deadline is over, waiting for ", DescribeWaiting()));
  AbortAll(late);
  for (auto& [name, group] : groups_) {
    if (group.state != GroupState::kDecided) continue;
    group.state = GroupState::kShown;
    TellOutcome(name, /*committed=*/true, late);
  }
}

void UpdateRound::AbortAll(const absl::Status& why) {
  for (auto& [name, group] : groups_) {
    if (Abortable(group)) AbortGroup(name, group, why);
  }
}

void UpdateRound::AbortGroup(const std::string& name, Group& group, const absl::Status& why) {
  group.state = GroupState::kAborted;
  const absl::Status status = WithScope(why, Scope::kUpdate);
  abort_status_ = FirstError(abort_status_, status);
  for (const uint32_t worker : group.workers) {
    proto::ControllerMessage message;
    *message.mutable_abort()->mutable_round() = EncodeRound(update_);
    message.mutable_abort()->set_begun(started_);
    *message.mutable_abort()->mutable_error() = EncodeError(status);
    actions_->ToWorker(worker, std::move(message));
  }
  TellOutcome(name, /*committed=*/false, status);
  StopTrainersWithoutWork(status);
  StartWhoCan();  // Who waited for this group only may begin with the others.
}

// A trainer stops when no group that it writes to is being written any more.
void UpdateRound::StopTrainersWithoutWork(const absl::Status& why) {
  for (uint32_t t = 0; t < trainers_.size(); ++t) {
    if (!HasWork(trainers_[t])) StopTrainer(t, why);
  }
}

void UpdateRound::StopTrainer(uint32_t trainer, const absl::Status& why) {
  // A trainer that has not published yet is refused when it does.
  if (!trainers_[trainer].published || std::exchange(trainers_[trainer].stopped, true)) return;
  proto::ControllerMessage message;
  *message.mutable_abort()->mutable_round() = EncodeRound(update_);
  message.mutable_abort()->set_begun(trainers_[trainer].started);
  message.mutable_abort()->set_attempt(trainers_[trainer].attempt);
  *message.mutable_abort()->mutable_error() = EncodeError(why);
  actions_->ToTrainer(trainer, std::move(message));
}

void UpdateRound::TellOutcome(const std::string& group, bool committed,
                              const absl::Status& status) {
  proto::ControllerMessage message;
  proto::Outcome* outcome = message.mutable_outcome();
  outcome->set_version(update_.version);
  outcome->set_group(group);
  outcome->set_committed(committed);
  if (!status.ok()) *outcome->mutable_error() = EncodeError(status);
  for (uint32_t t = 0; t < trainers_.size(); ++t) {
    outcome->set_attempt(trainers_[t].attempt);
    actions_->ToTrainer(t, message);
  }
}

absl::Time UpdateRound::deadline() const {
  const bool waiting = std::any_of(groups_.begin(), groups_.end(), [](const auto& g) {
    return Abortable(g.second) || g.second.state == GroupState::kDecided;
  });
  return waiting ? deadline_ : absl::InfiniteFuture();
}

bool UpdateRound::undecided(const std::string& name) const {
  const auto group = groups_.find(name);
  return group != groups_.end() &&
         (Abortable(group->second) || group->second.state == GroupState::kRecording);
}

bool UpdateRound::over() const {
  return std::all_of(groups_.begin(), groups_.end(), [](const auto& g) {
    return g.second.state == GroupState::kShown || g.second.state == GroupState::kAborted;
  });
}

bool UpdateRound::committed_anything() const {
  return std::any_of(groups_.begin(), groups_.end(), [](const auto& g) {
    return g.second.state == GroupState::kShown || g.second.state == GroupState::kDecided;
  });
}

std::set<uint32_t> UpdateRound::unheard_trainers() const {
  std::set<uint32_t> trainers;
  for (uint32_t t = 0; t < trainers_.size(); ++t) {
    if (!trainers_[t].published || trainers_[t].gone) trainers.insert(t);
  }
  return trainers;
}

std::string UpdateRound::DescribeWaiting() const {
  std::string text;
  const auto add = [&](absl::string_view what, const std::string& who) {
    if (!who.empty()) absl::StrAppend(&text, text.empty() ? "" : "; ", what, who);
  };
  std::set<uint32_t> unpublished;
  for (uint32_t t = 0; t < trainers_.size(); ++t) {
    if (!trainers_[t].published) unpublished.insert(t);
  }
  add("publish() by trainer ", List(unpublished, {}));
  for (const auto& [name, group] : groups_) {
    if (group.state == GroupState::kPreparing)
      add("READY of worker ", List(group.workers, group.ready));
    if (group.state == GroupState::kMoving)
      add("ARRIVED of worker ", List(group.workers, group.arrived));
    if (group.state == GroupState::kRecording) add("the record of group ", name);
    if (group.state == GroupState::kDecided)
      add("SHOWN of worker ", List(group.workers, group.shown));
  }
  return text.empty() ? "nothing" : text;
}

}  // namespace waybill
