// SPDX-License-Identifier: Apache-2.0

// The metrics of statuses that the test makes by hand, as Prometheus reads them.

#include "tools/waybill/observe/status_families.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include <set>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace waybill {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Not;

proto::RankStatus* AddRank(proto::StatusReply& status, const std::string& name,
                           const std::string& group) {
  proto::RankStatus* rank = status.add_ranks();
  rank->set_name(name);
  rank->set_group(group);
  rank->set_state("connected");
  return rank;
}

void AddCounter(proto::RankStatus* rank, const std::string& name, uint64_t value) {
  proto::Counter* counter = rank->mutable_report()->add_counters();
  counter->set_name(name);
  counter->set_value(value);
}

void AddStage(proto::RankStatus* rank, const std::string& name, int64_t begin_us, int64_t end_us) {
  proto::StageTime* stage = rank->mutable_report()->add_stages();
  stage->set_name(name);
  stage->set_begin_us(begin_us);
  stage->set_end_us(end_us);
}

void AddLane(proto::RankStatus* rank, const std::string& path) {
  rank->add_lanes()->set_path(path);
}

proto::GroupStatus* AddGroup(proto::StatusReply& status, const std::string& name,
                             const std::string& phase, uint64_t version) {
  proto::GroupStatus* group = status.add_groups();
  group->set_name(name);
  group->set_phase(phase);
  group->set_committed_version(version);
  return group;
}

// Two trainers and two groups, of which one is behind.
proto::StatusReply TwoGroups() {
  proto::StatusReply status;
  status.set_phase("connecting");
  status.set_committed_version(8);
  status.set_published_version(9);
  status.set_updates_committed(5);
  status.set_updates_aborted(2);
  status.set_switch_spread_us(1500);
  AddGroup(status, "a", "updating", 8);
  proto::GroupStatus* late = AddGroup(status, "b", "connecting", 6);
  for (const auto& [code, terms] : {std::pair("UNAVAILABLE", 3), std::pair("DATA_LOSS", 1)}) {
    proto::Counter* lost = late->add_lanes_lost();
    lost->set_name(code);
    lost->set_value(terms);
  }
  late->set_fetches(true);
  late->set_lost_version(8);
  late->set_catch_up_trouble("catch up from a: there are no lanes to it");
  for (int i = 0; i < 2; ++i) {
    proto::RankStatus* trainer = AddRank(status, absl::StrCat("trainer ", i), "");
    AddCounter(trainer, "fallbacks", 1);
    AddCounter(trainer, "tcp.sent_bytes", 300);
    AddCounter(trainer, "sent_bytes", 200);
    AddCounter(trainer, "spared_bytes", 150);
    AddCounter(trainer, "verbs.posted_bytes", 120);
    AddCounter(trainer, "ring_high_water_bytes", 64 + i);
    AddCounter(trainer, "nonfinite_elements", 4);
    AddStage(trainer, "post", 0, 1'000'000 * (i + 1));
    trainer->mutable_report()->set_moved_bytes(500);
    AddLane(trainer, "tcp: 10.0.0.1:41234 to 10.0.0.2:41235; not verbs: no NIC");
    AddLane(trainer, "verbs: mlx5_0 (::1) to mlx5_1 (::2)");
    AddLane(trainer, "not connected");
    proto::LaneRate* rate = trainer->mutable_report()->add_lane_rates();
    rate->set_fabric("verbs");
    rate->set_bytes(3000 * (i + 1));
    rate->set_us(1'000'000);
  }
  proto::RankStatus* worker = AddRank(status, "worker 0", "a");
  worker->set_shown_version(8);
  AddCounter(worker, "tcp.received_bytes", 290);
  AddCounter(worker, "verified_bytes", 190);
  AddCounter(worker, "host_buffer_bytes", 1000);
  AddCounter(worker, "unchanged_versions", 1);
  AddStage(worker, "verify", 500'000, 750'000);
  AddLane(worker, "tcp: 10.0.0.2:41235 to 10.0.0.1:41234");
  return status;
}

class StatusFamiliesTest : public testing::Test {
 protected:
  // The lines of the text that Prometheus gets.
  std::set<std::string> Lines(const proto::StatusReply& status,
                              RankSeries ranks = RankSeries::kNone) {
    now_ += absl::Seconds(15);
    std::ostringstream text;
    prometheus::TextSerializer().Serialize(text, StatusFamilies(status, ranks, ledger_, now_));
    return absl::StrSplit(text.str(), '\n');
  }

