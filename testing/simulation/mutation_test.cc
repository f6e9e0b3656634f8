// SPDX-License-Identifier: Apache-2.0

// Tests the simulation: each bug that is planted on purpose has to be found, by a seed that fails
// only because of it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "testing/simulation/planted/bug.h"
#include "testing/simulation/planted/testing/simulation/simulation.h"

namespace waybill::simulation {
namespace {

constexpr uint64_t kMostSeeds = 20000;

class MutationTest : public testing::TestWithParam<PlantedBug> {
 protected:
  ~MutationTest() override { g_bug = Bug::kNone; }
};

TEST_P(MutationTest, IsFound) {
  g_bug = GetParam().bug;
  const uint64_t first = GetParam().first_seed;
  for (uint64_t seed = first; seed < first + kMostSeeds; ++seed) {
    const std::vector<Fault> faults = DrawFaults(seed);
    const Result result = RunJob(seed, faults, Story::kNotTold);
    if (result.violation.empty()) continue;
    std::cout << GetParam().name << ": found by seed " << seed << ": " << result.violation << "\n";
    RecordProperty("seed", std::to_string(seed));
    g_bug = Bug::kNone;
    EXPECT_EQ(RunJob(seed, faults, Story::kNotTold).violation, "") << "without the bug";
    return;
  }
  FAIL() << GetParam().name << " was not found by " << kMostSeeds << " seeds from " << first;
}

INSTANTIATE_TEST_SUITE_P(All, MutationTest, testing::ValuesIn(kPlantedBugs),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(PlantedBugs, AreThoseOfThePatches) {
  std::vector<std::string> patches, bugs;
  for (const auto& file : std::filesystem::directory_iterator("testing/simulation/planted")) {
    if (file.path().extension() == ".patch") patches.push_back(file.path().stem());
  }
  for (const PlantedBug& planted : kPlantedBugs) bugs.push_back(planted.name);
  EXPECT_THAT(bugs, testing::UnorderedElementsAreArray(patches));
}

}  // namespace
}  // namespace waybill::simulation
