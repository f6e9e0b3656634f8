// SPDX-License-Identifier: Apache-2.0

// Regions that cannot be registered for want of room, and how far lanes go for them.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "core/fabric/verbs/bounce_limits.h"
#include "core/fabric/verbs/lane_address.h"
#include "core/fabric/verbs/verbs_fabric.h"
#include "testing/fabric_conformance/endpoints.h"
#include "testing/fake_verbs/fake_network.h"

namespace waybill {
namespace {

using fake_verbs::Direction;
using fake_verbs::FakeHost;
using fake_verbs::FakeNetwork;
using testing_fabric::Endpoint;
using testing_fabric::Endpoints;
using testing_fabric::Lane;
using testing_fabric::Reached;

constexpr verbs::BounceLimits kBounce = {.slots = 4, .slot_bytes = 1000};
constexpr uint64_t kRing = kBounce.ring_bytes();
constexpr uint64_t kSize = 10'000;
constexpr auto kUnavailable = absl::StatusCode::kUnavailable;

class BounceTest : public testing::Test {
 protected:
  BounceTest() {
    for (FakeHost* host : {&host_a, &host_b}) host->AddDevice("mlx5_0");
  }

  void Start() {
    a = &endpoints.Join("a");
    b = &endpoints.Join("b");
    lane = endpoints.Connect(*a, *b);
  }
  static void LeaveRoomForRings(FakeHost& host) {
    host.FailRegistrations("mlx5_0", {.spared_bytes = kRing});
  }
  static uint64_t CountOf(Endpoint& endpoint, absl::string_view name) {
    for (const FabricCount& count : endpoint.fabric().Counts()) {
      if (count.name == name) return count.value;
    }
    ADD_FAILURE() << "there is no count " << name;
    return 0;
  }
  absl::Status WaitForFailure(Endpoint& endpoint, LaneId id) {
    EXPECT_TRUE(endpoints.Until([&] { return endpoint.HasFailed(id); })) << "it does not fail";
    return endpoint.fabric().LaneStatus(id);
  }
  static ibv_wc ToldOfAPiece(LaneId id, uint32_t receive) {
    ibv_wc done{};
    done.wr_id = uint64_t{static_cast<uint32_t>(id)} << 32 | receive;
    done.status = IBV_WC_SUCCESS;
    done.opcode = IBV_WC_RECV;
    return done;
  }
  uint32_t QueuePairAtB() {
    return verbs::ParseLaneAddress(*b->fabric().LaneAddress(lane.at_b))->queue_pair;
  }

