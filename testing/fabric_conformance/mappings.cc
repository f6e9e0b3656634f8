// SPDX-License-Identifier: Apache-2.0

// Memory of a peer in this address space.

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "testing/fabric_conformance/conformance.h"

namespace waybill::testing_fabric {
namespace {

TEST_P(MappingConformance, StoresAreThereWithTheImmediate) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  const Reached to = endpoints_.AllocateAtB(lane, 100'000);
  const auto mapping = lane.a->fabric().Map(to.remote);
  ASSERT_TRUE(mapping.ok()) << mapping.status();
  EXPECT_EQ(mapping->size_bytes, 100'000u);
  EXPECT_NE(mapping->data, to.region.memory.data);
  for (uint32_t round = 1; round < 10; ++round) {
    Fill(*mapping, round);
    ASSERT_TRUE(lane.a->fabric().Signal(lane.at_a, round).ok());
    ASSERT_TRUE(endpoints_.Until([&] { return lane.b->Immediates(lane.at_b).size() == round; }));
    EXPECT_EQ(lane.b->Immediates(lane.at_b).back(), round);
    for (uint64_t i = 0; i < 100'000; ++i) {
      ASSERT_EQ(to.region.memory.data[i], ByteAt(i, round));
    }
  }
  EXPECT_EQ(lane.a->Count(FabricEvent::Kind::kComplete, lane.at_a), 0u);
}

TEST_P(MappingConformance, StoresOfAnyThreadAreThereWithTheImmediate) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  const Reached to = endpoints_.AllocateAtB(lane, 4096);
  const MemorySpan mapping = *lane.a->fabric().Map(to.remote);
  std::thread other([&] { Fill(mapping, 5); });
  other.join();
  ASSERT_TRUE(lane.a->fabric().Signal(lane.at_a, 1).ok());
  ASSERT_TRUE(endpoints_.Until([&] { return !lane.b->Immediates(lane.at_b).empty(); }));
  for (uint64_t i = 0; i < 4096; ++i) ASSERT_EQ(to.region.memory.data[i], ByteAt(i, 5));
}

TEST_P(MappingConformance, ASignalComesBehindThePostsOfItsLane) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  const Region from = endpoints_.SourceAtA(lane, 1000);
  const Reached to = endpoints_.AllocateAtB(lane, 1000);
  ASSERT_TRUE(lane.a->fabric().Post(lane.at_a, {{from.id, 0, to.remote, 0, 1000}}, 1, 1).ok());
  ASSERT_TRUE(lane.a->fabric().Signal(lane.at_a, 2).ok());
  ASSERT_TRUE(lane.a->fabric().Post(lane.at_a, {}, 3, 3).ok());
  ASSERT_TRUE(endpoints_.Until([&] { return lane.b->Immediates(lane.at_b).size() == 3; }));
  EXPECT_EQ(lane.b->Immediates(lane.at_b), (std::vector<uint32_t>{1, 2, 3}));
  EXPECT_EQ(std::memcmp(to.region.memory.data, from.memory.data, 1000), 0);
}

TEST_P(MappingConformance, StoresThroughAnOldMappingDoNotReachARenewedRegion) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  for (const Contents contents : {Contents::kKept, Contents::kZeroed}) {
    const Reached to = endpoints_.AllocateAtB(lane, 10'000);
    const MemorySpan old = *lane.a->fabric().Map(to.remote);
    std::memset(old.data, 0x42, old.size_bytes);
    ASSERT_TRUE(lane.b->fabric().Renew(to.region.id, contents).ok());
    std::memset(old.data, 0x99, old.size_bytes);
    const std::byte expected{contents == Contents::kKept ? uint8_t{0x42} : uint8_t{0}};
    EXPECT_TRUE(AllAre(to.region.memory, expected));

    const Reached anew = endpoints_.GrantToA(lane, to.region);
    const MemorySpan fresh = *lane.a->fabric().Map(anew.remote);
    EXPECT_TRUE(AllAre(fresh, expected));
    std::memset(fresh.data, 0x17, fresh.size_bytes);
    std::memset(old.data, 0x99, old.size_bytes);
    EXPECT_TRUE(AllAre(to.region.memory, std::byte{0x17}));
  }
}

TEST_P(MappingConformance, ASecondGrantLeavesTheMappingWhereItIs) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  const Reached to = endpoints_.AllocateAtB(lane, 4096);
  const MemorySpan mapping = *lane.a->fabric().Map(to.remote);
  ASSERT_TRUE(lane.b->fabric().Grant(lane.at_b, to.region.id).ok());
  endpoints_.UntilQuiet();
  std::memset(mapping.data, 0x55, mapping.size_bytes);
  EXPECT_TRUE(AllAre(to.region.memory, std::byte{0x55}));
}

