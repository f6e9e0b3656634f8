// SPDX-License-Identifier: Apache-2.0

// Regions and their keys: who may write where, and what happens to those who may not.

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "testing/fabric_conformance/conformance.h"

namespace waybill::testing_fabric {
namespace {

constexpr auto kRefused = absl::StatusCode::kFailedPrecondition;

TEST_P(FabricConformance, AllocatedMemoryIsZeroedAndBeginsOnAPage) {
  Fabric& fabric = Join("a").fabric();
  for (const uint64_t size : {uint64_t{1}, uint64_t{4096}, uint64_t{4097}, uint64_t{3} << 20}) {
    const auto region = fabric.Allocate(size, "memory");
    ASSERT_TRUE(region.ok()) << region.status();
    EXPECT_EQ(region->memory.size_bytes, size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(region->memory.data) % 4096, 0u);
    EXPECT_TRUE(AllAre(region->memory, std::byte{0}));
    std::memset(region->memory.data, 0xFF, size);
    EXPECT_TRUE(fabric.Release(region->id).ok());
  }
}

TEST_P(FabricConformance, MemoryOfNoBytesIsRefused) {
  EXPECT_EQ(Join("a").fabric().Allocate(0, "nothing").status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(FabricConformance, MoreMemoryThanThereIsIsRefusedByNameAndSize) {
  const absl::Status status = Join("a").fabric().Allocate(uint64_t{1} << 60, "too much").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(status.message(), "\"too much\" (1152921504606846976 bytes)"))
      << status;
}

TEST_P(FabricConformance, AReleasedRegionIsNotFound) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  Fabric& fabric = lane.a->fabric();
  const Region region = *fabric.Allocate(100, "memory");
  ASSERT_TRUE(fabric.Release(region.id).ok());
  constexpr auto kNotFound = absl::StatusCode::kNotFound;
  EXPECT_EQ(fabric.Release(region.id).code(), kNotFound);
  EXPECT_EQ(fabric.Renew(region.id, Contents::kKept).code(), kNotFound);
  EXPECT_EQ(fabric.Describe(region.id).status().code(), kNotFound);
  EXPECT_EQ(fabric.Grant(lane.at_a, region.id).code(), kNotFound);
}

TEST_P(FabricConformance, DescriptionsArePrintable) {
  Fabric& fabric = Join("a").fabric();
  const std::string description = *fabric.Describe(fabric.Allocate(100, "memory")->id);
  for (const char c : description) {
    EXPECT_TRUE(c > ' ' && c < 127) << static_cast<int>(c);
  }
}

TEST_P(FabricConformance, ARegionIsImportedAfterItsGrantOnly) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  const Region region = *lane.b->fabric().Allocate(100, "memory");
  const std::string descriptor = *lane.b->fabric().Describe(region.id);
  EXPECT_EQ(lane.a->fabric().Import(lane.at_a, descriptor).status().code(), kRefused);
  endpoints_.UntilQuiet();
  EXPECT_EQ(lane.a->fabric().Import(lane.at_a, descriptor).status().code(), kRefused);
  EXPECT_NE(endpoints_.GrantToA(lane, region).remote, RemoteRegionId::kNone);
  EXPECT_TRUE(Carries(lane));
}

TEST_P(FabricConformance, AGrantIsThereBeforeWhatIsPostedAfterIt) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  for (uint32_t round = 1; round <= 20; ++round) {
    const Region region = *lane.b->fabric().Allocate(100, "memory");
    ASSERT_EQ(lane.b->fabric().Grant(lane.at_b, region.id).message(), "");
    ASSERT_EQ(lane.b->fabric().Post(lane.at_b, {}, round, round).message(), "");
    // The one that granted goes on first, so that whatever can overtake does.
    for (int i = 0; i < 3; ++i) lane.b->Poll();
    ASSERT_TRUE(endpoints_.Until([&] { return lane.a->Immediates(lane.at_a).size() == round; }));
    const auto remote = lane.a->fabric().Import(lane.at_a, *lane.b->fabric().Describe(region.id));
    EXPECT_TRUE(remote.ok()) << remote.status();
  }
}

TEST_P(FabricConformance, AGrantIsForItsLane) {
  Endpoint& b = Join("b");
  const Lane granted = endpoints_.Connect(Join("a"), b);
  const Lane sibling = endpoints_.Connect(*granted.a, b);
  const Lane stranger = endpoints_.Connect(Join("c"), b);
  const Reached to = endpoints_.AllocateAtB(granted, 100);
  for (const Lane& lane : {sibling, stranger}) {
    EXPECT_EQ(lane.a->fabric().Import(lane.at_a, to.descriptor).status().code(), kRefused);
  }
  const Region from = endpoints_.SourceAtA(sibling, 100);
  EXPECT_FALSE(endpoints_.PostAndFail(sibling, {{from.id, 0, to.remote, 0, 100}}).ok());
  EXPECT_TRUE(AllAre(to.region.memory, std::byte{0}));
  EXPECT_TRUE(Carries(granted));
}

