// SPDX-License-Identifier: Apache-2.0

#include "core/protocol/arrival_gate.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace waybill {
namespace {

struct GateCase {
  const char* name;
  uint32_t lanes;
  std::vector<std::pair<uint32_t, uint32_t>> early;     // {lane, sequence} before Arm(7).
  std::vector<std::pair<uint32_t, uint32_t>> arrivals;  // After it.
  std::vector<bool> open;                               // After each of those.
  uint64_t stragglers;
  uint64_t repeats;
};

const GateCase kGateCases[] = {
    {"one_lane", 1, {}, {{0, 7}}, {true}, 0, 0},
    {"the_last_of_three_lanes_opens", 3, {}, {{0, 7}, {2, 7}, {1, 7}}, {false, false, true}, 0, 0},
    {"a_repeat_does_not_count_for_another_lane",
     2,
     {},
     {{0, 7}, {0, 7}, {1, 7}},
     {false, false, true},
     0,
     1},
    {"an_abandoned_update_does_not_count",
     2,
     {},
     {{0, 6}, {0, 7}, {1, 7}},
     {false, false, true},
     1,
     0},
    {"a_straggler_after_the_real_one_changes_nothing",
     2,
     {},
     {{0, 7}, {0, 6}, {1, 7}},
     {false, false, true},
     1,
     0},
    {"an_early_one_counts", 2, {{0, 7}}, {{1, 7}}, {true}, 0, 0},
    {"what_was_there_before_wrapping_is_older", 1, {{0, 0x0FFFFFFF}}, {{0, 7}}, {true}, 0, 0},
};

class ArrivalGateTest : public testing::TestWithParam<GateCase> {};

TEST_P(ArrivalGateTest, OpensOnTheLastLane) {
  const GateCase& c = GetParam();
  ArrivalGate gate(c.lanes);
  for (const auto& [lane, sequence] : c.early) gate.Count(lane, sequence);
  gate.Arm(7);
  for (size_t i = 0; i < c.arrivals.size(); ++i) {
    gate.Count(c.arrivals[i].first, c.arrivals[i].second);
    EXPECT_EQ(gate.open(), c.open[i]) << "arrival " << i;
  }
  EXPECT_EQ(gate.stragglers(), c.stragglers);
  EXPECT_EQ(gate.repeats(), c.repeats);
}

INSTANTIATE_TEST_SUITE_P(Cases, ArrivalGateTest, testing::ValuesIn(kGateCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(ArrivalGate, WithoutLanesIsOpen) {
  ArrivalGate gate(0);
  gate.Arm(1);
  EXPECT_TRUE(gate.open());
}

}  // namespace
}  // namespace waybill
