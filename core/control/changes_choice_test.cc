// SPDX-License-Identifier: Apache-2.0

#include "core/control/changes_choice.h"

#include <gtest/gtest.h>

#include <functional>

namespace waybill {
namespace {

// Makes so many updates, which take as long as `time_of` says. Returns how many sent what changed.
int Updates(ChangesChoice& choice, int updates,
            const std::function<absl::Duration(Sent)>& time_of) {
  int changes = 0;
  for (int u = 0; u < updates; ++u) {
    const Sent sent = choice.Next();
    choice.Record(sent, time_of(sent));
    changes += sent == Sent::kChanges ? 1 : 0;
  }
  return changes;
}

std::function<absl::Duration(Sent)> Takes(double changes, double everything) {
  return [=](Sent sent) { return absl::Seconds(sent == Sent::kChanges ? changes : everything); };
}

TEST(ChangesChoice, ChangesAreTriedFirst) {
  ChangesChoice choice;
  choice.Record(Sent::kEverything, absl::Seconds(1));  // Nobody has a base for the first version.
  EXPECT_EQ(choice.Next(), Sent::kChanges);
}

TEST(ChangesChoice, TheFasterWayGoesOn) {
  ChangesChoice fast, slow;
  EXPECT_GE(Updates(fast, 1000, Takes(1, 2)), 940);
  EXPECT_LE(Updates(slow, 1000, Takes(2, 1)), 60);
}

TEST(ChangesChoice, TriesOfTheSlowerWayTakeATwentiethOfTheTimeAtMost) {
  for (const double slower : {1.05, 1.5, 3.0, 20.0, 100.0}) {
    ChangesChoice choice;
    constexpr int kUpdates = 20'000;
    const int tries = kUpdates - Updates(choice, kUpdates, Takes(1, slower));
    EXPECT_GE(tries, 9) << slower;
    EXPECT_LE(tries * (slower - 1), kUpdates / 20.0 + slower) << slower;
  }
}

TEST(ChangesChoice, WhatBecomesFasterIsFound) {
  ChangesChoice choice;
  Updates(choice, 100, Takes(2, 1));
  EXPECT_GE(Updates(choice, 100, Takes(0.5, 1)), 75);
  EXPECT_LE(Updates(choice, 100, Takes(2, 1)), 10);
}

TEST(ChangesChoice, OneSlowUpdateDoesNotCountForEver) {
  ChangesChoice choice;
  choice.Record(Sent::kEverything, absl::Seconds(3));  // It touched memory for the first time.
  EXPECT_LE(Updates(choice, 100, Takes(2, 1)), 60);
  EXPECT_LE(Updates(choice, 100, Takes(2, 1)), 10);
}

}  // namespace
}  // namespace waybill
