// SPDX-License-Identifier: Apache-2.0

// What is measured of updates, message by message and with a clock of the test's own.

#include "tools/waybill/observe/update_watch.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace waybill {
namespace {

constexpr ConnectionId kTrainer = 10, kOtherTrainer = 11, kWorker = 20, kOtherWorker = 21;

class UpdateWatchTest : public testing::Test {
 protected:
  void Join(ConnectionId worker, const std::string& group) {
    proto::Join join;
    join.set_group(group);
    watch_.OnJoined(worker, join);
  }
  void Publish(ConnectionId trainer, uint64_t version, const std::string& traceparent = "") {
    proto::RankMessage message;
    message.mutable_publish()->set_version(version);
    message.mutable_publish()->set_traceparent(traceparent);
    watch_.OnReceived(trainer, message, now_);
  }
  proto::Prepare Preparation(uint64_t epoch, uint64_t version) {
    proto::Prepare prepare;
    prepare.mutable_round()->set_epoch(epoch);
    prepare.mutable_round()->set_sequence(1);
    prepare.set_version(version);
    return prepare;
  }
  void Prepare(ConnectionId worker, const proto::Prepare& prepare) {
    proto::ControllerMessage message;
    *message.mutable_prepare() = prepare;
    watch_.OnSent(worker, message, now_);
  }
  void Start(uint64_t epoch) {
    proto::ControllerMessage message;
    SetRound(epoch, message.mutable_start()->mutable_round());
    watch_.OnSent(kTrainer, message, now_);
  }
  void Arrived(ConnectionId worker, uint64_t epoch) {
    proto::RankMessage message;
    SetRound(epoch, message.mutable_arrived()->mutable_round());
    watch_.OnReceived(worker, message, now_);
  }
  void Commit(ConnectionId worker, uint64_t epoch) {
    proto::ControllerMessage message;
    SetRound(epoch, message.mutable_commit()->mutable_round());
    watch_.OnSent(worker, message, now_);
  }
  void Shown(ConnectionId worker, uint64_t epoch, double pause_seconds = 0) {
    proto::RankMessage message;
    SetRound(epoch, message.mutable_shown()->mutable_round());
    message.mutable_shown()->set_pause_seconds(pause_seconds);
    watch_.OnReceived(worker, message, now_);
  }
  void Failed(ConnectionId worker, uint64_t epoch, absl::StatusCode code) {
    proto::RankMessage message;
    SetRound(epoch, message.mutable_failed()->mutable_round());
    message.mutable_failed()->mutable_error()->set_code(static_cast<int>(code));
    watch_.OnReceived(worker, message, now_);
  }
  void Abort(ConnectionId rank, uint64_t epoch, absl::StatusCode code) {
    proto::ControllerMessage message;
    SetRound(epoch, message.mutable_abort()->mutable_round());
    message.mutable_abort()->mutable_error()->set_code(static_cast<int>(code));
    message.mutable_abort()->mutable_error()->set_message("a worker was lost");
    watch_.OnSent(rank, message, now_);
  }
  void Pass(int seconds) { now_ += absl::Seconds(seconds); }

  // The seconds of each stage that was measured, in all, by name.
  std::map<std::string, double> Durations() const {
    std::map<std::string, double> seconds;
    for (const prometheus::ClientMetric& metric :
         Family("waybill_update_duration_seconds").metric) {
      if (metric.histogram.sample_count == 0) continue;
      seconds[metric.label.at(0).value] = metric.histogram.sample_sum;
    }
    return seconds;
  }
  uint64_t Mismatches() const {
    return static_cast<uint64_t>(
        Family("waybill_digest_mismatches_total").metric.at(0).counter.value);
  }
  std::map<std::string, double> Aborts() const {
    std::map<std::string, double> counts;
    for (const prometheus::ClientMetric& metric : Family("waybill_update_aborts_total").metric) {
      counts[metric.label.at(0).value] = metric.counter.value;
    }
    return counts;
  }
  prometheus::MetricFamily Family(const std::string& name) const {
    for (prometheus::MetricFamily& family : watch_.Collect()) {
      if (family.name == name) return family;
    }
    ADD_FAILURE() << "there is no " << name;
    return {};
  }

  // Runs an update of one group with two workers. Its stages take 1, 2, 4, 8 and 16 s.
  void RunWholeUpdate() {
    Publish(kTrainer, 7);
    Publish(kOtherTrainer, 7);
    Pass(1);
    for (const ConnectionId worker : {kWorker, kOtherWorker}) Prepare(worker, Preparation(1, 7));
    Pass(2);
    Start(1);
    Pass(1);
    Start(1);  // To another trainer.
    Arrived(kWorker, 1);
    Pass(3);
    Arrived(kOtherWorker, 1);
    Arrived(kOtherWorker, 1);  // Its vote.
    Pass(8);
    for (const ConnectionId worker : {kWorker, kOtherWorker}) Commit(worker, 1);
    Pass(6);
    Shown(kWorker, 1, 0.5);
    Pass(10);
    Shown(kOtherWorker, 1, 0.25);
  }

