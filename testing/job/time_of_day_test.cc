// SPDX-License-Identifier: Apache-2.0

// A job whose hosts set their clocks: a step of the time of day ends nothing, and prolongs nothing.

#include "testing/job/time_of_day.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "core/base/steady_now.h"
#include "testing/job/job.h"

namespace waybill {
namespace {

// How long calls may take besides what they wait for.
constexpr absl::Duration kSlack = absl::Seconds(15);

class TimeOfDayTest : public testing::TestWithParam<absl::Duration> {
 protected:
  TimeOfDayTest() {
    job_.handler(0) = [this](const Notice& notice, const WorkerOptions::Answer& answer) {
      if (notice.kind != Notice::Kind::kPrepare) return answer(absl::OkStatus());
      const std::lock_guard lock(mutex_);
      asked_ = true;
      if (!silent_) return answer(absl::OkStatus());
      changed_.notify_all();
    };
  }
  ~TimeOfDayTest() override { StepTimeOfDay(-GetParam()); }

  void AwaitPrepare() {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, std::chrono::seconds(20), [this] { return asked_; }));
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool silent_ = false;
  bool asked_ = false;
  Job job_{{.trainers = 1, .workers = 1}};
};

TEST(TimeOfDay, IsWhatATestHasSteppedItTo) {
  const absl::Time wall = absl::Now(), steady = SteadyNow();
  StepTimeOfDay(absl::Hours(1));
  EXPECT_GE(absl::Now() - wall, absl::Hours(1));
  EXPECT_LT(SteadyNow() - steady, absl::Minutes(30));
  StepTimeOfDay(-absl::Hours(1));
  EXPECT_LT(absl::Now() - wall, absl::Minutes(30));
}

TEST_P(TimeOfDayTest, APublishThatWaitsForAWorkerEndsAtItsDeadline) {
  ASSERT_EQ(job_.StartController().message(), "");
  ASSERT_EQ(job_.JoinAll().message(), "");
  silent_ = true;
  const absl::Time begin = SteadyNow();
  absl::Status published;
  std::thread publisher(
      [&] { published = job_.PublishAll(1, {.timeout = absl::Seconds(3)}).front(); });
  AwaitPrepare();
  StepTimeOfDay(GetParam());
  publisher.join();
  EXPECT_EQ(published.code(), absl::StatusCode::kDeadlineExceeded) << published;
  EXPECT_GE(SteadyNow() - begin, absl::Seconds(2));
  EXPECT_LT(SteadyNow() - begin, absl::Seconds(3) + kSlack);
}

TEST_P(TimeOfDayTest, AJobGoesOn) {
  ASSERT_EQ(job_.StartController().message(), "");
  ASSERT_EQ(job_.JoinAll().message(), "");
  ASSERT_EQ(job_.PublishAll(1).front().message(), "");
  ASSERT_EQ(job_.worker(0)->AwaitShown(1, absl::Seconds(20)).message(), "");
  const uint64_t epoch = job_.controller().status().groups(0).epoch();
  StepTimeOfDay(GetParam());
  const absl::Time begin = SteadyNow();
  ASSERT_EQ(job_.PublishAll(2).front().message(), "");
  EXPECT_EQ(job_.worker(0)->AwaitShown(2, absl::Seconds(20)).message(), "");
  EXPECT_LT(SteadyNow() - begin, kSlack);
  EXPECT_EQ(job_.controller().status().groups(0).epoch(), epoch);  // Nobody was given up.
}

TEST_P(TimeOfDayTest, WaitingForWhatDoesNotComeEndsInTime) {
  ASSERT_EQ(job_.StartController().message(), "");
  ASSERT_EQ(job_.JoinAll().message(), "");
  const absl::Time begin = SteadyNow();
  std::thread stepper([] { StepTimeOfDay(GetParam()); });
  EXPECT_EQ(job_.worker(0)->AwaitShown(9, absl::Seconds(2)).code(),
            absl::StatusCode::kDeadlineExceeded);
  stepper.join();
  EXPECT_GE(SteadyNow() - begin, absl::Seconds(2));
  EXPECT_LT(SteadyNow() - begin, kSlack);
}

INSTANTIATE_TEST_SUITE_P(Steps, TimeOfDayTest, testing::Values(-absl::Seconds(40), absl::Hours(1)),
                         [](const auto& info) {
                           return info.param < absl::ZeroDuration() ? "Back" : "Forward";
                         });

}  // namespace
}  // namespace waybill
