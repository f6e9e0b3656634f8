// SPDX-License-Identifier: Apache-2.0

#include "core/protocol/catch_up_attempts.h"

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace waybill {
namespace {

TEST(CatchUpAttempts, AskEachLenderThreeTimes) {
  CatchUpAttempts attempts;
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(attempts.MayAsk("a"));
    attempts.OnAsked("a");
  }
  EXPECT_FALSE(attempts.MayAsk("a"));
  EXPECT_TRUE(attempts.MayAsk("b"));
  attempts.ForgetLenders();
  EXPECT_TRUE(attempts.MayAsk("a"));
}

TEST(CatchUpAttempts, ALenderThatHasFailedIsNotAskedAgain) {
  CatchUpAttempts attempts;
  attempts.OnAsked("a");
  attempts.OnLenderFailed("a", absl::AbortedError("gone"));
  EXPECT_FALSE(attempts.MayAsk("a"));
  EXPECT_EQ(attempts.last_trouble(), absl::AbortedError("gone"));
  attempts.OnCaughtUp();
  EXPECT_TRUE(attempts.last_trouble().ok());
  EXPECT_FALSE(attempts.MayAsk("a"));
}

TEST(CatchUpAttempts, TrainersFailThreeTimesWithEachVersion) {
  CatchUpAttempts attempts;
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(attempts.MayAskTrainers(7));
    attempts.OnTrainersFailed(7, absl::AbortedError("gone"));
  }
  EXPECT_FALSE(attempts.MayAskTrainers(7));
  EXPECT_TRUE(attempts.MayAskTrainers(8));
  attempts.OnTrainersFailed(8, absl::AbortedError("gone"));
  EXPECT_TRUE(attempts.MayAskTrainers(8));
  attempts.ForgetTrainers();
  for (int i = 0; i < 3; ++i) attempts.OnTrainersFailed(8, absl::AbortedError("gone"));
  EXPECT_FALSE(attempts.MayAskTrainers(8));
  attempts.ForgetTrainers();
  EXPECT_TRUE(attempts.MayAskTrainers(8));
}

}  // namespace
}  // namespace waybill