TEST_P(FabricConformance, WhatIsNoDescriptionIsRefused) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  for (const std::string& descriptor :
       {std::string(), std::string("x"), std::string(":"), std::string("1:2:3:4:5"),
        std::string("0"), std::string("ffffffffffffffff"), std::string(100'000, '7')}) {
    EXPECT_FALSE(lane.a->fabric().Import(lane.at_a, descriptor).ok());
  }
  EXPECT_TRUE(Carries(lane));
}

TEST_P(FabricConformance, AnImportThatHasEndedIsNoDestination) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  const Region from = endpoints_.SourceAtA(lane, 100);
  const Reached to = endpoints_.AllocateAtB(lane, 100);
  constexpr auto kNoImport = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(lane.a->fabric().EndImport(to.remote).message(), "");
  EXPECT_EQ(lane.a->fabric().EndImport(to.remote).code(), kNoImport);
  EXPECT_EQ(lane.a->fabric().EndImport(RemoteRegionId::kNone).code(), kNoImport);
  const Write write{from.id, 0, to.remote, 0, 100};
  EXPECT_EQ(lane.a->fabric().Post(lane.at_a, {&write, 1}, std::nullopt, 1).code(), kNoImport);
  // The grant is still there.
  const RemoteRegionId again = *lane.a->fabric().Import(lane.at_a, to.descriptor);
  ASSERT_TRUE(endpoints_.PostAndComplete(lane, {{from.id, 0, again, 0, 100}}));
  EXPECT_EQ(std::memcmp(to.region.memory.data, from.memory.data, 100), 0);
}

