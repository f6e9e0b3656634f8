// SPDX-License-Identifier: Apache-2.0

#include "core/protocol/decisions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace waybill {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const absl::Time kStart = absl::FromUnixSeconds(1000);

Decision Of(const std::string& group, uint64_t version) {
  return {
      .epoch = 7, .sequence = static_cast<uint32_t>(version), .version = version, .group = group};
}

proto::Round RoundOf(uint32_t sequence) {
  proto::Round round;
  round.set_epoch(7);
  round.set_sequence(sequence);
  return round;
}

TEST(Decisions, AGroupKeepsItsLastFew) {
  Decisions decisions;
  const GroupDecisions& kept = decisions.Of("a");
  EXPECT_FALSE(kept.Reaches(1));
  for (uint64_t version = 1; version <= kDecisionsKept + 1; ++version) {
    EXPECT_TRUE(decisions.Add(Of("a", version)));
  }
  EXPECT_EQ(kept.kept().size(), kDecisionsKept);
  EXPECT_EQ(kept.newest_version(), kDecisionsKept + 1);
  EXPECT_EQ(kept.Find(RoundOf(1)), nullptr);
  EXPECT_TRUE(kept.Contains(RoundOf(2), 2));
  EXPECT_FALSE(kept.Contains(RoundOf(2), 3));
  EXPECT_TRUE(kept.Contains(2));
  EXPECT_FALSE(kept.Contains(1));
  // Whether version 2 was committed is known; whether version 1 was is forgotten.
  EXPECT_TRUE(kept.Reaches(3));
  EXPECT_FALSE(kept.Reaches(2));
}

TEST(Decisions, TheNewestVersionIsThatOfAnyGroup) {
  Decisions decisions;
  EXPECT_EQ(decisions.newest_version(), 0u);
  EXPECT_TRUE(decisions.Add(Of("a", 5)));
  EXPECT_FALSE(decisions.Add(Of("b", 5)));
  EXPECT_TRUE(decisions.Add(Of("b", 6)));
  EXPECT_EQ(decisions.newest_version(), 6u);
  EXPECT_EQ(decisions.Of("a").newest_version(), 5u);
}

TEST(Decisions, AGroupThatIsAwayForTenMinutesIsForgotten) {
  Decisions decisions;
  for (const char* group : {"a", "b", "c"}) (void)decisions.Add(Of(group, 5));
  (void)decisions.Add(Of("newest", 6));
  for (const char* group : {"a", "b", "newest"}) decisions.OnAway(group, kStart);
  EXPECT_THAT(decisions.Forget(kStart + absl::Minutes(9)), IsEmpty());
  decisions.OnHere("b");
  EXPECT_THAT(decisions.Forget(kStart + absl::Minutes(10)), ElementsAre("a"));
  EXPECT_TRUE(decisions.Of("a").empty());
  EXPECT_FALSE(decisions.Of("b").empty());
  // A controller without any decision would take any version for the newest.
  EXPECT_THAT(decisions.Forget(kStart + absl::Hours(1)), IsEmpty());
  EXPECT_FALSE(decisions.Of("newest").empty());
}

TEST(Decisions, AGroupIsNotForgottenAtOnceByAControllerThatWasStopped) {
  Decisions decisions;
  (void)decisions.Add(Of("a", 5));
  (void)decisions.Add(Of("newest", 6));
  decisions.OnAway("a", kStart);
  EXPECT_THAT(decisions.Forget(kStart + absl::Hours(1)), IsEmpty());
  EXPECT_THAT(decisions.Forget(kStart + absl::Hours(1) + absl::Seconds(59)), IsEmpty());
  EXPECT_THAT(decisions.Forget(kStart + absl::Hours(1) + absl::Seconds(60)), ElementsAre("a"));
}

TEST(Decisions, AGroupThatLeavesAgainIsKeptFromThenOn) {
  Decisions decisions;
  (void)decisions.Add(Of("a", 5));
  (void)decisions.Add(Of("newest", 6));
  decisions.OnAway("a", kStart);
  decisions.OnHere("a");
  decisions.OnAway("a", kStart + absl::Minutes(5));
  EXPECT_THAT(decisions.Forget(kStart + absl::Minutes(9)), IsEmpty());
  EXPECT_THAT(decisions.Forget(kStart + absl::Minutes(14)), IsEmpty());
  EXPECT_THAT(decisions.Forget(kStart + absl::Minutes(15)), ElementsAre("a"));
}

}  // namespace
}  // namespace waybill
