#include "tools/waybill/status_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace waybill {
namespace {

TEST(StatusPage, HasWhatTheRanksReport) {
  proto::StatusReply status;
  status.set_job("j");
  status.set_committed_version(7);
  proto::RankStatus* trainer = status.add_ranks();
  trainer->set_name("trainer 0");
  trainer->set_planned_bytes(100);
  proto::StageTime* stage = trainer->mutable_report()->add_stages();
  stage->set_name("stage");
  stage->set_begin_us(1000);
  stage->set_end_us(2500);
  proto::Counter* ring = trainer->mutable_report()->add_counters();
  ring->set_name("ring_high_water_bytes");
  ring->set_value(4096);
  proto::RankStatus* worker = status.add_ranks();
  worker->set_name("worker 0");
  worker->set_planned_bytes(100);

  const nlohmann::json page = StatusToPage(status);
  EXPECT_EQ(page["name"], "j");
  EXPECT_EQ(page["version"], 7);
  EXPECT_EQ(page["bytes"], 100);
  EXPECT_DOUBLE_EQ(page["seconds"], 0.0025);
  ASSERT_EQ(page["trainers"].size(), 1u);
  EXPECT_DOUBLE_EQ(page["trainers"][0]["stages"]["stage"]["begin"], 0.001);
  EXPECT_EQ(page["trainers"][0]["ring_bytes"], 4096);
  ASSERT_EQ(page["workers"].size(), 1u);
  EXPECT_TRUE(page["warnings"].empty());
}

TEST(StatusPage, WarnsOfWhatIsWrong) {
  proto::StatusReply status;
  proto::GroupStatus* group = status.add_groups();
  group->set_name("a");
  group->set_waiting_for("worker 1");
  group->set_lanes_lost(2);
  proto::RankStatus* trainer = status.add_ranks();
  trainer->set_name("trainer 3");
  proto::Counter* fallbacks = trainer->mutable_report()->add_counters();
  fallbacks->set_name("fallbacks");
  fallbacks->set_value(4);

  EXPECT_THAT(StatusToPage(status)["warnings"].get<std::vector<std::string>>(),
              testing::ElementsAre("group a waits for worker 1",
                                   "group a: a lane died between living ranks 2 times",
                                   "trainer 3: 4 ends of lanes fell back to a slower fabric"));
}

TEST(StatusPage, AJobWithoutAnUpdateHasNoTimes) {
  EXPECT_FALSE(StatusToPage(proto::StatusReply()).contains("seconds"));
}

}  // namespace
}  // namespace waybill
