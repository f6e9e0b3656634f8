// SPDX-License-Identifier: Apache-2.0

// Runs the simulation: `bazel run //testing/simulation -- --seeds 1000000`.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>

#include "absl/strings/numbers.h"
#include "core/base/steady_now.h"

#ifdef WAYBILL_PLANTED
#include "testing/simulation/planted/bug.h"
#include "testing/simulation/planted/testing/simulation/simulation.h"
#else
#include "testing/simulation/simulation.h"
#endif

namespace {

constexpr const char* kUsage =
    "usage: simulation [--seeds N] [--first SEED] [--seed SEED] [--keep-going]\n"
    "\n"
    "Runs a job for each seed: controller, trainers and workers on a virtual clock, with faults.\n"
    "Stops at the first seed that breaks an invariant, and tells its shortest story.\n"
    "\n"
    "  --seeds N     How many seeds; 2000 by default.\n"
    "  --first SEED  The first of them; 1 by default.\n"
    "  --seed SEED   Tells the story of this one, whether it fails or not.\n"
    "  --keep-going  Counts the seeds that fail, and tells the story of none.\n"
#ifdef WAYBILL_PLANTED
    "  --bug NAME    Turns on this planted bug.\n"
#endif
    ;

#ifdef WAYBILL_PLANTED
// Turns on a planted bug. Returns false if there is none of that name.
bool TurnOn(const std::string& name) {
  for (const waybill::PlantedBug& planted : waybill::kPlantedBugs) {
    if (name != planted.name) continue;
    waybill::g_bug = planted.bug;
    return true;
  }
  std::cerr << "simulation: there is no bug " << name << " in testing/simulation/planted\n";
  return false;
}
#endif

// Tells the shortest story of a seed that fails.
void Tell(uint64_t seed, const waybill::simulation::Result& result) {
  using namespace waybill::simulation;
  std::cout << "seed " << seed << ": " << result.violation << "\n";
  const auto faults = Shrink(seed, DrawFaults(seed));
  std::cout << "faults that it needs:\n" << Describe(faults);
  for (const std::string& line : RunJob(seed, faults, Story::kTold).story)
    std::cout << line << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  using namespace waybill::simulation;
  uint64_t seeds = 2000, first = 1, one = 0;
  bool keep_going = false;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto number = [&](uint64_t& to) {
      return i + 1 < argc && absl::SimpleAtoi(argv[++i], &to);
    };
    if (word == "--keep-going") {
      keep_going = true;
#ifdef WAYBILL_PLANTED
    } else if (word == "--bug" && i + 1 < argc) {
      if (!TurnOn(argv[++i])) return 2;
#endif
    } else if ((word != "--seeds" || !number(seeds)) && (word != "--first" || !number(first)) &&
               (word != "--seed" || !number(one))) {
      std::cerr << kUsage;
      return word == "--help" ? 0 : 2;
    }
  }
  if (one != 0) {
    const Result result = RunJob(one, DrawFaults(one), Story::kTold);
    std::cout << Describe(DrawFaults(one));
    for (const std::string& line : result.story) std::cout << line << "\n";
    return result.violation.empty() ? 0 : 1;
  }
  const absl::Time begin = waybill::SteadyNow();
  uint64_t failed = 0, committed = 0, caught_up = 0, continued = 0, relayed = 0, steps = 0;
  std::array<uint64_t, kFaultKinds> faults{};
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    const Result result = RunJob(seed, DrawFaults(seed), Story::kNotTold);
    committed += result.committed;
    caught_up += result.caught_up;
    continued += result.continued;
    relayed += result.relayed;
    steps += result.steps;
    for (size_t i = 0; i < kFaultKinds; ++i) faults[i] += result.faults[i];
    if (result.violation.empty()) continue;
    ++failed;
    if (!keep_going) {
      Tell(seed, result);
      return 1;
    }
    std::cout << "seed " << seed << ": " << result.violation << "\n";
  }
  std::cout << seeds << " seeds in " << absl::FormatDuration(waybill::SteadyNow() - begin) << ", "
            << steps << " steps, " << committed << " commits, caught up " << caught_up
            << " times, continued without a lane " << continued << " times, relayed " << relayed
            << " times, " << failed << " failed\nfaults:";
  for (size_t i = 0; i < kFaultKinds; ++i) {
    std::cout << (i == 0 ? " " : ", ") << Name(static_cast<FaultKind>(i)) << " " << faults[i];
  }
  std::cout << "\n";
  return failed == 0 ? 0 : 1;
}
