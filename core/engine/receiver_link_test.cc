// SPDX-License-Identifier: Apache-2.0

#include "core/engine/receiver_link.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/fabric/loopback/loopback.h"

namespace waybill {
namespace {

// A route of `size_bytes` bytes to the receiver.
void AddRoute(RouteTable& table, uint32_t receiver, int64_t size_bytes) {
  table.Add({.receiver = receiver,
             .shape = {.source_element_bytes = 1,
                       .destination_element_bytes = 1,
                       .axes = {{size_bytes, 1, 1}}}});
}

TEST(ReceiverLinks, EachReceiverHasItsRoutesAndChunks) {
  RouteTable routes;
  AddRoute(routes, 3, 10'000);
  AddRoute(routes, 3, 100);
  AddRoute(routes, 5, 100);
  const ChunkList chunks = CutIntoChunks(routes, 8192);
  const auto links =
      MakeReceiverLinks(routes, chunks,
                        {{.peer = 5, .lanes = std::vector<LanePath>(1), .first_ledger_entry = 40},
                         {.peer = 3, .lanes = std::vector<LanePath>(1), .first_ledger_entry = 7}});
  ASSERT_TRUE(links.ok()) << links.status();
  const ReceiverLinks& made = *links;
  ASSERT_EQ(made.links.size(), 2u);
  EXPECT_EQ(made.links[0].receiver, 3u);
  EXPECT_EQ(made.links[0].index, 0u);
  EXPECT_EQ(made.links[0].route_count(), 2u);
  EXPECT_EQ(made.links[1].receiver, 5u);
  EXPECT_EQ(made.links[1].index, 1u);
  EXPECT_EQ(made.links[0].first_ledger_entry, 7u);
  EXPECT_EQ(made.links[1].first_ledger_entry, 40u);
  EXPECT_EQ(made.links[1].first_route, 2u);
  EXPECT_EQ(made.links[1].first_chunk, made.links[0].last_chunk);
  EXPECT_EQ(made.links[1].last_chunk, chunks.chunks.size());
  ASSERT_EQ(made.link_of_chunk.size(), chunks.chunks.size());
  for (uint32_t c = 0; c < chunks.chunks.size(); ++c) {
    EXPECT_EQ(made.link_of_chunk[c]->receiver, chunks.chunks[c].receiver);
  }
}

TEST(ReceiverLinks, LanesHaveTheNicsOfThePlan) {
  RouteTable routes;
  AddRoute(routes, 0, 100);
  AddRoute(routes, 1, 100);
  const auto made =
      MakeReceiverLinks(routes, CutIntoChunks(routes, 4096),
                        {{.peer = 0, .lanes = std::vector<LanePath>(1)},
                         {.peer = 1, .lanes = {{"mlx5_0", "mlx5_4"}, {"mlx5_1", "mlx5_5"}}}});
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_EQ(made->links[0].lanes.size(), 1u);
  EXPECT_EQ(made->links[0].lanes[0].nic, "");
  ASSERT_EQ(made->links[1].lanes.size(), 2u);
  EXPECT_EQ(made->links[1].lanes[0].nic, "mlx5_0");
  EXPECT_EQ(made->links[1].lanes[1].nic, "mlx5_1");
}

TEST(ReceiverLinks, LanesThatCarriedMuchHaveRates) {
  RouteTable routes;
  AddRoute(routes, 3, 100);
  auto made = MakeReceiverLinks(routes, CutIntoChunks(routes, 4096),
                                {{.peer = 3, .lanes = std::vector<LanePath>(4)}});
  ASSERT_TRUE(made.ok()) << made.status();
  LoopbackNetwork network;
  const auto fabric = network.Join("trainer 0");
  std::vector<ReceiverLane>& lanes = made->links[0].lanes;
  for (ReceiverLane& lane : lanes) {
    lane.posted_bytes = 8 << 20;
    lane.first_post = absl::UnixEpoch();
    lane.last_completion = absl::UnixEpoch() + absl::Milliseconds(2);
  }
  lanes[1].posted_bytes = 1000;
  lanes[2].BeginUpdate();
  lanes[3].last_completion = absl::InfinitePast();
  const std::vector<LaneRate> rates = made->Rates(*fabric);
  ASSERT_EQ(rates.size(), 1u);
  EXPECT_EQ(rates[0].peer, 3u);
  EXPECT_EQ(rates[0].bytes, uint64_t{8} << 20);
  EXPECT_EQ(rates[0].time, absl::Milliseconds(2));
}

TEST(ReceiverLinks, RoutesToAReceiverWithoutLanesAreRefused) {
  RouteTable routes;
  AddRoute(routes, 0, 100);
  AddRoute(routes, 1, 100);
  EXPECT_EQ(MakeReceiverLinks(routes, CutIntoChunks(routes, 4096),
                              {{.peer = 0, .lanes = std::vector<LanePath>(1)}})
                .status()
                .message(),
            "the plan has routes, but no lanes, to rank 1 of the other side");
}

TEST(ReceiverLinks, AReceiverWithoutARouteIsNotFound) {
  RouteTable routes;
  AddRoute(routes, 4, 100);
  auto made = MakeReceiverLinks(routes, CutIntoChunks(routes, 4096),
                                {{.peer = 4, .lanes = std::vector<LanePath>(1)}});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ((*made->Find(4))->receiver, 4u);
  EXPECT_EQ(made->Find(5).status().message(), "the plan has no route to worker 5");
}

struct AddressCase {
  const char* name;
  uint32_t known;  // Generations.
  uint32_t told;
  bool taken;
};

class SetBufferAddressTest : public testing::TestWithParam<AddressCase> {};

TEST_P(SetBufferAddressTest, OnlyALaterGenerationIsTaken) {
  ReceiverLink link;
  link.buffers.resize(1);
  link.buffers[0].address = {.regions = {{"old", 0}}, .generation = GetParam().known};
  const BufferAddress told = {.regions = {{"new", 0}}, .generation = GetParam().told};
  EXPECT_TRUE(link.SetBufferAddress(0, told).ok());
  EXPECT_EQ(link.buffers[0].to_open, GetParam().taken);
  EXPECT_EQ(link.buffers[0].address.regions[0].descriptor, GetParam().taken ? "new" : "old");
}

INSTANTIATE_TEST_SUITE_P(All, SetBufferAddressTest,
                         testing::Values(AddressCase{"the_next", 0, 1, true},
                                         AddressCase{"one_that_skips", 1, 5, true},
                                         AddressCase{"the_same_again", 2, 2, false},
                                         AddressCase{"one_that_is_late", 3, 2, false}),
                         [](const auto& info) { return info.param.name; });

// A sender with a lane to a receiver that has one buffer of one region.
class OpenTargetTest : public testing::Test {
 protected:
  explicit OpenTargetTest(LoopbackOptions options = {.can_map = false}) : network_(options) {
    routes_.Add(
        {.receiver = 2,
         .destination_offset_bytes = 80,
         .shape = {
             .source_element_bytes = 1, .destination_element_bytes = 1, .axes = {{4000, 1, 1}}}});
    link_.receiver = 2;
    link_.last_route = 1;
    link_.lanes.resize(2);
    for (ReceiverLane& lane : link_.lanes) {
      lane.id = *sender_->OpenLane("worker 2", "");
      there_.push_back(*receiver_->OpenLane("trainer 0", ""));
      EXPECT_TRUE(sender_->ConnectLane(lane.id, *receiver_->LaneAddress(there_.back())).ok());
      EXPECT_TRUE(receiver_->ConnectLane(there_.back(), *sender_->LaneAddress(lane.id)).ok());
      lane.buffers.resize(1);
    }
    weights_ = *receiver_->Allocate(4096, "weights");
    ledger_ = *receiver_->Allocate(4096, "ledger");
    link_.buffers.resize(1);
    link_.buffers[0].address.regions.resize(1);
    EXPECT_TRUE(link_
                    .SetBufferAddress(0, {.regions = {{*receiver_->Describe(weights_.id), 16}},
                                          .ledger = *receiver_->Describe(ledger_.id),
                                          .generation = 1})
                    .ok());
  }

  // Lets the sender reach the buffer on the lane.
  void Grant(size_t lane) {
    EXPECT_TRUE(receiver_->Grant(there_[lane], weights_.id).ok());
    EXPECT_TRUE(receiver_->Grant(there_[lane], ledger_.id).ok());
    EXPECT_TRUE(receiver_->Post(there_[lane], {}, 1, 0).ok());
    std::vector<FabricEvent> events;
    for (int i = 0; i < 100; ++i) {
      receiver_->Poll(events);
      sender_->Poll(events);
    }
  }

  // Opens the buffer with another place of its region, or another ledger.
  std::string ErrorWith(uint64_t offset_bytes, RegionId ledger) {
    Grant(0);
    Grant(1);
    link_.buffers[0].address.regions[0].offset_bytes = offset_bytes;
    link_.buffers[0].address.ledger = *receiver_->Describe(ledger);
    return std::string(link_.OpenTarget(*sender_, routes_).message());
  }

  LoopbackNetwork network_;
  RouteTable routes_;
  std::unique_ptr<Fabric> sender_ = network_.Join("trainer 0");
  std::unique_ptr<Fabric> receiver_ = network_.Join("worker 2");
  ReceiverLink link_;
  std::vector<LaneId> there_;
  Region weights_;
  Region ledger_;
};

TEST_F(OpenTargetTest, IsOpenWhenEveryLaneHasItsGrants) {
  Grant(0);
  EXPECT_TRUE(absl::IsFailedPrecondition(link_.OpenTarget(*sender_, routes_)));
  EXPECT_TRUE(link_.buffers[0].to_open);
  Grant(1);
  EXPECT_EQ(link_.OpenTarget(*sender_, routes_).message(), "");
  EXPECT_FALSE(link_.buffers[0].to_open);
  for (const ReceiverLane& lane : link_.lanes) {
    ASSERT_EQ(lane.buffers[0].regions.size(), 1u);
    EXPECT_NE(lane.buffers[0].regions[0].remote, RemoteRegionId::kNone);
    EXPECT_EQ(lane.buffers[0].regions[0].offset_bytes, 16u);
    EXPECT_EQ(lane.buffers[0].regions[0].mapped, nullptr);
    EXPECT_NE(lane.buffers[0].ledger.remote, RemoteRegionId::kNone);
  }
}

TEST_F(OpenTargetTest, AnOpenBufferIsNotImportedAgain) {
  Grant(0);
  Grant(1);
  ASSERT_TRUE(link_.OpenTarget(*sender_, routes_).ok());
  ASSERT_TRUE(
      receiver_->Renew(weights_.id, Contents::kKept).ok());  // What is described now is gone.
  EXPECT_TRUE(link_.OpenTarget(*sender_, routes_).ok());
}

class OpenMappedTargetTest : public OpenTargetTest {
 protected:
  OpenMappedTargetTest() : OpenTargetTest({.can_map = true}) {}
};

// The route writes bytes [80, 4080) of a region that lies in 4096 bytes.
TEST_F(OpenMappedTargetTest, ARouteEndsWithinWhatIsMapped) {
  EXPECT_EQ(ErrorWith(16, ledger_.id), "");
}

TEST_F(OpenMappedTargetTest, ARouteBeyondWhatIsMappedIsRefused) {
  EXPECT_EQ(ErrorWith(17, ledger_.id),
            "route 0 of the plan: bytes [80, 4080) of region 0 of worker 2, which has 4079 bytes");
  EXPECT_TRUE(link_.buffers[0].to_open);
}

TEST_F(OpenMappedTargetTest, ARegionBeyondWhatIsMappedIsRefused) {
  EXPECT_EQ(ErrorWith(4097, ledger_.id), "a region at byte 4097 of memory of 4096 bytes");
}

TEST_F(OpenMappedTargetTest, ALedgerThatIsTooShortIsRefused) {
  const Region small = *receiver_->Allocate(23, "small");
  for (const LaneId lane : there_) ASSERT_TRUE(receiver_->Grant(lane, small.id).ok());
  EXPECT_EQ(ErrorWith(16, small.id), "worker 2 has a ledger of 23 bytes, the plan 1 entries");
}

}  // namespace
}  // namespace waybill