  // The seconds of each part of the only group's update, as far as it is.
  std::vector<double> Parts() const {
    std::vector<double> seconds;
    for (const UpdateWatch::Progress& progress : watch_.GroupProgress(now_)) {
      for (const auto& [name, duration] : progress.parts) {
        seconds.push_back(absl::ToDoubleSeconds(duration));
      }
    }
    return seconds;
  }

  UpdateWatch watch_;
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);

 private:
  static void SetRound(uint64_t epoch, proto::Round* round) {
    round->set_epoch(epoch);
    round->set_sequence(1);
  }
};

TEST_F(UpdateWatchTest, MeasuresEachStageOnce) {
  RunWholeUpdate();
  EXPECT_EQ(Durations(), (std::map<std::string, double>{{"wait", 1},
                                                        {"prepare", 2},
                                                        {"transfer", 4},
                                                        {"decide", 8},
                                                        {"show", 16},
                                                        {"total", 31}}));
  const auto stops = Family("waybill_engine_stop_seconds").metric.at(0).histogram;
  EXPECT_EQ(stops.sample_count, 2u);
  EXPECT_EQ(stops.sample_sum, 0.75);
}

TEST_F(UpdateWatchTest, GroupsAreMeasuredOneByOne) {
  Publish(kTrainer, 7);
  Prepare(kWorker, Preparation(1, 7));
  Prepare(kOtherWorker, Preparation(2, 7));
  Start(1);
  Start(2);
  Arrived(kWorker, 1);
  Commit(kWorker, 1);
  Pass(1);
  Shown(kWorker, 1);
  Arrived(kOtherWorker, 2);
  Commit(kOtherWorker, 2);
  Pass(1);
  Shown(kOtherWorker, 2);
  EXPECT_EQ(Durations()["total"], 1 + 2);
  EXPECT_EQ(Durations()["show"], 1 + 1);
}

TEST_F(UpdateWatchTest, AVersionThatIsPublishedAgainWaitsAnew) {
  Publish(kTrainer, 7);
  Pass(100);
  Publish(kTrainer, 7);
  Pass(2);
  Prepare(kWorker, Preparation(1, 7));
  EXPECT_EQ(Durations()["wait"], 2);
}

TEST_F(UpdateWatchTest, AnUpdateBelongsToTheFirstSpanThatATrainerNames) {
  const auto span = [](char digit) {
    return absl::StrCat("00-", std::string(32, digit), "-", std::string(16, digit), "-01");
  };
  Join(kWorker, "a");
  Join(kOtherWorker, "b");
  Publish(kTrainer, 7, "what a liar sends");
  Publish(kOtherTrainer, 7, span('a'));
  Publish(kOtherTrainer + 1, 7, span('b'));
  Prepare(kWorker, Preparation(1, 7));
  const auto parent = watch_.GroupProgress(now_).at(0).parent;
  ASSERT_TRUE(parent.has_value());
  EXPECT_EQ(parent->trace_id, std::string(16, '\xaa'));
  EXPECT_EQ(parent->span_id, std::string(8, '\xaa'));

  Publish(kTrainer, 8);
  Prepare(kOtherWorker, Preparation(2, 8));
  EXPECT_FALSE(watch_.GroupProgress(now_).back().parent.has_value());
}

TEST_F(UpdateWatchTest, CatchingUpIsNotMeasured) {
  proto::Prepare prepare = Preparation(1, 7);
  prepare.set_catch_up(true);
  Prepare(kWorker, prepare);
  Start(1);
  Arrived(kWorker, 1);
  Commit(kWorker, 1);
  Shown(kWorker, 1);
  EXPECT_TRUE(Durations().empty());
}

TEST_F(UpdateWatchTest, AnUpdateThatGoesOnInAnotherTermIsOneUpdate) {
  Publish(kTrainer, 7);
  Prepare(kWorker, Preparation(1, 7));
  Start(1);
  Pass(5);
  proto::Prepare prepare = Preparation(2, 7);
  *prepare.mutable_continues() = Preparation(1, 7).round();
  Prepare(kWorker, prepare);
  Pass(3);
  Start(2);
  Arrived(kWorker, 2);
  Commit(kWorker, 2);
  Shown(kWorker, 2);
  EXPECT_EQ(Durations()["transfer"], 8);
  EXPECT_EQ(Durations()["total"], 8);
  EXPECT_EQ(Family("waybill_update_duration_seconds").metric.at(0).histogram.sample_count, 1u);
}

TEST_F(UpdateWatchTest, AnAbortCountsOnceAndEndsTheMeasurement) {
  Prepare(kWorker, Preparation(1, 7));
  Start(1);
  for (const ConnectionId rank : {kTrainer, kWorker}) {
    Abort(rank, 1, absl::StatusCode::kDeadlineExceeded);
  }
  Arrived(kWorker, 1);
  EXPECT_EQ(Aborts(), (std::map<std::string, double>{{"DEADLINE_EXCEEDED", 1}}));
  EXPECT_FALSE(Durations().contains("transfer"));
}

