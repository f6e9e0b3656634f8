// SPDX-License-Identifier: Apache-2.0

// After CloseLane() nothing that was posted on the lane reads or writes this process's memory.

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "testing/fabric_conformance/conformance.h"

namespace waybill::testing_fabric {
namespace {

constexpr uint64_t kEach = 1000;
constexpr uint32_t kPosts = 40;

class Quiescence {
 public:
  Quiescence(Endpoints& endpoints, const Lane& lane)
      : lane_(lane),
        from(endpoints.SourceAtA(lane, kEach)),
        to(endpoints.AllocateAtB(lane, kEach * kPosts)) {
    std::memset(from.memory.data, 0x11, kEach);
  }

  void PostAll() {
    for (uint32_t i = 0; i < kPosts; ++i) {
      ASSERT_TRUE(lane_.a->fabric()
                      .Post(lane_.at_a, {{from.id, 0, to.remote, i * kEach, kEach}}, i, i)
                      .ok());
    }
  }

 private:
  const Lane lane_;

 public:
  const Region from;
  const Reached to;
};

TEST_P(FabricConformance, AfterTheSenderClosesALaneItsSourceIsNotRead) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  Quiescence q(endpoints_, lane);
  q.PostAll();
  for (int i = 0; i < 3; ++i) lane.a->Poll();
  ASSERT_TRUE(lane.a->fabric().CloseLane(lane.at_a).ok());
  std::memset(q.from.memory.data, 0x99, kEach);  // It is ours again.
  endpoints_.UntilQuiet();
  for (uint64_t i = 0; i < kEach * kPosts; ++i) {
    ASSERT_NE(q.to.region.memory.data[i], std::byte{0x99}) << i;
  }
}

TEST_P(FabricConformance, AfterTheSendersLaneFailsAndIsClosedItsSourceIsNotRead) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  Quiescence q(endpoints_, lane);
  q.PostAll();
  ASSERT_TRUE(lane.b->fabric().CloseLane(lane.at_b).ok());
  ASSERT_TRUE(endpoints_.Until([&] { return lane.a->HasFailed(lane.at_a); }));
  ASSERT_TRUE(lane.a->fabric().CloseLane(lane.at_a).ok());
  std::memset(q.from.memory.data, 0x99, kEach);
  endpoints_.UntilQuiet();
  for (uint64_t i = 0; i < kEach * kPosts; ++i) {
    ASSERT_NE(q.to.region.memory.data[i], std::byte{0x99}) << i;
  }
}

TEST_P(FabricConformance, AfterTheReceiverClosesALaneItsMemoryIsNotWritten) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  Quiescence q(endpoints_, lane);
  q.PostAll();
  for (int i = 0; i < 3; ++i) lane.b->Poll();
  ASSERT_TRUE(lane.b->fabric().CloseLane(lane.at_b).ok());
  std::memset(q.to.region.memory.data, 0x42, kEach * kPosts);
  EXPECT_TRUE(endpoints_.Until([&] { return lane.a->HasFailed(lane.at_a); }));
  endpoints_.UntilQuiet();
  EXPECT_TRUE(AllAre(q.to.region.memory, std::byte{0x42}));
  EXPECT_EQ(lane.a->Count(FabricEvent::Kind::kFailed, lane.at_a), 1u);
}

TEST_P(FabricConformance, AfterTheReceiverIsGoneTheSenderGoesOn) {
  Endpoint& a = Join("a");
  const Lane lane = endpoints_.Connect(a, Join("b"));
  const Lane other = endpoints_.Connect(a, Join("c"));
  Quiescence q(endpoints_, lane);
  q.PostAll();
  lane.b->Destroy();
  ASSERT_TRUE(endpoints_.Until([&] { return a.HasFailed(lane.at_a); }));
  const size_t completed = a.Count(FabricEvent::Kind::kComplete, lane.at_a);
  endpoints_.UntilQuiet();
  EXPECT_EQ(a.Count(FabricEvent::Kind::kComplete, lane.at_a), completed);
  EXPECT_TRUE(a.fabric().CloseLane(lane.at_a).ok());
  EXPECT_TRUE(a.fabric().Release(q.from.id).ok());
  EXPECT_TRUE(Carries(other));
}

}  // namespace
}  // namespace waybill::testing_fabric
