// SPDX-License-Identifier: Apache-2.0

// Poll and Wait.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "core/base/steady_now.h"
#include "testing/fabric_conformance/conformance.h"

namespace waybill::testing_fabric {
namespace {

// Long enough that a Wait() which runs into it is told from one that was ended.
absl::Time FarAway() { return SteadyNow() + absl::Seconds(60); }

TEST_P(FabricConformance, PollAppendsNoMoreThanTheCapacity) {
  Endpoint& a = Join("a");
  Endpoint& b = Join("b");
  const Lane lane = endpoints_.Connect(a, b);
  for (uint32_t i = 0; i < 10; ++i) ASSERT_TRUE(a.fabric().Post(lane.at_a, {}, i, i).ok());
  std::vector<FabricEvent> events;
  events.reserve(4);
  ASSERT_EQ(events.capacity(), 4u);
  std::vector<uint32_t> immediates;
  const absl::Time deadline = FarAway();
  while (immediates.size() < 10 && SteadyNow() < deadline) {
    a.Poll();
    events.assign(1, {});  // One is there already.
    b.fabric().Poll(events);
    ASSERT_LE(events.size(), 4u);
    ASSERT_EQ(events.capacity(), 4u);
    for (size_t e = 1; e < events.size(); ++e) immediates.push_back(events[e].immediate);
  }
  EXPECT_EQ(immediates, (std::vector<uint32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST_P(FabricConformance, WaitEndsAtItsDeadline) {
  Endpoint& a = Join("a");
  a.fabric().Wait(absl::InfinitePast());
  const absl::Time deadline = SteadyNow() + absl::Milliseconds(3);
  for (int i = 0; i < 100 && SteadyNow() < deadline; ++i) a.fabric().Wait(deadline);
  EXPECT_GE(SteadyNow(), deadline);
}

TEST_P(FabricConformance, AWakeBeforeTheWaitEndsIt) {
  Endpoint& a = Join("a");
  a.fabric().Wake();
  const absl::Time deadline = FarAway();
  a.fabric().Wait(deadline);
  EXPECT_LT(SteadyNow(), deadline);
}

// A Wake() may have come between the owner's check of its work and its Poll().
TEST_P(FabricConformance, AWakeBeforeAPollStillEndsTheNextWait) {
  Endpoint& a = Join("a");
  a.fabric().Wake();
  a.Poll();
  const absl::Time deadline = FarAway();
  a.fabric().Wait(deadline);
  EXPECT_LT(SteadyNow(), deadline);
}

TEST_P(FabricConformance, AWakeFromAnotherThreadEndsAWait) {
  Endpoint& a = Join("a");
  const absl::Time deadline = FarAway();
  std::thread waker([&] { a.fabric().Wake(); });
  a.fabric().Wait(deadline);
  waker.join();
  EXPECT_LT(SteadyNow(), deadline);
}

TEST_P(FabricConformance, AfterAWakeWaitsWaitAgain) {
  Endpoint& a = Join("a");
  a.fabric().Wake();
  a.fabric().Wait(FarAway());
  a.Poll();
  const absl::Time deadline = SteadyNow() + absl::Milliseconds(3);
  int waits = 0;
  while (SteadyNow() < deadline && waits < 1000) {
    a.fabric().Wait(deadline);
    a.Poll();
    ++waits;
  }
  EXPECT_LT(waits, 1000);
}

TEST_P(FabricConformance, APostOfThePeerEndsAWait) {
  Endpoint& a = Join("a");
  Endpoint& b = Join("b");
  const Lane lane = endpoints_.Connect(a, b);
  endpoints_.UntilQuiet();
  ASSERT_TRUE(a.fabric().Post(lane.at_a, {}, 7, 7).ok());
  const absl::Time deadline = FarAway();
  for (int i = 0; i < 1000 && b.Immediates(lane.at_b).empty(); ++i) {
    b.fabric().Wait(deadline);
    b.Poll();
  }
  EXPECT_LT(SteadyNow(), deadline);
  EXPECT_EQ(b.Immediates(lane.at_b), std::vector<uint32_t>{7});
}

TEST_P(FabricConformance, EventsThatWereNotTakenEndAWait) {
  Endpoint& a = Join("a");
  Endpoint& b = Join("b");
  const Lane lane = endpoints_.Connect(a, b);
  for (uint32_t i = 0; i < 3; ++i) ASSERT_TRUE(a.fabric().Post(lane.at_a, {}, i, i).ok());
  a.Poll();
  const absl::Time deadline = FarAway();
  std::vector<FabricEvent> one;
  one.reserve(1);
  std::vector<uint32_t> immediates;
  for (int i = 0; i < 1000 && immediates.size() < 3; ++i) {
    one.clear();
    b.fabric().Wait(deadline);
    b.fabric().Poll(one);
    if (!one.empty()) immediates.push_back(one[0].immediate);
  }
  EXPECT_LT(SteadyNow(), deadline);
  EXPECT_EQ(immediates, (std::vector<uint32_t>{0, 1, 2}));
}

TEST_P(FabricConformance, ADyingPeerEndsAWait) {
  Endpoint& a = Join("a");
  Endpoint& b = Join("b");
  const Lane lane = endpoints_.Connect(a, b);
  endpoints_.UntilQuiet();
  b.Destroy();
  const absl::Time deadline = FarAway();
  for (int i = 0; i < 1000 && !a.HasFailed(lane.at_a); ++i) {
    a.fabric().Wait(deadline);
    a.Poll();
  }
  EXPECT_LT(SteadyNow(), deadline);
  EXPECT_TRUE(a.HasFailed(lane.at_a));
}

TEST_P(FabricConformance, TwoThreadsThatWaitForEachOtherGoOn) {
  Endpoint& a = Join("a");
  Endpoint& b = Join("b");
  const Lane lane = endpoints_.Connect(a, b);
  constexpr uint32_t kTurns = 200;
  const absl::Time deadline = FarAway();
  const auto play = [&](Endpoint& self, LaneId own, bool begins) {
    uint32_t posted = 0;
    if (begins) (void)self.fabric().Post(own, {}, posted++, 0);
    while (SteadyNow() < deadline) {
      const size_t come = self.Immediates(own).size();
      while (posted < std::min<size_t>(come + (begins ? 1 : 0), kTurns)) {
        (void)self.fabric().Post(own, {}, posted++, 0);
      }
      if (come == kTurns && self.Count(FabricEvent::Kind::kComplete, own) == kTurns) return;
      self.fabric().Wait(deadline);
      self.Poll();
    }
  };
  std::thread other([&] { play(b, lane.at_b, false); });
  play(a, lane.at_a, true);
  other.join();
  EXPECT_LT(SteadyNow(), deadline);
  EXPECT_EQ(a.Immediates(lane.at_a).size(), kTurns);
  EXPECT_EQ(b.Immediates(lane.at_b).size(), kTurns);
}

}  // namespace
}  // namespace waybill::testing_fabric
