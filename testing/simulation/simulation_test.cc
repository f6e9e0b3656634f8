// SPDX-License-Identifier: Apache-2.0

// The production protocol and engines keep their promises under every schedule of faults that a few
// thousand seeds draw. One that fails is told by `bazel run //testing/simulation -- --first SEED
// --seeds 1`.

#include "testing/simulation/simulation.h"

#include <gtest/gtest.h>

#include "absl/strings/str_join.h"

namespace waybill::simulation {
namespace {

// Parts, so that they can run at the same time.
class SimulationTest : public testing::TestWithParam<uint64_t> {
 protected:
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  static constexpr uint64_t kSeeds = 25;  // Ten times as slow there.
  static constexpr uint64_t kContinued = 0;
#else
  static constexpr uint64_t kSeeds = 500;
  static constexpr uint64_t kContinued = 1;  // What is rarer is asked of many seeds alone.
#endif
};

TEST_P(SimulationTest, EveryInvariantHoldsUnderEverySchedule) {
  uint64_t caught_up = 0, continued = 0, relayed = 0;
  for (uint64_t seed = 1 + GetParam() * kSeeds; seed <= (GetParam() + 1) * kSeeds; ++seed) {
    const Result result = RunJob(seed, DrawFaults(seed), Story::kNotTold);
    caught_up += result.caught_up;
    continued += result.continued;
    relayed += result.relayed;
    if (result.violation.empty()) continue;
    const auto faults = Shrink(seed, DrawFaults(seed));
    FAIL() << "seed " << seed << ": " << result.violation << "\n"
           << Describe(faults) << absl::StrJoin(RunJob(seed, faults, Story::kTold).story, "\n");
  }
  EXPECT_GT(caught_up, 0u);
  EXPECT_GE(continued, kContinued);
  EXPECT_GT(relayed, 0u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, SimulationTest, testing::Range<uint64_t>(0, 4));

TEST(Simulation, ASeedTellsTheSameStoryTwice) {
  const auto faults = DrawFaults(7);
  const Result first = RunJob(7, faults, Story::kTold);
  EXPECT_EQ(first.story, RunJob(7, faults, Story::kTold).story);
  EXPECT_GT(first.committed, 0u);
}

// The worker renews its buffer for an update in which a trainer takes no part: that one has to
// learn the new address all the same, or every later update fails.
TEST(Simulation, AJobRecoversFromATrainerThatIsKilledDuringAnUpdateAndComesBack) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    const std::vector<Fault> faults = {
        {.at_ms = 1000,
         .kind = FaultKind::kCrashRank,
         .trigger = Trigger::kStart,
         .who = 0,
         .duration_ms = 50},
        {.at_ms = 2000,
         .kind = FaultKind::kCrashRank,
         .trigger = Trigger::kStart,
         .who = 1,
         .duration_ms = 50},
        {.at_ms = 3000,
         .kind = FaultKind::kCrashController,
         .trigger = Trigger::kArrived,
         .who = 2,
         .duration_ms = 100},
    };
    EXPECT_EQ(RunJob(seed, faults, Story::kNotTold).violation, "") << "seed " << seed;
  }
}

}  // namespace
}  // namespace waybill::simulation
