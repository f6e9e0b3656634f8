// SPDX-License-Identifier: Apache-2.0

// Lanes: they connect, keep apart, fail alone, and are closed.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "testing/fabric_conformance/conformance.h"

namespace waybill::testing_fabric {

bool FabricConformance::Carries(const Lane& lane) {
  const Reached to = endpoints_.AllocateAtB(lane, 16);
  const Region from = endpoints_.SourceAtA(lane, 16, 77);
  const size_t before = lane.b->Immediates(lane.at_b).size();
  if (!endpoints_.PostAndComplete(lane, {{from.id, 0, to.remote, 0, 16}}, 4711)) return false;
  if (!endpoints_.Until([&] { return lane.b->Immediates(lane.at_b).size() > before; })) {
    return false;
  }
  return lane.b->Immediates(lane.at_b).back() == 4711 && to.region.memory.data[9] == ByteAt(9, 77);
}

namespace {

using Kind = FabricEvent::Kind;

TEST_P(FabricConformance, ALaneConnectsWhicheverEndBegins) {
  Endpoint& one = Join("one");
  Endpoint& two = Join("two");
  for (const bool swapped : {false, true}) {
    Endpoint& a = swapped ? two : one;
    Endpoint& b = swapped ? one : two;
    const Lane lane = endpoints_.Open(a, b);
    ASSERT_EQ(a.fabric().ConnectLane(lane.at_a, *b.fabric().LaneAddress(lane.at_b)).message(), "");
    endpoints_.UntilQuiet();  // The other end takes its time.
    ASSERT_EQ(b.fabric().ConnectLane(lane.at_b, *a.fabric().LaneAddress(lane.at_a)).message(), "");
    ASSERT_TRUE(endpoints_.Until([&] {
      return a.Count(Kind::kConnected, lane.at_a) == 1 && b.Count(Kind::kConnected, lane.at_b) == 1;
    }));
    EXPECT_TRUE(Carries(lane));
    EXPECT_EQ(a.Count(Kind::kConnected, lane.at_a), 1u);
    EXPECT_EQ(b.Count(Kind::kConnected, lane.at_b), 1u);
  }
}

TEST_P(FabricConformance, BothEndsOfAConnectedLaneCarry) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  EXPECT_TRUE(Carries(lane));
  EXPECT_TRUE(Carries({lane.b, lane.a, lane.at_b, lane.at_a}));
}

TEST_P(FabricConformance, WhatComesOnOneOfManyLanesIsOfThatLane) {
  Endpoint& a = Join("a");
  Endpoint& b = Join("b");
  Endpoint& c = Join("c");
  std::vector<Lane> lanes;
  for (int i = 0; i < 12; ++i) {
    lanes.push_back(endpoints_.Connect(a, b));
    lanes.push_back(endpoints_.Connect(c, b));
    lanes.push_back(endpoints_.Connect(a, c));
  }
  for (uint32_t i = 0; i < lanes.size(); ++i) {
    ASSERT_EQ(lanes[i].a->fabric().Post(lanes[i].at_a, {}, 100 + i, 200 + i).message(), "");
  }
  for (uint32_t i = 0; i < lanes.size(); ++i) {
    EXPECT_TRUE(endpoints_.Until([&] {
      return !lanes[i].b->Immediates(lanes[i].at_b).empty() &&
             lanes[i].a->IsComplete(lanes[i].at_a, 200 + i);
    }));
  }
  endpoints_.UntilQuiet();
  for (uint32_t i = 0; i < lanes.size(); ++i) {
    EXPECT_EQ(lanes[i].b->Immediates(lanes[i].at_b), std::vector<uint32_t>{100 + i});
    EXPECT_TRUE(lanes[i].a->IsComplete(lanes[i].at_a, 200 + i));
    EXPECT_EQ(lanes[i].a->Count(Kind::kComplete, lanes[i].at_a), 1u);
  }
}

TEST_P(FabricConformance, ALaneToAnEndpointThatIsGoneFails) {
  Endpoint& a = Join("a");
  for (int i = 0; i < 8; ++i) {  // Whatever decides which end begins.
    Endpoint& b = Join("b");
    const Lane lane = endpoints_.Open(a, b);
    const std::string address = *b.fabric().LaneAddress(lane.at_b);
    b.Destroy();
    ASSERT_EQ(a.fabric().ConnectLane(lane.at_a, address).message(), "");
    ASSERT_TRUE(endpoints_.Until([&] { return a.HasFailed(lane.at_a); }));
    EXPECT_EQ(a.fabric().LaneStatus(lane.at_a).code(), absl::StatusCode::kUnavailable);
  }
}

TEST_P(FabricConformance, ALaneWhosePeerConnectsAndIsGoneBeforeThisEndConnectsFails) {
  Endpoint& a = Join("a");
  for (int i = 0; i < 8; ++i) {  // Whatever decides which end begins.
    Endpoint& b = Join("b");
    const Lane lane = endpoints_.Open(a, b);
    const std::string address = *b.fabric().LaneAddress(lane.at_b);
    ASSERT_EQ(b.fabric().ConnectLane(lane.at_b, *a.fabric().LaneAddress(lane.at_a)).message(), "");
    endpoints_.UntilQuiet();
    b.Destroy();
    endpoints_.UntilQuiet();
    if (!a.fabric().ConnectLane(lane.at_a, address).ok()) {
      EXPECT_TRUE(a.HasFailed(lane.at_a));
      continue;
    }
    ASSERT_TRUE(endpoints_.Until([&] { return a.HasFailed(lane.at_a); }));
    EXPECT_EQ(a.fabric().LaneStatus(lane.at_a).code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(a.Count(Kind::kFailed, lane.at_a), 1u);
  }
}

TEST_P(FabricConformance, ALaneOfARestartedPeerIsNotTheOneOfBefore) {
  Endpoint& a = Join("a");
  Endpoint& before = Join("b");
  const Lane lane = endpoints_.Open(a, before);
  const std::string address = *before.fabric().LaneAddress(lane.at_b);
  before.Destroy();
  Endpoint& after = Join("b");
  const LaneId same_number = *after.fabric().OpenLane("a", "");
  ASSERT_EQ(after.fabric().ConnectLane(same_number, *a.fabric().LaneAddress(lane.at_a)).message(),
            "");
  ASSERT_EQ(a.fabric().ConnectLane(lane.at_a, address).message(), "");
  endpoints_.UntilQuiet();
  EXPECT_EQ(a.Count(Kind::kConnected, lane.at_a), 0u);
  EXPECT_EQ(after.Count(Kind::kConnected, same_number), 0u);
}

TEST_P(FabricConformance, AnAddressThatIsNoneIsRefusedOrFails) {
  Endpoint& a = Join("a");
  for (const char* address : {"", "/", "b", "b/x", "b/1/2/3", "//////", "a/99999999999999999999"}) {
    const LaneId lane = *a.fabric().OpenLane("b", "");
    if (!a.fabric().ConnectLane(lane, address).ok()) continue;
    EXPECT_TRUE(endpoints_.Until([&] { return a.HasFailed(lane); })) << address;
  }
}

TEST_P(FabricConformance, ALaneIsConnectedOnce) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  EXPECT_EQ(
      lane.a->fabric().ConnectLane(lane.at_a, *lane.b->fabric().LaneAddress(lane.at_b)).code(),
      absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Carries(lane));
}

TEST_P(FabricConformance, ALaneThatIsNotConnectedCarriesNothing) {
  Endpoint& a = Join("a");
  const LaneId lane = *a.fabric().OpenLane("b", "");
  EXPECT_EQ(a.fabric().Post(lane, {}, 1, 1).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(a.fabric().Signal(lane, 1).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(a.fabric().LaneStatus(lane).ok());
  EXPECT_TRUE(a.fabric().CloseLane(lane).ok());
}

TEST_P(FabricConformance, NumbersAreNotUsedAgain) {
  Fabric& fabric = Join("a").fabric();
  const LaneId lane = *fabric.OpenLane("b", "");
  EXPECT_NE(lane, LaneId::kNone);
  ASSERT_TRUE(fabric.CloseLane(lane).ok());
  EXPECT_NE(*fabric.OpenLane("b", ""), lane);
  const Region region = *fabric.Allocate(10, "first");
  EXPECT_NE(region.id, RegionId::kNone);
  ASSERT_TRUE(fabric.Release(region.id).ok());
  EXPECT_NE(fabric.Allocate(10, "second")->id, region.id);
}

TEST_P(FabricConformance, AClosedLaneIsNotFound) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  Fabric& fabric = lane.a->fabric();
  const Reached to = endpoints_.AllocateAtB(lane, 16);
  const Region region = endpoints_.SourceAtA(lane, 16);
  ASSERT_TRUE(fabric.CloseLane(lane.at_a).ok());
  constexpr auto kNotFound = absl::StatusCode::kNotFound;
  EXPECT_EQ(fabric.CloseLane(lane.at_a).code(), kNotFound);
  EXPECT_EQ(fabric.LaneStatus(lane.at_a).code(), kNotFound);
  EXPECT_EQ(fabric.LaneAddress(lane.at_a).status().code(), kNotFound);
  EXPECT_EQ(fabric.ConnectLane(lane.at_a, "b/1").code(), kNotFound);
  EXPECT_EQ(fabric.Post(lane.at_a, {}, 1, 1).code(), kNotFound);
  EXPECT_EQ(fabric.Signal(lane.at_a, 1).code(), kNotFound);
  EXPECT_EQ(fabric.Grant(lane.at_a, region.id).code(), kNotFound);
  EXPECT_EQ(fabric.Import(lane.at_a, to.descriptor).status().code(), kNotFound);
}

TEST_P(FabricConformance, ClosingALaneFailsItsOtherEndOnceAndNoOtherLane) {
  Endpoint& a = Join("a");
  Endpoint& b = Join("b");
  const Lane closed = endpoints_.Connect(a, b);
  const Lane other = endpoints_.Connect(a, b);
  ASSERT_TRUE(a.fabric().CloseLane(closed.at_a).ok());
  ASSERT_TRUE(endpoints_.Until([&] { return b.HasFailed(closed.at_b); }));
  endpoints_.UntilQuiet();
  EXPECT_EQ(b.Count(Kind::kFailed, closed.at_b), 1u);
  EXPECT_EQ(a.Count(Kind::kFailed, closed.at_a), 0u);
  EXPECT_FALSE(b.fabric().LaneStatus(closed.at_b).ok());
  EXPECT_FALSE(b.fabric().Post(closed.at_b, {}, 1, 1).ok());
  EXPECT_TRUE(Carries(other));
}

TEST_P(FabricConformance, EventsOfAClosedLaneAreDropped) {
  Endpoint& a = Join("a");
  Endpoint& b = Join("b");
  const Lane lane = endpoints_.Connect(a, b);
  const Lane other = endpoints_.Connect(a, b);
  for (uint32_t i = 0; i < 5; ++i) {
    ASSERT_TRUE(a.fabric().Post(lane.at_a, {}, i, i).ok());
    ASSERT_TRUE(a.fabric().Post(other.at_a, {}, i, i).ok());
  }
  std::vector<FabricEvent> one;  // Takes one of all the events that have come.
  one.reserve(1);
  ASSERT_TRUE(endpoints_.Until([&] {
    if (one.empty()) b.fabric().Poll(one);
    return !one.empty() && b.Immediates(other.at_b).size() >= 4;
  }));
  ASSERT_TRUE(a.fabric().Post(lane.at_a, {}, 6, 6).ok());
  for (int i = 0; i < 10; ++i) a.Poll();
  ASSERT_TRUE(b.fabric().CloseLane(lane.at_b).ok());
  const size_t before = b.Immediates(lane.at_b).size();
  endpoints_.UntilQuiet();
  EXPECT_EQ(b.Immediates(lane.at_b).size(), before);
  EXPECT_FALSE(b.HasFailed(lane.at_b));
}

TEST_P(FabricConformance, APeerThatIsGoneFailsEachOfItsLanesOnceAndNoOther) {
  Endpoint& a = Join("a");
  Endpoint& b = Join("b");
  const Lane first = endpoints_.Connect(a, b);
  const Lane second = endpoints_.Connect(b, a);
  const Lane other = endpoints_.Connect(a, Join("c"));
  ASSERT_TRUE(a.fabric().Post(first.at_a, {}, 1, 1).ok());
  b.Destroy();
  ASSERT_TRUE(
      endpoints_.Until([&] { return a.HasFailed(first.at_a) && a.HasFailed(second.at_b); }));
  endpoints_.UntilQuiet();
  EXPECT_EQ(a.Count(Kind::kFailed, first.at_a), 1u);
  EXPECT_EQ(a.Count(Kind::kFailed, second.at_b), 1u);
  EXPECT_EQ(a.fabric().LaneStatus(first.at_a).code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(a.fabric().LaneStatus(first.at_a).message().find("b"), absl::string_view::npos);
  EXPECT_TRUE(Carries(other));
  EXPECT_TRUE(a.fabric().CloseLane(first.at_a).ok());
}

}  // namespace
}  // namespace waybill::testing_fabric