TEST_P(FabricConformance, WhatWasNotImportedIsNotMapped) {
  Fabric& fabric = Join("a").fabric();
  EXPECT_EQ(fabric.Map(RemoteRegionId::kNone).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(fabric.Map(RemoteRegionId{9}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(FabricConformance, AWritePastTheEndFailsItsLaneAndNoOther) {
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  struct {
    uint64_t offset, size;
  } const kCases[] = {{0, 101}, {100, 1}, {99, 2}, {101, 0}, {kMost, 1}, {kMost - 50, 100}};
  Endpoint& a = Join("a");
  Endpoint& b = Join("b");
  const Lane other = endpoints_.Connect(a, b);
  for (const auto& c : kCases) {
    const Lane lane = endpoints_.Connect(a, b);
    const Region from = endpoints_.SourceAtA(lane, 1000);
    const Reached to = endpoints_.AllocateAtB(lane, 100);
    const absl::Status status =
        endpoints_.PostAndFail(lane, {{from.id, 0, to.remote, c.offset, c.size}});
    EXPECT_FALSE(status.ok()) << c.offset << " + " << c.size;
    EXPECT_TRUE(absl::StrContains(status.message(), "\"destination\", which has 100")) << status;
    EXPECT_TRUE(AllAre(to.region.memory, std::byte{0}));
    endpoints_.UntilQuiet();
    EXPECT_LE(a.Count(FabricEvent::Kind::kFailed, lane.at_a), 1u);
  }
  EXPECT_TRUE(Carries(other));
}

TEST_P(FabricConformance, TheRefusalOfTheFirstOfManyPostsIsToldWithItsReason) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  const Region from = endpoints_.SourceAtA(lane, 1000);
  const Reached to = endpoints_.AllocateAtB(lane, 100);
  const std::vector<Write> bad = {{from.id, 0, to.remote, 0, 101}};
  absl::Status status;
  for (uint64_t i = 0; i < 20 && status.ok(); ++i) {
    status = lane.a->fabric().Post(lane.at_a, bad, std::nullopt, i);
  }
  if (status.ok()) {
    ASSERT_TRUE(endpoints_.Until([&] { return lane.a->HasFailed(lane.at_a); }));
    status = lane.a->fabric().LaneStatus(lane.at_a);
  }
  EXPECT_TRUE(absl::StrContains(status.message(), "\"destination\", which has 100")) << status;
  EXPECT_TRUE(AllAre(to.region.memory, std::byte{0}));
}

TEST_P(FabricConformance, WhatIsPostedBehindARefusedWriteDoesNotLand) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  const Region from = endpoints_.SourceAtA(lane, 1000);
  const Reached to = endpoints_.AllocateAtB(lane, 100);
  (void)lane.a->fabric().Post(lane.at_a, {{from.id, 0, to.remote, 0, 101}}, 1, 1);
  if (lane.a->fabric().Post(lane.at_a, {{from.id, 0, to.remote, 0, 100}}, 2, 2).ok()) {
    endpoints_.UntilQuiet();
    if (lane.a->IsComplete(lane.at_a, 2)) return;  // The first one was refused when it was posted.
    EXPECT_TRUE(lane.b->Immediates(lane.at_b).empty());
    EXPECT_TRUE(AllAre(to.region.memory, std::byte{0}));
  }
}

TEST_P(FabricConformance, ARenewedRegionIsNotReachedByWhatWasGrantedBefore) {
  Endpoint& a = Join("a");
  Endpoint& b = Join("b");
  for (const Contents contents : {Contents::kKept, Contents::kZeroed}) {
    const Lane lane = endpoints_.Connect(a, b);
    const Lane other = endpoints_.Connect(a, b);
    const Region from = endpoints_.SourceAtA(lane, 100);
    const Reached to = endpoints_.AllocateAtB(lane, 100);
    const std::byte* const address = to.region.memory.data;
    std::memset(to.region.memory.data, 0x42, 100);
    ASSERT_EQ(b.fabric().Renew(to.region.id, contents).message(), "");
    EXPECT_EQ(to.region.memory.data, address);
    const std::byte expected{contents == Contents::kKept ? uint8_t{0x42} : uint8_t{0}};
    EXPECT_TRUE(AllAre(to.region.memory, expected));
    const Reached anew = endpoints_.GrantToA(other, to.region);
    EXPECT_NE(anew.descriptor, to.descriptor);
    EXPECT_FALSE(endpoints_.PostAndFail(lane, {{from.id, 0, to.remote, 0, 100}}).ok());
    EXPECT_TRUE(AllAre(to.region.memory, expected));
    EXPECT_TRUE(Carries(other));
  }
}

TEST_P(FabricConformance, AWriteThatIsUnderWayWhenItsRegionIsRenewedDoesNotReachIt) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  const Region from = endpoints_.SourceAtA(lane, 100);
  const Reached to = endpoints_.AllocateAtB(lane, 100);
  ASSERT_TRUE(lane.a->fabric().Post(lane.at_a, {{from.id, 0, to.remote, 0, 100}}, 1, 1).ok());
  ASSERT_TRUE(lane.b->fabric().Renew(to.region.id, Contents::kZeroed).ok());
  endpoints_.UntilQuiet();
  EXPECT_TRUE(AllAre(to.region.memory, std::byte{0}));
}

// A device may give back the keys of earlier registrations, in any order.
TEST_P(FabricConformance, AWriteThatIsUnderWayReachesNoLaterGenerationOfItsRegion) {
  for (const int renewals : {2, 3, 4}) {
    const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
    const Region from = endpoints_.SourceAtA(lane, 100);
    const Reached to = endpoints_.AllocateAtB(lane, 100);
    ASSERT_TRUE(lane.a->fabric().Post(lane.at_a, {{from.id, 0, to.remote, 0, 100}}, 1, 1).ok());
    for (int i = 0; i < renewals; ++i) {
      ASSERT_TRUE(lane.b->fabric().Renew(to.region.id, Contents::kZeroed).ok());
    }
    endpoints_.UntilQuiet();
    EXPECT_TRUE(AllAre(to.region.memory, std::byte{0})) << renewals;
  }
}

TEST_P(FabricConformance, ARenewedRegionIsReachedByANewGrant) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  const Region from = endpoints_.SourceAtA(lane, 100);
  Reached to = endpoints_.AllocateAtB(lane, 100);
  for (uint32_t round = 0; round < 4; ++round) {
    const std::string before = to.descriptor;
    ASSERT_TRUE(lane.b->fabric().Renew(to.region.id, Contents::kZeroed).ok());
    to = endpoints_.GrantToA(lane, to.region);
    EXPECT_EQ(lane.a->fabric().Import(lane.at_a, before).status().code(), kRefused);
    ASSERT_TRUE(endpoints_.PostAndComplete(lane, {{from.id, 0, to.remote, 0, 100}}));
    EXPECT_EQ(std::memcmp(to.region.memory.data, from.memory.data, 100), 0);
  }
}

