// SPDX-License-Identifier: Apache-2.0

// What a rank does by its own will: it cancels, answers late, and leaves.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <future>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "testing/job/job.h"

namespace waybill {
namespace {

using Kind = Notice::Kind;

TEST(Leaving, APublishThatIsCancelledShowsNothingAndTheNextOneDoes) {
  Job job({.trainers = 1, .workers = 1});
  std::promise<WorkerOptions::Answer> asked;
  std::promise<absl::Status> aborted;
  job.handler(0) = [&](const Notice& notice, const WorkerOptions::Answer& answer) {
    if (notice.update.version == 1 && notice.kind == Kind::kPrepare) return asked.set_value(answer);
    if (notice.kind == Kind::kAbort) aborted.set_value(notice.status);
    answer(absl::OkStatus());
  };
  ASSERT_EQ(job.StartController().message(), "");
  ASSERT_EQ(job.JoinAll().message(), "");
  std::stop_source cancel;
  absl::Status published;
  std::thread publisher([&] {
    published =
        job.trainer(0)->Publish(1, {.timeout = absl::Seconds(20), .cancel = cancel.get_token()});
  });
  const WorkerOptions::Answer late = asked.get_future().get();
  cancel.request_stop();
  publisher.join();
  EXPECT_EQ(published.code(), absl::StatusCode::kCancelled) << published;
  EXPECT_EQ(aborted.get_future().get().code(), absl::StatusCode::kCancelled);
  late(absl::OkStatus());
  EXPECT_EQ(job.worker(0)->shown_version(), 0u);
  for (const absl::Status& status : job.PublishAll(2)) EXPECT_EQ(status.message(), "");
  ASSERT_TRUE(job.trainer(0)->AwaitOutcome(absl::Seconds(20)).ok());
  EXPECT_TRUE(job.Shows(0, 2));
}

TEST(Leaving, APublishThatWasCancelledBeforeItBeganShowsNothing) {
  Job job({.trainers = 1, .workers = 1});
  ASSERT_EQ(job.StartController().message(), "");
  ASSERT_EQ(job.JoinAll().message(), "");
  std::stop_source cancel;
  cancel.request_stop();
  const absl::Status published =
      job.trainer(0)->Publish(1, {.timeout = absl::Seconds(20), .cancel = cancel.get_token()});
  // Unless it was sent before the word was heard.
  if (!published.ok()) {
    EXPECT_EQ(published.code(), absl::StatusCode::kCancelled) << published;
  }
  for (const absl::Status& status : job.PublishAll(2)) EXPECT_EQ(status.message(), "");
}

TEST(Leaving, AJoinIsCancelledWhereNobodyAnswersAndWhereOthersAreMissing) {
  for (const bool controller : {false, true}) {
    Job job({.trainers = 2, .workers = 1});
    ASSERT_EQ(job.StartController().message(), "");
    if (!controller) job.StopController();
    std::stop_source cancel;
    job.trainer_options(0).cancel = cancel.get_token();
    absl::Status joined;
    std::thread joiner([&] { joined = job.JoinTrainer(0); });
    cancel.request_stop();
    joiner.join();
    EXPECT_EQ(joined.code(), absl::StatusCode::kCancelled) << joined;
  }
}

TEST(Leaving, WhatIsShownCanBeReadWhenTheWorkerHasLeft) {
  for (const Mode mode : {Mode::kShadow, Mode::kShadowCopy, Mode::kInPlace}) {
    Job job({.trainers = 1, .workers = 1, .mode = mode});
    ASSERT_EQ(job.StartController().message(), "");
    ASSERT_EQ(job.JoinAll().message(), "");
    job.PublishAll(1);
    ASSERT_TRUE(job.trainer(0)->AwaitOutcome(absl::Seconds(20)).ok());
    job.worker(0)->Leave();
    job.worker(0)->Leave();
    EXPECT_TRUE(job.Shows(0, 1));
    EXPECT_EQ(job.worker(0)->AwaitShown(2, absl::Seconds(20)).code(), absl::StatusCode::kCancelled);
  }
}

TEST(Leaving, AWorkerThatLeavesBeforeItAnswersTheCommitHasShownTheVersion) {
  Job job({.trainers = 1, .workers = 2});
  job.handler(0) = [](const Notice& notice, const WorkerOptions::Answer& answer) {
    if (notice.kind != Kind::kCommit) answer(absl::OkStatus());
  };
  ASSERT_EQ(job.StartController().message(), "");
  ASSERT_EQ(job.JoinAll().message(), "");
  job.PublishAll(1);
  ASSERT_EQ(job.worker(0)->AwaitShown(1, absl::Seconds(20)).message(), "");
  job.worker(0)->Leave();
  const auto outcomes = job.trainer(0)->AwaitOutcome(absl::Seconds(20));
  ASSERT_TRUE(outcomes.ok()) << outcomes.status();
  EXPECT_EQ((*outcomes)[0].status.message(), "");
}

TEST(Leaving, AnAnswerToAWorkerThatIsGoneDoesNothing) {
  Job job({.trainers = 1, .workers = 1});
  std::promise<WorkerOptions::Answer> asked;
  job.handler(0) = [&](const Notice& notice, const WorkerOptions::Answer& answer) {
    if (notice.kind == Kind::kArrived) return asked.set_value(answer);
    answer(absl::OkStatus());
  };
  ASSERT_EQ(job.StartController().message(), "");
  ASSERT_EQ(job.JoinAll().message(), "");
  std::thread publisher([&] { (void)job.PublishAll(1); });
  const WorkerOptions::Answer late = asked.get_future().get();
  publisher.join();
  job.worker(0).reset();
  late(absl::OkStatus());
  late(absl::OkStatus());
}

TEST(Leaving, ATrainerThatLeavesEndsItsPublish) {
  Job job({.trainers = 1, .workers = 1});
  std::promise<void> asked;
  job.handler(0) = [&](const Notice& notice, const WorkerOptions::Answer& answer) {
    if (notice.kind == Kind::kPrepare) return asked.set_value();
    answer(absl::OkStatus());
  };
  ASSERT_EQ(job.StartController().message(), "");
  ASSERT_EQ(job.JoinAll().message(), "");
  absl::Status published;
  std::thread publisher(
      [&] { published = job.trainer(0)->Publish(1, {.timeout = absl::Seconds(20)}); });
  asked.get_future().wait();
  job.trainer(0)->Leave();
  publisher.join();
  EXPECT_EQ(published.code(), absl::StatusCode::kCancelled) << published;
  EXPECT_EQ(job.trainer(0)->Publish(2, {}).code(), absl::StatusCode::kCancelled);
}

TEST(Leaving, OutcomesAreToldAsTheyComeAndTheLossOfTheControllerOnce) {
  Job job({.trainers = 1, .workers = 2, .groups = {"a", "b"}});
  std::atomic<int> told = 0;
  std::promise<absl::Status> lost;
  job.trainer_options(0).on_notice = [&](const Notice& notice) {
    if (notice.kind == Notice::Kind::kDisconnected) lost.set_value(notice.status);
    if (notice.kind != Notice::Kind::kOutcome) return;
    EXPECT_EQ(notice.version, 1u);
    EXPECT_TRUE(notice.committed);
    ++told;
  };
  ASSERT_EQ(job.StartController().message(), "");
  ASSERT_EQ(job.JoinAll().message(), "");
  job.PublishAll(1);
  ASSERT_TRUE(job.trainer(0)->AwaitOutcome(absl::Seconds(20)).ok());
  EXPECT_EQ(told, 2);
  job.StopController();
  EXPECT_FALSE(lost.get_future().get().ok());
}

TEST(Leaving, ProgressTellsHowMuchOfThePlanIsDone) {
  Job job({.trainers = 2, .workers = 2});
  ASSERT_EQ(job.StartController().message(), "");
  ASSERT_EQ(job.JoinAll().message(), "");
  job.PublishAll(3);
  constexpr uint64_t kHalf = Job::kRows * Job::kColumns * 2 / 2;
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(job.trainer(rank)->AwaitOutcome(absl::Seconds(20)).ok());
    const TrainerReport sent = job.trainer(rank)->report();
    EXPECT_EQ(sent.version, 3u);
    EXPECT_EQ(sent.planned_bytes, kHalf);
    EXPECT_EQ(sent.counts.bytes, kHalf);
    const WorkerReport got = job.worker(rank)->report();
    EXPECT_EQ(got.version, 3u);
    EXPECT_EQ(got.planned_bytes, kHalf);
    EXPECT_EQ(got.arrived_bytes, kHalf);
  }
}

}  // namespace
}  // namespace waybill
