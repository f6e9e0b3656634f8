// SPDX-License-Identifier: Apache-2.0

#include "core/engine/timeline.h"

#include <gtest/gtest.h>

#include <atomic>

namespace waybill {
namespace {

StageSpan SpanOf(const Timeline& timeline, Stage stage) {
  return timeline.spans()[static_cast<size_t>(stage)];
}

TEST(Timeline, AStageThatDidNotBeginOrEndHasNoSpan) {
  Timeline timeline;
  timeline.Begin(Stage::kStage);
  timeline.End(Stage::kPost);
  for (const Stage stage : {Stage::kStage, Stage::kPost, Stage::kVerify}) {
    EXPECT_EQ(SpanOf(timeline, stage).begin_ns, 0);
    EXPECT_EQ(SpanOf(timeline, stage).end_ns, 0);
  }
}

TEST(Timeline, TheFirstBeginAndTheLastEndCount) {
  Timeline timeline;
  timeline.Begin(Stage::kStage);
  timeline.End(Stage::kStage);
  const StageSpan first = SpanOf(timeline, Stage::kStage);
  timeline.Begin(Stage::kStage);
  timeline.End(Stage::kStage);
  const StageSpan second = SpanOf(timeline, Stage::kStage);
  EXPECT_GT(first.begin_ns, 0);
  EXPECT_EQ(second.begin_ns, first.begin_ns);
  EXPECT_GE(second.end_ns, first.end_ns);
}

TEST(Timeline, WaitingBeginsWhenTheLastOfTheOthersEnds) {
  Timeline timeline;
  timeline.Begin(Stage::kStage);
  timeline.End(Stage::kStage);
  timeline.Begin(Stage::kPost);
  timeline.End(Stage::kPost);
  timeline.EndWait();
  EXPECT_EQ(SpanOf(timeline, Stage::kWait).begin_ns, SpanOf(timeline, Stage::kPost).end_ns);
}

TEST(Timeline, ClearForgetsEverything) {
  Timeline timeline;
  timeline.Begin(Stage::kStage);
  timeline.End(Stage::kStage);
  timeline.Charge(Timeline::Work::kTrade, [] {});
  timeline.Clear();
  EXPECT_EQ(SpanOf(timeline, Stage::kStage).end_ns, 0);
  EXPECT_EQ(timeline.cpu_ns(Timeline::Work::kTrade), 0);
}

TEST(Timeline, WorkIsChargedToWhatItIs) {
  Timeline timeline;
  timeline.Charge(Timeline::Work::kMaxima, [] {
    std::atomic<int> turns = 0;
    while (turns < 1'000'000) ++turns;
  });
  EXPECT_GT(timeline.cpu_ns(Timeline::Work::kMaxima), 0);
  EXPECT_EQ(timeline.cpu_ns(Timeline::Work::kTrade), 0);
}

}  // namespace
}  // namespace waybill
