// SPDX-License-Identifier: Apache-2.0

// The world of one run: the ranks and those that take their places, the faults that strike them,
// and the steps in which time passes.
#ifndef WAYBILL_TESTING_SIMULATION_WORLD_H_
#define WAYBILL_TESTING_SIMULATION_WORLD_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "core/fabric/loopback/loopback.h"
#include "testing/simulation/controller.h"
#include "testing/simulation/faults.h"
#include "testing/simulation/job.h"
#include "testing/simulation/liars.h"
#include "testing/simulation/process.h"
#include "testing/simulation/promises.h"
#include "testing/simulation/run.h"
#include "testing/simulation/simulation.h"
#include "testing/simulation/streams.h"
#include "testing/simulation/training.h"

namespace waybill::simulation {

class World final : public ProcessHost {
 public:
  World(uint64_t seed, const std::vector<Fault>& faults, Story story);

  // Lives until the job has recovered from the faults, or an invariant does not hold. Call it once.
  Result Live();

 private:
  void LiveOn();
  struct HeldPosts {
    absl::Time until;
    Process* process;
    std::string peer;
  };

  // ProcessHost.
  uint64_t OpenStream(Process* process) override { return streams_.Open(process); }
  void CloseStream(uint64_t stream) override { streams_.Close(stream); }
  void Send(uint64_t stream, proto::RankMessage message) override {
    streams_.Send(stream, std::move(message));
  }
  size_t decision_count() const override { return controller_.decisions().size(); }
  uint64_t newest_decided() const override { return promises_.NewestDecided(""); }
  bool HasRival(const Process& process) const override;
  void OnBack(const Process& process) override;
  void OnOutcome(uint64_t version, const std::string& group, bool committed, bool good) override {
    if (!Liars::IsTheirs(group)) promises_.OnOutcome(version, group, committed, good);
  }
  void OnUnusable(uint64_t version, const std::string& group) override {
    promises_.OnUnusable(version, group);
  }
  void OnPublished(const Process& trainer, uint64_t version, uint64_t oldest,
                   bool in_time) override;
  void OnWord(uint64_t version) override { promises_.OnWord(version); }
  void OnStart(uint64_t version, uint64_t composition) override {
    promises_.OnStart(version, composition);
  }
  void OnShown(const Process& process, uint64_t before, uint64_t version) override {
    promises_.OnShown(process, before, version);
  }

  // --- ranks ---

  std::unique_ptr<Process> MakeProcess(size_t index);
  void Destroy(std::unique_ptr<Process>& process);
  void StartRanks();
  void ReplaceRefused(size_t index);
  void StepRanks();
  void CheckRanks();
  void BuryZombies();

  // --- faults ---

  void BeginFaults();
  void PullTriggers(const Delivery& delivery);
  void Strike(const Fault& fault);
  void Resize(const Fault& fault);
  void RemoveGroup(const std::string& group);
  // Keeps the group's workers away until its decisions are forgotten.
  void SendAway(const std::string& group, absl::Duration duration);
  // Makes a fault strike before those that are drawn for later.
  void StrikeNext(Fault fault, absl::Duration after);
  // Makes the other workers hear of what follows before they look at their lanes.
  void DistractWorkers(const Process* but);
  void Crash(std::unique_ptr<Process>& rank);
  void LetPostsGo();
  void EndOfFaults();

  // --- time ---

  void Step();
  void Deliver();
  absl::Time NextEvent() const;

  Run run_;
  std::vector<Fault> faults_;
  Job job_;
  LoopbackNetwork network_;
  Streams streams_;
  Liars liars_;
  Controller controller_;
  Promises promises_;
  Training training_;

  std::vector<std::unique_ptr<Process>> ranks_;    // Trainers, then workers; null: none at present.
  std::vector<absl::Time> restart_at_;             // Of those that are null.
  std::vector<std::unique_ptr<Process>> zombies_;  // Whose place another may have.

  size_t next_fault_ = 0;
  std::vector<Fault> armed_;      // Wait for their message.
  std::vector<Fault> triggered_;  // It has come.
  std::vector<HeldPosts> held_posts_;
  bool calm_ = false;                                    // Faults have ended.
  absl::Time latest_ = Run::kStart + absl::Minutes(10);  // The job has recovered long before.
};

}  // namespace waybill::simulation

#endif  // WAYBILL_TESTING_SIMULATION_WORLD_H_
