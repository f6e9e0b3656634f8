// SPDX-License-Identifier: Apache-2.0

#include "testing/simulation/controller.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"

namespace waybill::simulation {

void Controller::Start() {
  starts_at_ = absl::InfiniteFuture();
  CoordinatorOptions options;
  options.job = "simulated";
  options.incarnation = static_cast<uint32_t>(run_.random()());
  options.decisions_are_durable = true;
  options.lanes_timeout = absl::Seconds(3);  // Shorter than some stops.
  options.relays = job_.relays ? Relays::kAlways : Relays::kNever;
  for (const Group& group : job_.groups) {
    if (job_.required) options.required_groups.insert(group.name);
  }
  // As many as the log keeps of each group.
  std::vector<Decision> kept;
  std::map<std::string, int> left;
  for (const Decision& decision : decisions_) ++left[decision.group];
  for (size_t i = 0; i < decisions_.size(); ++i) {
    const std::string& group = decisions_[i].group;
    const auto forgotten = forgotten_.find(group);
    const bool dropped = forgotten != forgotten_.end() && i < forgotten->second;
    if (left[group]-- <= 4 && !dropped) kept.push_back(decisions_[i]);
  }
  coordinator_ = std::make_unique<Coordinator>(options, kept, this);
  run_.Note("a controller starts with ", kept.size(), " decisions");
}

void Controller::RestartIfDue() {
  if (run_.now() < starts_at_) return;
  if (coordinator_ != nullptr) Stop();
  Start();
}

void Controller::Stop() {
  coordinator_.reset();
  liars_.OnControllerCrash();
  work_.clear();
  // What was being written may be on disk, or not.
  for (const RecordInFlight& record : std::exchange(records_, {})) {
    if (run_.Below(2) == 0) decisions_.push_back(record.decision);
  }
  streams_.OnControllerCrash();
}

void Controller::Crash(absl::Duration until_next) {
  if (coordinator_ == nullptr) return;
  Stop();
  starts_at_ = run_.now() + until_next;
}

void Controller::AskWhatIsShown() {
  if (coordinator_ == nullptr) return;
  for (const auto& [connection, id] : coordinator_->Workers("")) {
    proto::ControllerMessage message;
    message.set_verify(run_.NextNumber());
    Send(connection, std::move(message));
  }
}

void Controller::EndOfFaults() {
  failing_records_ = 0;
  if (coordinator_ == nullptr || !coordinator_->halted().ok()) {
    starts_at_ = std::min(starts_at_, run_.now());
  }
}

void Controller::RunJobs() {
  std::vector<Computation> ready;
  std::erase_if(work_, [&](Computation& computation) {
    if (run_.now() < computation.at) return false;
    ready.push_back(std::move(computation));
    return true;
  });
  for (const Computation& computation : ready) {
    if (coordinator_ == nullptr) return;
    computation.work(InTurn)(run_.now());
    run_.SetActive();
  }
  std::vector<RecordInFlight> recorded;
  std::erase_if(records_, [&](const RecordInFlight& record) {
    if (run_.now() < record.at) return false;
    recorded.push_back(record);
    return true;
  });
  for (const RecordInFlight& record : recorded) {
    if (coordinator_ == nullptr) return;
    EndRecord(record);
    run_.SetActive();
  }
}

void Controller::EndRecord(const RecordInFlight& record) {
  if (failing_records_ > 0) {
    --failing_records_;
    const absl::Status failed = absl::UnavailableError("the disk fails");
    if (run_.Below(2) == 0) {
      run_.Note("the decision about version ", record.decision.version, " is not recorded");
      return coordinator_->OnRecorded(record.ticket, Recorded::kNotRecorded, failed, run_.now());
    }
    if (run_.Below(2) == 0) decisions_.push_back(record.decision);
    run_.Note("nobody knows whether the decision about version ", record.decision.version,
              " is recorded");
    coordinator_->OnRecorded(record.ticket, Recorded::kUnknown, failed, run_.now());
    starts_at_ = run_.now() + run_.UpTo(absl::Seconds(1));  // Somebody replaces it.
    return;
  }
  decisions_.push_back(record.decision);
  const bool caught_up = IsCatchUp(record.decision);
  caught_up ? run_.CountCatchUp() : run_.CountCommit();
  if (continued_.contains({record.decision.epoch, record.decision.sequence})) run_.CountContinued();
  if (relaying_.contains(record.decision.epoch)) run_.CountRelayed();
  run_.Note("recorded: group ", record.decision.group, caught_up ? " catches up with" : " commits",
            " version ", record.decision.version);
  coordinator_->OnRecorded(record.ticket, Recorded::kDurable, absl::OkStatus(), run_.now());
}

void Controller::OnTime() {
  if (coordinator_ == nullptr || run_.now() < coordinator_->next_deadline()) return;
  coordinator_->OnTime(run_.now());
  if (coordinator_->next_deadline() <= run_.now()) {
    run_.Violate("bounded: the controller's clock stands");
  }
}

absl::Time Controller::next_event() const {
  absl::Time next = starts_at_;
  if (coordinator_ != nullptr) next = std::min(next, coordinator_->next_deadline());
  for (const Computation& computation : work_) next = std::min(next, computation.at);
  for (const RecordInFlight& record : records_) next = std::min(next, record.at);
  return next;
}

void Controller::Send(ConnectionId connection, proto::ControllerMessage message) {
  if (liars_.Hear(connection, message)) return;
  if (Liars::IsTheirs(message.plan().lender())) {
    run_.Violate("unharmed: what strangers say they show is lent to group " +
                 message.plan().group());
  }
  if (message.plan().relay()) relaying_.insert(message.plan().epoch());
  if (message.prepare().catch_up()) {
    const proto::Round& round = message.prepare().round();
    catch_ups_.insert({round.epoch(), round.sequence()});
  }
  if (message.prepare().has_continues()) {
    const proto::Round& round = message.prepare().round();
    continued_.insert({round.epoch(), round.sequence()});
  }
  streams_.SendToRank(connection, std::move(message));
}
void Controller::Close(ConnectionId connection) {
  liars_.OnClose(connection);
  streams_.CloseByController(connection);
}
void Controller::Compute(Work work) {
  work_.push_back({run_.now() + run_.UpTo(absl::Milliseconds(20)), std::move(work)});
}
void Controller::Record(uint64_t ticket, const Decision& decision) {
  records_.push_back({run_.now() + run_.UpTo(absl::Milliseconds(20)), ticket, decision});
}

}  // namespace waybill::simulation
