// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/running_job/lane_rates.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace waybill {
namespace {

class LaneRatesTest : public testing::Test {
 protected:
  proto::RankStatus* AddTrainer(const std::string& name) {
    proto::RankStatus* trainer = status_.add_ranks();
    trainer->set_name(name);
    return trainer;
  }
  static void AddLane(proto::RankStatus* trainer, const std::string& fabric, uint32_t worker,
                      uint64_t bytes, int64_t us) {
    proto::LaneRate* rate = trainer->mutable_report()->add_lane_rates();
    rate->set_fabric(fabric);
    rate->set_peer(worker);
    rate->set_group("a");
    rate->set_bytes(bytes);
    rate->set_us(us);
  }

  proto::StatusReply status_;
};

TEST_F(LaneRatesTest, TheLanesOfEachFabricAreComparedWithEachOther) {
  proto::RankStatus* first = AddTrainer("trainer 0");
  proto::RankStatus* second = AddTrainer("trainer 1");
  AddLane(first, "tcp", 0, 4000, 1'000'000);
  AddLane(first, "tcp", 1, 4000, 2'000'000);
  AddLane(second, "tcp", 3, 4000, 4'000'000);
  AddLane(second, "tcp", 2, 4000, 500'000);
  AddLane(second, "verbs", 0, 9000, 1'000'000);
  const auto rates = RatesOfLanes(status_);
  ASSERT_EQ(rates.size(), 2u);
  EXPECT_EQ(rates.at("tcp").slowest, 1000);
  EXPECT_EQ(rates.at("tcp").slowest_lane, "trainer 1 to worker 3 of a");
  EXPECT_EQ(rates.at("tcp").median, 2000);
  EXPECT_EQ(rates.at("tcp").fastest, 8000);
  EXPECT_EQ(rates.at("verbs").slowest, 9000);
  EXPECT_EQ(rates.at("verbs").fastest, 9000);
}

TEST_F(LaneRatesTest, ALaneWithoutATimeIsLeftOut) {
  AddLane(AddTrainer("trainer 0"), "tcp", 0, 4000, 0);
  EXPECT_TRUE(RatesOfLanes(status_).empty());
}

}  // namespace
}  // namespace waybill
