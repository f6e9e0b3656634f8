// SPDX-License-Identifier: Apache-2.0

// Checks what users were told and shown against the decisions: "together", "truthful" and "asked".
#ifndef WAYBILL_TESTING_SIMULATION_PROMISES_H_
#define WAYBILL_TESTING_SIMULATION_PROMISES_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/protocol/decision.h"
#include "testing/simulation/controller.h"
#include "testing/simulation/job.h"
#include "testing/simulation/process.h"
#include "testing/simulation/run.h"

namespace waybill::simulation {

class Promises {
 public:
  // The pointers outlive this.
  Promises(Run* run, const Controller* controller)
      : run_(*run), controller_(*controller), decisions_(controller->decisions()) {}

  // As ProcessHost has them.
  void OnOutcome(uint64_t version, const std::string& group, bool committed, bool good);
  void OnUnusable(uint64_t version, const std::string& group) { unusable_[group].insert(version); }
  // Forgets the versions that a worker of the group could not use.
  void OnWorkerGone(const std::string& group) { unusable_.erase(group); }
  void OnWord(uint64_t version) { let_be_shown_.insert(version); }
  void OnStart(uint64_t version, uint64_t composition) { compositions_[version] = composition; }
  void OnShown(const Process& process, uint64_t before, uint64_t version);

  // Returns true if somebody was told that the group committed the version, or that it failed.
  bool ToldCommitted(const Group& group, uint64_t version) const;
  bool ToldFailed(const Group& group, uint64_t version) const;
  // Returns the newest version that the group, or any group if the name is empty, has decided. It
  // is 0 if nothing was decided.
  uint64_t NewestDecided(const std::string& group) const;
  // Returns the newest version of which somebody was told what became of it, or 0.
  uint64_t NewestTold() const;

  // Checks the processes of one worker that live at the end: the one that was part of the last
  // update shows it. Another that claims its place shows what it likes until it is refused.
  void CheckAtEnd(const std::vector<const Process*>& processes);

 private:
  using VersionsOfGroups = std::map<std::string, std::set<uint64_t>>;
  static bool Contains(const VersionsOfGroups& versions, const std::string& group,
                       uint64_t version);

  // Returns true if somebody was told that the version failed, and no group to which it was sent
  // has committed it.
  bool FailedEverywhere(uint64_t version) const;
  // Returns true if the group has caught up with the version, whatever its trainers were told.
  bool CaughtUp(const std::string& group, uint64_t version) const;

  Run& run_;
  const Controller& controller_;
  const std::vector<Decision>& decisions_;  // All that are recorded, as of now.
  VersionsOfGroups told_committed_, told_failed_, shown_;
  VersionsOfGroups unusable_;        // For the user of a worker, until a later one is shown.
  std::set<uint64_t> let_be_shown_;  // Versions that wait for a word, and that got it.
  std::map<uint64_t, uint64_t> compositions_;  // By version; of those that a trainer has sent.
};

}  // namespace waybill::simulation

#endif  // WAYBILL_TESTING_SIMULATION_PROMISES_H_