TEST_F(UpdateWatchTest, OnlyAWorkerOfTheUpdateCountsAsAMismatch) {
  Failed(kWorker, 1, absl::StatusCode::kDataLoss);
  Prepare(kWorker, Preparation(1, 7));
  Failed(kTrainer, 1, absl::StatusCode::kDataLoss);
  Failed(kWorker, 1, absl::StatusCode::kInternal);
  EXPECT_EQ(Mismatches(), 0u);
  Failed(kWorker, 1, absl::StatusCode::kDataLoss);
  EXPECT_EQ(Mismatches(), 1u);
}

TEST_F(UpdateWatchTest, AnUpdateThatLosesAWorkerAfterTheDecisionHasNoTotal) {
  for (const ConnectionId worker : {kWorker, kOtherWorker}) Prepare(worker, Preparation(1, 7));
  Start(1);
  for (const ConnectionId worker : {kWorker, kOtherWorker}) Arrived(worker, 1);
  for (const ConnectionId worker : {kWorker, kOtherWorker}) Commit(worker, 1);
  watch_.OnClosed(kWorker, now_);
  Shown(kOtherWorker, 1);
  EXPECT_TRUE(Durations().contains("decide"));
  EXPECT_FALSE(Durations().contains("total"));
}

TEST_F(UpdateWatchTest, MessagesOfAnotherControllerAreNotTakenForThisOnes) {
  Prepare(kWorker, Preparation(1, 7));
  Start(1);
  watch_.Forget();
  Arrived(kWorker, 1);
  EXPECT_FALSE(Durations().contains("transfer"));
  RunWholeUpdate();
  EXPECT_EQ(Durations()["transfer"], 4);
}

TEST_F(UpdateWatchTest, TheUpdateThatGoesOnIsSeenInEachPart) {
  for (const ConnectionId worker : {kWorker, kOtherWorker}) Join(worker, "a");
  Publish(kTrainer, 7);
  Pass(1);
  for (const ConnectionId worker : {kWorker, kOtherWorker}) Prepare(worker, Preparation(1, 7));
  Pass(2);
  EXPECT_EQ(Parts(), (std::vector<double>{1, 2}));
  Start(1);
  Pass(3);
  Arrived(kWorker, 1);
  Pass(1);
  EXPECT_EQ(Parts(), (std::vector<double>{1, 2, 4}));
  const UpdateWatch::Progress running = watch_.GroupProgress(now_).at(0);
  EXPECT_TRUE(running.running);
  EXPECT_EQ(running.group, "a");
  EXPECT_EQ(running.version, 7);
  EXPECT_EQ(running.workers, 2);
  EXPECT_EQ(running.arrived, 1);
  Arrived(kOtherWorker, 1);
  Pass(8);
  for (const ConnectionId worker : {kWorker, kOtherWorker}) Commit(worker, 1);
  Pass(5);
  EXPECT_EQ(Parts(), (std::vector<double>{1, 2, 4, 8, 5}));
}

TEST_F(UpdateWatchTest, TheLastUpdateOfAGroupIsKeptUntilTheNextBegins) {
  for (const ConnectionId worker : {kWorker, kOtherWorker}) Join(worker, "a");
  RunWholeUpdate();
  Pass(60);
  const UpdateWatch::Progress ended = watch_.GroupProgress(now_).at(0);
  EXPECT_FALSE(ended.running);
  EXPECT_EQ(ended.age, absl::Seconds(60));
  EXPECT_EQ(Parts(), (std::vector<double>{1, 2, 4, 8, 16}));
  Publish(kTrainer, 8);
  Prepare(kWorker, Preparation(2, 8));
  EXPECT_EQ(watch_.GroupProgress(now_).at(0).version, 8);
  EXPECT_EQ(watch_.GroupProgress(now_).size(), 1u);
}

TEST_F(UpdateWatchTest, FailuresAreKeptNewestFirstUpToALimit) {
  Join(kWorker, "a");
  for (uint64_t version = 1; version <= UpdateWatch::kMostFailures + 3; ++version) {
    Publish(kTrainer, version);
    Prepare(kWorker, Preparation(version, version));
    Abort(kWorker, version, absl::StatusCode::kUnavailable);
    Abort(kTrainer, version, absl::StatusCode::kUnavailable);
    Pass(1);
  }
  const std::vector<UpdateWatch::Progress> failures = watch_.Failures(now_);
  ASSERT_EQ(failures.size(), UpdateWatch::kMostFailures);
  EXPECT_EQ(failures[0].version, UpdateWatch::kMostFailures + 3);
  EXPECT_EQ(failures[0].group, "a");
  EXPECT_EQ(failures[0].error, "a worker was lost");
  EXPECT_EQ(failures[0].age, absl::Seconds(1));
  EXPECT_TRUE(watch_.GroupProgress(now_).empty());
}

}  // namespace
}  // namespace waybill