TEST_P(MappingConformance, AMappingOutlivesThePeerAndTheLaneUntilItIsClosed) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  const Reached to = endpoints_.AllocateAtB(lane, 4096);
  const MemorySpan mapping = *lane.a->fabric().Map(to.remote);
  lane.b->Destroy();
  ASSERT_TRUE(endpoints_.Until([&] { return lane.a->HasFailed(lane.at_a); }));
  std::memset(mapping.data, 0x55, mapping.size_bytes);
  EXPECT_TRUE(AllAre(mapping, std::byte{0x55}));
  EXPECT_TRUE(lane.a->fabric().CloseLane(lane.at_a).ok());
}

TEST_P(MappingConformance, AMappingOutlivesTheReleaseOfItsRegion) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  const Reached to = endpoints_.AllocateAtB(lane, 4096);
  const MemorySpan mapping = *lane.a->fabric().Map(to.remote);
  ASSERT_TRUE(lane.b->fabric().Release(to.region.id).ok());
  endpoints_.UntilQuiet();
  std::memset(mapping.data, 0x55, mapping.size_bytes);
  EXPECT_TRUE(Carries(lane));
}

// How many files of shared memory by that name this process has mapped, or has open.
size_t CountShared(const std::string& name) {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find("memfd:" + name) == std::string::npos ? 0 : 1;
  }
  for (const auto& file : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(file.path(), gone).string();
    count += target.find("memfd:" + name) == std::string::npos ? 0 : 1;
  }
  return count;
}

TEST_P(MappingConformance, PagesThatWereRenewedAreGivenBackWhenTheirImportEnds) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  Reached to = endpoints_.AllocateAtB(lane, 4096);
  (void)*lane.a->fabric().Map(to.remote);
  const size_t before = CountShared("destination");
  for (int round = 0; round < 5; ++round) {
    ASSERT_TRUE(lane.b->fabric().Renew(to.region.id, Contents::kZeroed).ok());
    const Reached anew = endpoints_.GrantToA(lane, to.region);
    const MemorySpan fresh = *lane.a->fabric().Map(anew.remote);
    EXPECT_EQ(lane.a->fabric().EndImport(to.remote).message(), "");
    std::memset(fresh.data, 0x55, fresh.size_bytes);
    EXPECT_TRUE(AllAre(to.region.memory, std::byte{0x55}));
    to = anew;
  }
  EXPECT_EQ(CountShared("destination"), before);
}

TEST_P(MappingConformance, AnImportThatEndsLeavesAnotherOfTheSameRegion) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  const Reached to = endpoints_.AllocateAtB(lane, 4096);
  const MemorySpan mapping = *lane.a->fabric().Map(to.remote);
  const RemoteRegionId again = *lane.a->fabric().Import(lane.at_a, to.descriptor);
  ASSERT_TRUE(lane.b->fabric().Renew(to.region.id, Contents::kZeroed).ok());
  endpoints_.UntilQuiet();
  EXPECT_EQ(lane.a->fabric().EndImport(again).message(), "");
  std::memset(mapping.data, 0x55, mapping.size_bytes);
  EXPECT_TRUE(AllAre(to.region.memory, std::byte{0}));
}

TEST_P(MappingConformance, AMapThatWasRevokedIsRefused) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  const Reached to = endpoints_.AllocateAtB(lane, 4096);
  ASSERT_TRUE(lane.b->fabric().Renew(to.region.id, Contents::kZeroed).ok());
  endpoints_.UntilQuiet();
  EXPECT_EQ(lane.a->fabric().Map(to.remote).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Carries(lane));
}

TEST_P(MappingConformance, WritesAndStoresReachTheSameBytes) {
  const Lane lane = endpoints_.Connect(Join("a"), Join("b"));
  const Region from = endpoints_.SourceAtA(lane, 2000, 9);
  const Reached to = endpoints_.AllocateAtB(lane, 2000);
  const MemorySpan mapping = *lane.a->fabric().Map(to.remote);
  std::memset(mapping.data, 0x33, 1000);
  ASSERT_TRUE(endpoints_.PostAndComplete(lane, {{from.id, 0, to.remote, 1000, 1000}}, 1));
  EXPECT_TRUE(AllAre({MemoryKind::kHost, to.region.memory.data, 1000}, std::byte{0x33}));
  EXPECT_EQ(std::memcmp(mapping.data + 1000, from.memory.data, 1000), 0);
}

}  // namespace
}  // namespace waybill::testing_fabric
