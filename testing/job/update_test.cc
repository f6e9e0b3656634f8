// SPDX-License-Identifier: Apache-2.0

// Updates of a whole job: what goes right.

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "testing/job/job.h"

namespace waybill {
namespace {

class UpdateTest : public testing::TestWithParam<Mode> {};

TEST_P(UpdateTest, EveryVersionIsShownWholeByEveryWorker) {
  Job job({.mode = GetParam()});
  ASSERT_EQ(job.StartController().message(), "");
  ASSERT_EQ(job.JoinAll().message(), "");
  for (uint64_t version = 1; version <= 5; ++version) {
    for (const absl::Status& status : job.PublishAll(version)) ASSERT_EQ(status.message(), "");
    const auto outcomes = job.trainer(0)->AwaitOutcome(absl::Seconds(20));
    ASSERT_TRUE(outcomes.ok()) << outcomes.status();
    ASSERT_EQ(outcomes->size(), 1u);
    EXPECT_TRUE((*outcomes)[0].committed);
    for (uint32_t w = 0; w < 2; ++w) EXPECT_TRUE(job.Shows(w, version)) << w;
  }
  EXPECT_EQ(job.controller().status().updates_committed(), 5u);
}

INSTANTIATE_TEST_SUITE_P(Modes, UpdateTest,
                         testing::Values(Mode::kShadow, Mode::kShadowCopy, Mode::kInPlace),
                         [](const auto& info) {
                           return std::string(info.param == Mode::kShadow       ? "shadow"
                                              : info.param == Mode::kShadowCopy ? "copy"
                                                                                : "inplace");
                         });

TEST(Update, GroupsCommitOnTheirOwn) {
  Job job({.groups = {"a", "b"}});
  job.handler(1) = [](const Notice& notice, const WorkerOptions::Answer& answer) {
    answer(notice.kind == Notice::Kind::kArrived && notice.update.version == 2
               ? absl::FailedPreconditionError("the smoke test failed")
               : absl::OkStatus());
  };
  ASSERT_EQ(job.StartController().message(), "");
  ASSERT_EQ(job.JoinAll().message(), "");
  job.PublishAll(1);
  ASSERT_TRUE(job.trainer(0)->AwaitOutcome(absl::Seconds(20)).ok());
  job.PublishAll(2);
  const auto outcomes = job.trainer(0)->AwaitOutcome(absl::Seconds(20));
  ASSERT_TRUE(outcomes.ok()) << outcomes.status();
  ASSERT_EQ(outcomes->size(), 2u);
  EXPECT_TRUE((*outcomes)[0].committed);
  EXPECT_FALSE((*outcomes)[1].committed);
  EXPECT_EQ((*outcomes)[1].status.message(), "worker 0: vetoed: the smoke test failed");
  EXPECT_TRUE(job.Shows(0, 2));
  EXPECT_TRUE(job.Shows(1, 1));
}

TEST(Update, ARefusedUpdateTouchesNothing) {
  Job job({.workers = 1});
  std::atomic<bool> refuse = false;  // The handler runs on a thread of the worker.
  job.handler(0) = [&](const Notice& notice, const WorkerOptions::Answer& answer) {
    answer(notice.kind == Notice::Kind::kPrepare && refuse
               ? absl::UnavailableError("the engine is warming up")
               : absl::OkStatus());
  };
  ASSERT_EQ(job.StartController().message(), "");
  ASSERT_EQ(job.JoinAll().message(), "");
  job.PublishAll(1);
  ASSERT_TRUE(job.trainer(0)->AwaitOutcome(absl::Seconds(20)).ok());
  refuse = true;
  for (const absl::Status& status : job.PublishAll(2)) {
    EXPECT_EQ(status.message(), "worker 0 refused: the engine is warming up");
  }
  EXPECT_TRUE(job.Shows(0, 1));
  refuse = false;
  for (const absl::Status& status : job.PublishAll(2)) EXPECT_EQ(status.message(), "");
  ASSERT_TRUE(job.trainer(0)->AwaitOutcome(absl::Seconds(20)).ok());
  EXPECT_TRUE(job.Shows(0, 2));
}

// A race without a fence between them: its last word is SHOWN, and then LEAVE.
TEST(Update, AWorkerThatLeavesAsSoonAsAVersionIsShownHasSaidSo) {
  for (int round = 0; round < 20; ++round) {
    Job job({.trainers = 1, .workers = 1});
    ASSERT_EQ(job.StartController().message(), "");
    ASSERT_EQ(job.JoinAll().message(), "");
    std::thread leaves([&] {
      EXPECT_EQ(job.worker(0)->AwaitShown(1, absl::Seconds(20)).message(), "");
      job.worker(0).reset();
    });
    job.PublishAll(1);
    const auto outcomes = job.trainer(0)->AwaitOutcome(absl::Seconds(20));
    leaves.join();
    ASSERT_TRUE(outcomes.ok()) << outcomes.status();
    ASSERT_EQ((*outcomes)[0].status.message(), "");
  }
}

}  // namespace
}  // namespace waybill