  CounterLedger ledger_;
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(StatusFamiliesTest, SaysWhatTheStatusSays) {
  EXPECT_THAT(Lines(TwoGroups()),
              IsSupersetOf({
                  "waybill_published_version 9",
                  "waybill_committed_version 8",
                  "waybill_switch_spread_seconds 0.0015",
                  "waybill_controller_halted 0",
                  R"(waybill_updates_total{outcome="committed"} 5)",
                  R"(waybill_updates_total{outcome="aborted"} 2)",
                  R"(waybill_group_version{group="a"} 8)",
                  R"(waybill_group_versions_behind{group="a"} 1)",
                  R"(waybill_group_versions_behind{group="b"} 3)",
                  R"(waybill_group_ready{group="a"} 1)",
                  R"(waybill_group_ready{group="b"} 0)",
                  R"(waybill_group_fetches{group="a"} 0)",
                  R"(waybill_group_fetches{group="b"} 1)",
                  R"(waybill_group_lost_version{group="a"} 0)",
                  R"(waybill_group_lost_version{group="b"} 8)",
                  R"(waybill_group_catch_up_failed{group="b"} 1)",
                  R"(waybill_ranks{role="trainer",state="connected"} 2)",
                  R"(waybill_ranks{role="worker",state="connected"} 1)",
                  R"(waybill_lanes{fabric="tcp"} 2)",
                  R"(waybill_lanes{fabric="verbs"} 2)",
                  R"(waybill_lanes{fabric="none"} 2)",
                  R"(waybill_lane_rate_bytes_per_second{fabric="verbs",lane="slowest"} 3000)",
                  R"(waybill_lane_rate_bytes_per_second{fabric="verbs",lane="median"} 3000)",
                  R"(waybill_lane_rate_bytes_per_second{fabric="verbs",lane="fastest"} 6000)",
                  R"(waybill_last_stage_seconds{role="trainer",stage="post"} 2)",
                  R"(waybill_last_stage_seconds{role="worker",stage="verify"} 0.25)",
                  R"(waybill_worker_buffer_bytes{memory="host"} 1000)",
                  R"(waybill_worker_buffer_bytes{memory="gpu"} 0)",
                  "waybill_staging_high_water_bytes 65",
                  "waybill_nonfinite_elements 8",
                  R"(waybill_bytes_total{direction="sent",fabric="tcp"} 600)",
                  R"(waybill_bytes_total{direction="received",fabric="tcp"} 290)",
                  R"(waybill_bytes_total{direction="sent",fabric="verbs"} 240)",
                  R"(waybill_weight_bytes_total{direction="sent"} 400)",
                  R"(waybill_weight_bytes_total{direction="spared"} 300)",
                  R"(waybill_weight_bytes_total{direction="verified"} 190)",
                  R"(waybill_lane_deaths_total{code="DATA_LOSS"} 1)",
                  R"(waybill_lane_deaths_total{code="UNAVAILABLE"} 3)",
                  "waybill_lane_fallbacks_total 2",
                  "waybill_unchanged_versions_total 1",
              }));
}

TEST_F(StatusFamiliesTest, AnEmptyJobHasNoGroupsAndNoVersions) {
  const std::set<std::string> lines = Lines({});
  EXPECT_THAT(lines,
              IsSupersetOf({"waybill_published_version 0", "waybill_lane_fallbacks_total 0"}));
  EXPECT_THAT(lines, Not(Contains(HasSubstr("waybill_group_version{"))));
}

TEST_F(StatusFamiliesTest, AControllerThatHaltedSaysSo) {
  proto::StatusReply status;
  status.set_phase("halted");
  EXPECT_THAT(Lines(status), Contains("waybill_controller_halted 1"));
}

TEST_F(StatusFamiliesTest, QuotesAndNewlinesInANameAreEscaped) {
  proto::StatusReply status;
  AddGroup(status, "a\"b\\c\nd", "ready", 1);
  EXPECT_THAT(Lines(status), Contains(R"(waybill_group_version{group="a\"b\\c\nd"} 1)"));
}

TEST_F(StatusFamiliesTest, TheSeriesOfAGroupEndWithIt) {
  Lines(TwoGroups());
  proto::StatusReply status = TwoGroups();
  status.mutable_groups()->RemoveLast();
  EXPECT_THAT(Lines(status), Not(Contains(HasSubstr(R"(group="b")"))));
}

TEST_F(StatusFamiliesTest, CountersDoNotFallWhenRanksAndGroupsLeave) {
  Lines(TwoGroups());
  proto::StatusReply status = TwoGroups();
  status.clear_ranks();
  status.clear_groups();
  EXPECT_THAT(Lines(status), IsSupersetOf({
                                 R"(waybill_bytes_total{direction="sent",fabric="tcp"} 600)",
                                 R"(waybill_weight_bytes_total{direction="verified"} 190)",
                                 R"(waybill_lane_deaths_total{code="UNAVAILABLE"} 3)",
                                 "waybill_lane_fallbacks_total 2",
                             }));
  AddCounter(AddRank(status, "trainer 0", ""), "tcp.sent_bytes", 50);  // A new process.
  EXPECT_THAT(Lines(status), Contains(R"(waybill_bytes_total{direction="sent",fabric="tcp"} 650)"));
}

TEST_F(StatusFamiliesTest, RanksHaveSeriesOnlyIfTheyAreAskedFor) {
  EXPECT_THAT(Lines(TwoGroups()), Not(Contains(HasSubstr("rank="))));
  EXPECT_THAT(Lines(TwoGroups(), RankSeries::kEach),
              IsSupersetOf({
                  R"(waybill_rank_shown_version{group="a",rank="0",role="worker"} 8)",
                  R"(waybill_rank_stage_seconds{group="",rank="1",role="trainer",stage="post"} 2)",
                  R"(waybill_rank_rate_bytes_per_second{group="",rank="1",role="trainer"} 250)",
              }));
}

}  // namespace
}  // namespace waybill
