// SPDX-License-Identifier: Apache-2.0

// A whole job on a virtual clock: the production controller, sessions and engines, one thread, a
// simulated network with real (small) buffers, and faults. Everything follows from one seed.
#ifndef WAYBILL_TESTING_SIMULATION_SIMULATION_H_
#define WAYBILL_TESTING_SIMULATION_SIMULATION_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "testing/simulation/faults.h"

namespace waybill::simulation {

struct Result {
  std::string violation;                       // Empty if every invariant held.
  std::vector<std::string> story;              // What happened, if it was asked for.
  std::array<uint64_t, kFaultKinds> faults{};  // That struck.
  uint64_t committed = 0;                      // Versions, in all groups.
  uint64_t caught_up = 0;                      // How often a group got one that it had missed.
  uint64_t continued = 0;                      // How often one went on although lanes had died.
  uint64_t relayed = 0;                        // How many commits were of what workers relayed.
  uint64_t steps = 0;
};

enum class Story : bool { kNotTold, kTold };

// Runs the job of a seed under `faults`. The same arguments give the same result.
Result RunJob(uint64_t seed, const std::vector<Fault>& faults, Story story);

// Leaves out the faults of a failing seed that it fails without; returns those that are left.
std::vector<Fault> Shrink(uint64_t seed, std::vector<Fault> faults);

}  // namespace waybill::simulation

#endif  // WAYBILL_TESTING_SIMULATION_SIMULATION_H_
