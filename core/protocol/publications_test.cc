// SPDX-License-Identifier: Apache-2.0

#include "core/protocol/publications.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace waybill {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);

proto::Publish Call(uint64_t version, uint64_t attempt, int64_t deadline_ms = 1000) {
  proto::Publish publish;
  publish.set_version(version);
  publish.set_attempt(attempt);
  publish.set_deadline_ms(deadline_ms);
  return publish;
}

proto::Publish WithDigests(uint64_t version, std::initializer_list<std::pair<int, int>> digests) {
  proto::Publish publish = Call(version, 1);
  for (const auto& [unit, digest] : digests) {
    publish.add_sampled_units(unit);
    publish.add_sampled_digests(digest);
  }
  return publish;
}

TEST(Publications, TheEarliestDeadlineOfAVersionCounts) {
  Publications publications;
  Publication& version = publications.Add(0, Call(5, 1, 3000), kStart);
  (void)publications.Add(1, Call(5, 1, 1000), kStart + absl::Seconds(1));
  EXPECT_EQ(version.deadline, kStart + absl::Seconds(2));
  EXPECT_EQ(version.received, kStart);
  (void)publications.Add(1, Call(5, 2, 9000), kStart + absl::Seconds(1));  // In place of its first.
  EXPECT_EQ(version.deadline, kStart + absl::Seconds(3));
  EXPECT_TRUE(version.Remove(0));
  EXPECT_FALSE(version.Remove(0));
  EXPECT_EQ(version.deadline, kStart + absl::Seconds(10));
  EXPECT_EQ(version.received, kStart + absl::Seconds(1));
}

TEST(Publications, ATrainerTakesPartWithItsLastAttempt) {
  Publications publications;
  Publication& version = publications.Add(0, Call(5, 1), kStart);
  EXPECT_EQ(publications.Find(0, 5, 1), &version);
  (void)publications.Add(0, Call(5, 2), kStart);
  EXPECT_EQ(publications.Find(0, 5, 1), nullptr);
  EXPECT_EQ(publications.Find(0, 5, 2), &version);
  EXPECT_EQ(publications.Find(1, 5, 2), nullptr);
  EXPECT_EQ(publications.Find(0, 6, 2), nullptr);
}

TEST(Publications, WhatNobodyPublishesIsDroppedUnlessItIsOpened) {
  Publications publications;
  for (const uint64_t version : {5, 6}) (void)publications.Add(0, Call(version, 1), kStart);
  publications.Find(6)->opened = true;
  for (const uint64_t version : {5, 6}) EXPECT_TRUE(publications.Find(version)->Remove(0));
  publications.DropUnwanted();
  EXPECT_EQ(publications.Find(5), nullptr);
  EXPECT_NE(publications.Find(6), nullptr);
  EXPECT_EQ(publications.newest_version(), 6u);
}

TEST(Publications, PartsAreCountedByWhatTheyWaitFor) {
  Publication version;
  version.SetPart("a", {});
  version.SetPart("b", {});
  version.SetPart("c", {Part::State::kGivenUp, absl::CancelledError("gone")});
  EXPECT_EQ(version.queued, 2u);
  EXPECT_EQ(version.unfinished, 2u);
  version.SetPart("a", {Part::State::kOpen});
  EXPECT_EQ(version.queued, 1u);
  EXPECT_EQ(version.unfinished, 2u);
  version.SetPart("a", {Part::State::kCommitted});
  version.SetPart("b", {Part::State::kGivenUp, absl::CancelledError("gone")});
  EXPECT_EQ(version.queued, 0u);
  EXPECT_EQ(version.unfinished, 0u);
}

TEST(Publications, ReplicasThatDifferAreFoundByTheUnitsThatBothHold) {
  Publications publications;
  Publication& version = publications.Add(0, WithDigests(5, {{1, 10}, {2, 20}}), kStart);
  EXPECT_EQ(version.FindDifference(0), std::nullopt);
  (void)publications.Add(1, WithDigests(5, {{2, 20}, {3, 30}}), kStart);
  EXPECT_EQ(version.FindDifference(1), std::nullopt);
  (void)publications.Add(2, WithDigests(5, {{3, 31}}), kStart);
  EXPECT_EQ(version.FindDifference(2), std::pair(uint64_t{3}, 1u));
  EXPECT_TRUE(version.Remove(1));
  EXPECT_EQ(version.FindDifference(2), std::nullopt);
}

TEST(Publications, EachTrainerIsToldOnceOfWhatWasGivenUp) {
  Publications publications;
  const absl::Status why = absl::UnavailableError("no room");
  publications.GiveUp(5, {0, 1}, why);
  EXPECT_TRUE(publications.IsGivenUp(5));
  EXPECT_EQ(publications.Tell(5, 1), why);
  EXPECT_EQ(publications.Tell(5, 1), absl::OkStatus());
  EXPECT_EQ(publications.Tell(6, 0), absl::OkStatus());
  publications.ForgetWhatWasTold(1);  // It may not have heard it.
  EXPECT_EQ(publications.Tell(5, 1), why);
  publications.ForgetGivenUp(4);
  EXPECT_EQ(publications.Tell(5, 0), why);
  publications.ForgetGivenUp(5);
  EXPECT_FALSE(publications.IsGivenUp(5));
}

}  // namespace
}  // namespace waybill