  FakeNetwork network;
  FakeHost& host_a = network.Host("a");
  FakeHost& host_b = network.Host("b");
  Endpoints endpoints{[this](const std::string& name) {
    return *MakeVerbsFabric({.bounce = kBounce, .library = &network.Host(name)});
  }};
  Endpoint* a = nullptr;
  Endpoint* b = nullptr;
  Lane lane;
};

TEST_F(BounceTest, AnUnregisteredDestinationCostsOneCopyAndOneRing) {
  LeaveRoomForRings(host_b);
  Start();
  const Region from = endpoints.SourceAtA(lane, kSize);
  const Reached to = endpoints.AllocateAtB(lane, kSize);
  const uint64_t requests = CountOf(*a, "work_requests");
  ASSERT_TRUE(endpoints.PostAndComplete(lane, {{from.id, 0, to.remote, 0, kSize}}, 7));
  // Ten pieces, each with what tells of it, and the immediate.
  EXPECT_EQ(CountOf(*a, "work_requests") - requests, 21u);
  EXPECT_TRUE(endpoints.Until([&] { return !b->Immediates(lane.at_b).empty(); }));
  EXPECT_EQ(std::memcmp(to.region.memory.data, from.memory.data, kSize), 0);
  EXPECT_EQ(CountOf(*a, "unregistered_regions"), 0u);
  EXPECT_EQ(CountOf(*a, "copied_bytes"), 0u);  // Straight from the source.
  EXPECT_EQ(CountOf(*a, "bounced_bytes"), kSize);
  EXPECT_EQ(CountOf(*b, "unregistered_regions"), 1u);
  EXPECT_EQ(CountOf(*b, "delivered_bytes"), kSize);
  EXPECT_EQ(CountOf(*b, "registered_bytes"), 0u);
  EXPECT_EQ(host_a.counts("mlx5_0").registrations, 3u);  // The source, probes, and the ring,
  EXPECT_EQ(host_b.counts("mlx5_0").registrations, 1u);  // and the ring only.
  ASSERT_TRUE(a->fabric().CloseLane(lane.at_a).ok());
  EXPECT_EQ(host_a.counts("mlx5_0").registrations, 2u);
}

TEST_F(BounceTest, AnUnregisteredSourceIsWrittenStraightToARegisteredDestination) {
  LeaveRoomForRings(host_a);
  Start();
  const Region from = *a->fabric().Allocate(kSize, "source");
  testing_fabric::Fill(from.memory, 3);
  const Reached to = endpoints.AllocateAtB(lane, kSize);
  ASSERT_TRUE(endpoints.PostAndComplete(lane, {{from.id, 0, to.remote, 0, kSize}}));
  EXPECT_EQ(std::memcmp(to.region.memory.data, from.memory.data, kSize), 0);
  EXPECT_EQ(CountOf(*a, "copied_bytes"), kSize);
  EXPECT_EQ(CountOf(*a, "bounced_bytes"), 0u);
  EXPECT_EQ(CountOf(*b, "delivered_bytes"), 0u);
  EXPECT_EQ(host_b.counts("mlx5_0").registrations, 2u);  // The destination, and probes.
}

TEST_F(BounceTest, TheLaneSaysWhyAndWhereThereAreCopies) {
  LeaveRoomForRings(host_b);
  Start();
  EXPECT_FALSE(absl::StrContains(b->fabric().DescribeLane(lane.at_b), "copies"));
  (void)endpoints.AllocateAtB(lane, 100);
  const std::string here = b->fabric().DescribeLane(lane.at_b);
  EXPECT_TRUE(absl::StrContains(here, "; with copies here: register \"destination\" (100 bytes)"))
      << here;
  const std::string there = a->fabric().DescribeLane(lane.at_a);
  EXPECT_TRUE(absl::EndsWith(there, "; with copies at the peer")) << there;
}

TEST_F(BounceTest, APeerThatTakesNothingOutIsSentNoMoreThanItsSlotsHold) {
  LeaveRoomForRings(host_b);
  Start();
  const Region from = endpoints.SourceAtA(lane, kSize);
  const Reached to = endpoints.AllocateAtB(lane, kSize);
  const uint64_t token = endpoints.NextToken();
  ASSERT_TRUE(
      a->fabric().Post(lane.at_a, {{from.id, 0, to.remote, 0, kSize}}, std::nullopt, token).ok());
  for (int i = 0; i < 100; ++i) a->Poll();
  EXPECT_EQ(CountOf(*a, "bounced_bytes"), kBounce.slots * kBounce.slot_bytes);
  EXPECT_FALSE(a->IsComplete(lane.at_a, token));
  ASSERT_TRUE(endpoints.Until([&] { return a->IsComplete(lane.at_a, token); }));
  EXPECT_EQ(CountOf(*a, "bounced_bytes"), kSize);
  EXPECT_EQ(std::memcmp(to.region.memory.data, from.memory.data, kSize), 0);
}

TEST_F(BounceTest, AKeyThatWasRenewedFailsTheLaneAndTheWriteIsNotComplete) {
  LeaveRoomForRings(host_b);
  Start();
  const Region from = endpoints.SourceAtA(lane, 100);
  const Reached to = endpoints.AllocateAtB(lane, 100);
  ASSERT_TRUE(b->fabric().Renew(to.region.id, Contents::kZeroed).ok());
  ASSERT_TRUE(a->fabric().Post(lane.at_a, {{from.id, 0, to.remote, 0, 100}}, 1, 1).ok());
  const absl::Status at_b = WaitForFailure(*b, lane.at_b);
  EXPECT_EQ(at_b.code(), absl::StatusCode::kPermissionDenied) << at_b;
  const absl::Status at_a = WaitForFailure(*a, lane.at_a);
  EXPECT_EQ(at_a.code(), absl::StatusCode::kFailedPrecondition) << at_a;
  EXPECT_TRUE(absl::StrContains(at_a.message(), "b refused a write: lane to a: write by a key"))
      << at_a;
  EXPECT_FALSE(a->IsComplete(lane.at_a, 1));
  EXPECT_TRUE(b->Immediates(lane.at_b).empty());
  EXPECT_TRUE(testing_fabric::AllAre(to.region.memory, std::byte{0}));
}

TEST_F(BounceTest, WhereNotEvenARingHasRoomTheRegionIsRefused) {
  host_b.FailRegistrations("mlx5_0", {});
  Start();
  EXPECT_EQ(b->fabric().Allocate(kSize, "destination").status().code(),
            absl::StatusCode::kResourceExhausted);
}

// The first ring is the trial, when the region is made.
TEST_F(BounceTest, WhereTheOwnersRingHasNoRoomLaterTheLaneFailsAndTheNextOneIsNotOpened) {
  Start();
  host_b.FailRegistrations("mlx5_0", {.spared_bytes = kRing});
  const Region region = *b->fabric().Allocate(kSize, "destination");
  host_b.FailRegistrations("mlx5_0", {});
  EXPECT_EQ(b->fabric().Grant(lane.at_b, region.id).code(), kUnavailable);
  const absl::Status status = WaitForFailure(*b, lane.at_b);
  EXPECT_TRUE(absl::StrContains(status.message(), "register a bounce ring (8512 bytes) with"))
      << status;
  EXPECT_EQ(WaitForFailure(*a, lane.at_a).code(), kUnavailable);
  EXPECT_EQ(b->fabric().OpenLane("a", "").status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(BounceTest, WhereTheWritersRingHasNoRoomTheLaneFailsAndTheNextOneIsNotOpened) {
  LeaveRoomForRings(host_b);
  Start();
  const Region region = *b->fabric().Allocate(kSize, "destination");
  host_a.FailRegistrations("mlx5_0", {});
  ASSERT_TRUE(b->fabric().Grant(lane.at_b, region.id).ok());
  EXPECT_EQ(WaitForFailure(*a, lane.at_a).code(), kUnavailable);
  EXPECT_EQ(a->fabric().OpenLane("b", "").status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(a->fabric().OpenLane("c", "").ok());
}

TEST_F(BounceTest, APieceWithoutARingForItIsRefused) {
  Start();
  host_b.AddCompletion("mlx5_0", QueuePairAtB(), Direction::kReceive,
                       ToldOfAPiece(lane.at_b, /*receive=*/1));
  const absl::Status status = WaitForFailure(*b, lane.at_b);
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
}

TEST_F(BounceTest, APieceThatSaysNothingIsRefused) {
  LeaveRoomForRings(host_b);
  Start();
  const Reached to = endpoints.AllocateAtB(lane, 100);
  host_b.AddCompletion("mlx5_0", QueuePairAtB(), Direction::kReceive,
                       ToldOfAPiece(lane.at_b, /*receive=*/1));
  EXPECT_EQ(WaitForFailure(*b, lane.at_b).code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(BounceTest, AFullQueueIsNoErrorOfTheUsers) {
  LeaveRoomForRings(host_a);
  LeaveRoomForRings(host_b);
  Start();
  const Region from = endpoints.SourceAtA(lane, kSize);
  const Reached to = endpoints.AllocateAtB(lane, kSize);
  endpoints.UntilQuiet();  // Posts wait while a grant is under way.
  const uint32_t at_a = verbs::ParseLaneAddress(*a->fabric().LaneAddress(lane.at_a))->queue_pair;
  for (const uint32_t accepted : {0u, 1u, 2u, 3u, 4u, 5u}) {
    std::memset(to.region.memory.data, 0, kSize);
    ASSERT_TRUE(a->fabric().Post(lane.at_a, {}, std::nullopt, accepted).ok());  // Outstanding.
    host_a.RefusePost("mlx5_0", at_a, accepted, ENOMEM);
    ASSERT_TRUE(endpoints.PostAndComplete(lane, {{from.id, 0, to.remote, 0, kSize}})) << accepted;
    EXPECT_EQ(std::memcmp(to.region.memory.data, from.memory.data, kSize), 0) << accepted;
  }
  EXPECT_EQ(CountOf(*a, "bounced_bytes"), 6 * kSize);
  EXPECT_EQ(CountOf(*a, "copied_bytes"), 6 * kSize);
}

}  // namespace
}  // namespace waybill
