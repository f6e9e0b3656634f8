// SPDX-License-Identifier: Apache-2.0

// The controllers of a run, one after another, and the disk with their decisions.
#ifndef WAYBILL_TESTING_SIMULATION_CONTROLLER_H_
#define WAYBILL_TESTING_SIMULATION_CONTROLLER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "core/protocol/coordinator.h"
#include "testing/simulation/job.h"
#include "testing/simulation/liars.h"
#include "testing/simulation/run.h"
#include "testing/simulation/streams.h"

namespace waybill::simulation {

class Controller final : public CoordinatorActions {
 public:
  // The pointers outlive the controller.
  Controller(Run* run, const Job* job, Streams* streams, Liars* liars)
      : run_(*run), job_(*job), streams_(*streams), liars_(*liars) {}

  // Starts a controller with the decisions that are on disk.
  void Start();
  // Starts the next one in place of this one if its time has come.
  void RestartIfDue();

  // Null while none runs.
  Coordinator* coordinator() { return coordinator_.get(); }
  // Returns the decisions on disk, oldest first.
  const std::vector<Decision>& decisions() const { return decisions_; }
  // Returns true if it is about a version that was published before.
  bool IsCatchUp(const Decision& decision) const {
    return catch_ups_.contains({decision.epoch, decision.sequence});
  }

  // --- faults ---

  // Ends the controller if one runs; the next one starts after `until_next`.
  void Crash(absl::Duration until_next);
  // Makes one more record fail.
  void FailARecord() { ++failing_records_; }
  // Lets records succeed again. If no controller can decide, the next one starts at once.
  void EndOfFaults();

  // Asks all workers to verify what they show.
  void AskWhatIsShown();

  // --- time ---

  // Ends the computations and records whose time has come.
  void RunJobs();
  void OnTime();
  absl::Time next_event() const;

 private:
  struct Computation {
    absl::Time at;
    Work work;
  };
  struct RecordInFlight {
    absl::Time at;
    uint64_t ticket;
    Decision decision;
  };

  // CoordinatorActions.
  void Send(ConnectionId connection, proto::ControllerMessage message) override;
  void Close(ConnectionId connection) override;
  void Compute(Work work) override;
  void Record(uint64_t ticket, const Decision& decision) override;
  void Forget(const std::string& group) override { forgotten_[group] = decisions_.size(); }

  void Stop();
  void EndRecord(const RecordInFlight& record);

  Run& run_;
  const Job& job_;
  Streams& streams_;
  Liars& liars_;
  std::vector<Computation> work_;
  std::vector<RecordInFlight> records_;
  std::vector<Decision> decisions_;                    // All that there ever were.
  std::map<std::string, size_t> forgotten_;            // By group: how many there were by then.
  std::set<std::pair<uint64_t, uint32_t>> catch_ups_;  // Epochs and sequences.
  std::set<std::pair<uint64_t, uint32_t>> continued_;  // Likewise.
  std::set<uint64_t> relaying_;                        // Epochs.
  int failing_records_ = 0;
  absl::Time starts_at_ = absl::InfiniteFuture();  // The next one.
  std::unique_ptr<Coordinator> coordinator_;
};

}  // namespace waybill::simulation

#endif  // WAYBILL_TESTING_SIMULATION_CONTROLLER_H_