TEST_P(FabricConformance, RegisteredMemoryIsRenewedToo) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  std::vector<std::byte> memory(100, std::byte{0x42});
  const Region region =
      *lane.b->fabric().Register({MemoryKind::kHost, memory.data(), memory.size()}, "the user's");
  const Region from = endpoints_.SourceAtA(lane, 100);
  const Reached to = endpoints_.GrantToA(lane, region);
  ASSERT_TRUE(lane.b->fabric().Renew(region.id, Contents::kKept).ok());
  EXPECT_TRUE(AllAre(region.memory, std::byte{0x42}));
  ASSERT_TRUE(lane.b->fabric().Renew(region.id, Contents::kZeroed).ok());
  EXPECT_TRUE(AllAre(region.memory, std::byte{0}));
  EXPECT_FALSE(endpoints_.PostAndFail(lane, {{from.id, 0, to.remote, 0, 100}}).ok());
  EXPECT_TRUE(AllAre(region.memory, std::byte{0}));
}

TEST_P(FabricConformance, AReleasedRegionIsNotReached) {
  Endpoint& a = Join("a");
  Endpoint& b = Join("b");
  const Lane lane = endpoints_.Connect(a, b);
  const Lane other = endpoints_.Connect(a, b);
  std::vector<std::byte> memory(100);
  const Region region =
      *b.fabric().Register({MemoryKind::kHost, memory.data(), memory.size()}, "the user's");
  const Region from = endpoints_.SourceAtA(lane, 100);
  const Reached to = endpoints_.GrantToA(lane, region);
  ASSERT_TRUE(b.fabric().Release(region.id).ok());
  EXPECT_FALSE(endpoints_.PostAndFail(lane, {{from.id, 0, to.remote, 0, 100}}).ok());
  EXPECT_TRUE(AllAre(region.memory, std::byte{0}));
  EXPECT_TRUE(Carries(other));
}

TEST_P(FabricConformance, ADescriptionByAPeerBeforeItsRestartIsRefused) {
  Endpoint& a = Join("a");
  Endpoint& before = Join("b");
  const Reached old = endpoints_.AllocateAtB(endpoints_.Connect(a, before), 100);
  before.Destroy();
  const Lane lane = endpoints_.Connect(a, Join("b"));
  const Reached anew = endpoints_.AllocateAtB(lane, 100);
  EXPECT_NE(anew.descriptor, old.descriptor);
  EXPECT_EQ(a.fabric().Import(lane.at_a, old.descriptor).status().code(), kRefused);
  const Region from = endpoints_.SourceAtA(lane, 100);
  EXPECT_FALSE(endpoints_.PostAndFail(lane, {{from.id, 0, old.remote, 0, 100}}).ok());
  EXPECT_TRUE(AllAre(anew.region.memory, std::byte{0}));
}

TEST_P(FabricConformance, AGrantOnALaneThatIsNoneIsRefused) {
  Fabric& fabric = Join("a").fabric();
  const Region region = *fabric.Allocate(100, "memory");
  EXPECT_FALSE(fabric.Grant(LaneId{77}, region.id).ok());
  EXPECT_FALSE(fabric.Grant(LaneId::kNone, region.id).ok());
}

TEST_P(FabricConformance, ASecondGrantChangesNothing) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  const Region from = endpoints_.SourceAtA(lane, 100);
  const Reached to = endpoints_.AllocateAtB(lane, 100);
  const Reached again = endpoints_.GrantToA(lane, to.region);
  EXPECT_EQ(again.descriptor, to.descriptor);
  EXPECT_TRUE(endpoints_.PostAndComplete(lane, {{from.id, 0, to.remote, 0, 50}}));
  EXPECT_TRUE(endpoints_.PostAndComplete(lane, {{from.id, 50, again.remote, 50, 50}}));
  EXPECT_EQ(std::memcmp(to.region.memory.data, from.memory.data, 100), 0);
}

TEST_P(FabricConformance, RegisteredMemoryIsPostedToAndNotMapped) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  std::vector<std::byte> memory(100);
  const Reached to = endpoints_.GrantToA(
      lane, *lane.b->fabric().Register({MemoryKind::kHost, memory.data(), 100}, "the user's"));
  EXPECT_EQ(lane.a->fabric().Map(to.remote).status().code(), absl::StatusCode::kUnimplemented);
  const Region from = endpoints_.SourceAtA(lane, 100);
  EXPECT_TRUE(endpoints_.PostAndComplete(lane, {{from.id, 0, to.remote, 0, 100}}));
  EXPECT_EQ(std::memcmp(memory.data(), from.memory.data, 100), 0);
}

TEST_P(FabricConformance, AllocatedMemoryIsMappedWhereTheFabricSaysSo) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  const Reached to = endpoints_.AllocateAtB(lane, 100);
  const auto mapping = lane.a->fabric().Map(to.remote);
  if (lane.a->fabric().capabilities().can_map) {
    EXPECT_TRUE(mapping.ok()) << mapping.status();
  } else {
    EXPECT_EQ(mapping.status().code(), absl::StatusCode::kUnimplemented);
  }
}

}  // namespace
}  // namespace waybill::testing_fabric
