// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/running_job/status_page.h"

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

proto::RankStatus& AddRank(proto::StatusReply& status, const std::string& name,
                           const std::string& group) {
  proto::RankStatus* rank = status.add_ranks();
  rank->set_name(name);
  rank->set_group(group);
  return *rank;
}

// Trainer 0 is away, and both groups have a worker 0.
TEST(StatusPage, TheHeatMapHasEachSenderInItsPlace) {
  proto::StatusReply status;
  for (const char* name : {"a", "b"}) status.add_groups()->set_name(name);
  AddRank(status, "trainer 1", "");
  proto::RankStatus& alone = AddRank(status, "worker 0", "a");
  for (const uint64_t bytes : {0, 10}) alone.add_from_trainers(bytes);
  proto::RankStatus& first = AddRank(status, "worker 0", "b");
  for (const uint64_t bytes : {0, 20}) first.add_from_trainers(bytes);
  for (const uint64_t bytes : {0, 7}) first.add_from_workers(bytes);
  proto::RankStatus& second = AddRank(status, "worker 1", "b");
  for (const uint64_t bytes : {5, 30}) second.add_from_trainers(bytes);
  for (const uint64_t bytes : {8, 0}) second.add_from_workers(bytes);

  const nlohmann::json page = StatusToPage(status);
  EXPECT_EQ(page["workers"][0]["name"], "worker 0 of group a");
  EXPECT_EQ(page["workers"][2]["name"], "worker 1 of group b");
  EXPECT_EQ(page["terms"], nlohmann::json::parse(R"([["a", 0], ["b", 0]])"));
  EXPECT_EQ(page["pairs"], nlohmann::json::parse("[[0, 0, 10], [0, 1, 20], [0, 2, 30]]"));
  EXPECT_EQ(page["relays"], nlohmann::json::parse("[[2, 1, 7], [1, 2, 8]]"));
  EXPECT_EQ(page["workers"][1]["relayed_bytes"], 8);
  EXPECT_EQ(page["workers"][2]["relayed_bytes"], 7);
}

TEST(StatusPage, WarnsOfWhatIsWrong) {
  proto::StatusReply status;
  proto::GroupStatus* group = status.add_groups();
  group->set_name("a");
  group->set_waiting_for("worker 1");
  group->add_lanes_lost()->set_value(2);
  proto::RankStatus* trainer = status.add_ranks();
  trainer->set_name("trainer 3");
  AddRank(status, "worker 0", "c").set_approximate(true);
  proto::RankStatus& damaged = AddRank(status, "worker 7", "b");
  proto::Counter* wrong = damaged.mutable_report()->add_counters();
  wrong->set_name("wrong_bases");
  wrong->set_value(1);
  proto::Counter* fallbacks = trainer->mutable_report()->add_counters();
  fallbacks->set_name("fallbacks");
  fallbacks->set_value(4);

  for (const char* name : {"worker 0", "worker 1"}) {
    proto::RankStatus& worker = AddRank(status, name, "a");
    proto::Counter* unchanged = worker.mutable_report()->add_counters();
    unchanged->set_name("unchanged_versions");
    unchanged->set_value(3);
  }

  EXPECT_THAT(StatusToPage(status)["warnings"].get<std::vector<std::string>>(),
              testing::ElementsAre("group a waits for worker 1", "group a: lanes have died 2 times",
                                   "trainer 3: 4 ends of lanes fell back to a slower fabric",
                                   "worker 0 of group c shows a version of which a part is older: "
                                   "trainers published it with `tensors` or `at_most`",
                                   "worker 7 of group b has completed a version from memory that "
                                   "was changed, and takes whole versions until it joins again",
                                   "group a: workers that have shown a version with the bytes of "
                                   "the one before: 2"));
}

TEST(StatusPage, AGroupIsBehindByTheVersionsPublishedSince) {
  proto::StatusReply status;
  status.set_published_version(9);
  proto::GroupStatus* group = status.add_groups();
  group->set_name("a");
  group->set_phase("ready");
  group->set_committed_version(7);
  group->set_updating_version(9);
  EXPECT_EQ(StatusToPage(status)["groups"], nlohmann::json::parse(R"([
      {"name": "a", "version": 7, "behind": 2, "phase": "ready, version 9"}])"));
}

TEST(StatusPage, AJobWithoutAnUpdateHasNoTimes) {
  EXPECT_FALSE(StatusToPage(proto::StatusReply()).contains("seconds"));
}

}  // namespace
}  // namespace waybill
