// SPDX-License-Identifier: Apache-2.0

#include "testing/faulty_fabric/faulty_fabric.h"

#include <gtest/gtest.h>

#include "core/fabric/local/local_fabric.h"
#include "core/fabric/loopback/loopback.h"
#include "testing/fabric_conformance/conformance.h"
#include "testing/fabric_conformance/endpoints.h"

namespace waybill::testing_fabric {
namespace {

// Without a fault it is the fabric within.

const NetworkUnderTest kOverLoopback = {
    "faulty_loopback", []() -> Endpoints::MakeFabric {
      const auto network = std::make_shared<LoopbackNetwork>(LoopbackOptions{.can_map = true});
      return [network](const std::string& name) {
        return std::make_unique<FaultyFabric>(network->Join(name));
      };
    }};
const NetworkUnderTest kOverLocal = {"faulty_local", []() -> Endpoints::MakeFabric {
                                       return [](const std::string&) {
                                         return std::make_unique<FaultyFabric>(*MakeLocalFabric());
                                       };
                                     }};

INSTANTIATE_TEST_SUITE_P(Faulty, FabricConformance, testing::Values(kOverLoopback, kOverLocal),
                         NameOfNetwork);
INSTANTIATE_TEST_SUITE_P(Faulty, MappingConformance, testing::Values(kOverLoopback, kOverLocal),
                         NameOfNetwork);

class FaultyFabricTest : public testing::Test {
 protected:
  FaultyFabricTest() {
    from_ = endpoints_.SourceAtA(lane_, 100);
    to_ = endpoints_.AllocateAtB(lane_, 100);
  }

  FaultyFabric& a() { return static_cast<FaultyFabric&>(lane_.a->fabric()); }
  FaultyFabric& b() { return static_cast<FaultyFabric&>(lane_.b->fabric()); }
  std::vector<Write> WholeWrite() { return {{from_.id, 0, to_.remote, 0, 100}}; }
  // One post for each immediate; then what came at b.
  std::vector<uint32_t> Send(const std::vector<uint32_t>& immediates) {
    for (const uint32_t immediate : immediates) {
      EXPECT_TRUE(endpoints_.PostAndComplete(lane_, {}, immediate));
    }
    endpoints_.UntilQuiet();
    return lane_.b->Immediates(lane_.at_b);
  }

  Endpoints endpoints_{kOverLoopback.make()};
  Lane lane_ = endpoints_.Connect(endpoints_.Join("a"), endpoints_.Join("b"));
  Region from_;
  Reached to_;
};

const absl::Status kFault = absl::UnavailableError("by script");

TEST_F(FaultyFabricTest, TheNthCallFailsAndDoesNothing) {
  a().FailCall(FabricCall::kPost, "b", 2, kFault);
  EXPECT_TRUE(a().Post(lane_.at_a, {}, 1, 1).ok());
  EXPECT_EQ(a().Post(lane_.at_a, WholeWrite(), 2, 2), kFault);
  EXPECT_TRUE(a().Post(lane_.at_a, {}, 3, 3).ok());
  endpoints_.UntilQuiet();
  EXPECT_EQ(lane_.b->Immediates(lane_.at_b), (std::vector<uint32_t>{1, 3}));
  EXPECT_TRUE(AllAre(to_.region.memory, std::byte{0}));
  EXPECT_EQ(a().faults(), 1u);
  EXPECT_EQ(a().count(FabricCall::kPost), 3u);
}

TEST_F(FaultyFabricTest, EveryKindOfCallCanFail) {
  for (const FabricCall call : {FabricCall::kAllocate, FabricCall::kGrant, FabricCall::kImport,
                                FabricCall::kMap, FabricCall::kConnect, FabricCall::kSignal}) {
    a().FailCall(call, "", 1, kFault);
  }
  EXPECT_EQ(a().Allocate(1, "x").status(), kFault);
  EXPECT_EQ(a().Grant(lane_.at_a, from_.id), kFault);
  EXPECT_EQ(a().Import(lane_.at_a, to_.descriptor).status(), kFault);
  EXPECT_EQ(a().Map(to_.remote).status(), kFault);
  EXPECT_EQ(a().ConnectLane(*a().OpenLane("b", ""), "x"), kFault);
  EXPECT_EQ(a().Signal(lane_.at_a, 1), kFault);
  EXPECT_EQ(a().faults(), 6u);
  EXPECT_TRUE(a().Map(to_.remote).ok());
}

TEST_F(FaultyFabricTest, AFaultIsForItsPeer) {
  a().FailCall(FabricCall::kPost, "c", 1, kFault);
  EXPECT_TRUE(endpoints_.PostAndComplete(lane_, WholeWrite()));
  EXPECT_EQ(a().faults(), 0u);
}

TEST_F(FaultyFabricTest, OneByteOfTheNthWriteIsWrongAndItsSourceIsNot) {
  a().CorruptWrite("b", 2);
  for (const uint64_t wrong_bytes : {0u, 1u, 0u}) {
    ASSERT_TRUE(endpoints_.PostAndComplete(lane_, WholeWrite()));
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < 100; ++i) wrong += to_.region.memory.data[i] != ByteAt(i, 1) ? 1 : 0;
    EXPECT_EQ(wrong, wrong_bytes);
    EXPECT_EQ(from_.memory.data[50], ByteAt(50, 1));
  }
}

TEST_F(FaultyFabricTest, AWriteThatTwoFaultsHitIsWrongAllTheSame) {
  a().CorruptWrite("b", 1);
  a().CorruptWrite("b", 1);
  ASSERT_TRUE(endpoints_.PostAndComplete(lane_, WholeWrite()));
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < 100; ++i) wrong += to_.region.memory.data[i] != ByteAt(i, 1) ? 1 : 0;
  EXPECT_EQ(wrong, 1u);
}

// A process that was stopped stores before it hears that its lane is dead.
TEST_F(FaultyFabricTest, WhatIsMappedStaysSoUntilTheOwnerClosesTheDeadLane) {
  const absl::StatusOr<MemorySpan> mapped = a().Map(to_.remote);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  a().KillLanes("b", kFault);
  mapped->data[99] = std::byte{7};
  EXPECT_EQ(to_.region.memory.data[99], std::byte{7});
  EXPECT_TRUE(a().CloseLane(lane_.at_a).ok());
}

TEST_F(FaultyFabricTest, PostsThatAreHeldComeInOrderWhenTheyAreLetGo) {
  a().HoldPosts("b");
  EXPECT_TRUE(a().Post(lane_.at_a, WholeWrite(), 1, 1).ok());
  EXPECT_TRUE(a().Signal(lane_.at_a, 2).ok());
  endpoints_.UntilQuiet();
  EXPECT_TRUE(lane_.b->Immediates(lane_.at_b).empty());
  EXPECT_FALSE(lane_.a->IsComplete(lane_.at_a, 1));
  a().LetPostsGo("b");
  endpoints_.UntilQuiet();
  EXPECT_EQ(lane_.b->Immediates(lane_.at_b), (std::vector<uint32_t>{1, 2}));
  EXPECT_TRUE(lane_.a->IsComplete(lane_.at_a, 1));
  EXPECT_EQ(to_.region.memory.data[9], ByteAt(9, 1));
}

TEST_F(FaultyFabricTest, AnImmediateIsDropped) {
  b().DropImmediate("a", 2);
  EXPECT_EQ(Send({1, 2, 3}), (std::vector<uint32_t>{1, 3}));
}

TEST_F(FaultyFabricTest, AnImmediateIsDuplicated) {
  b().DuplicateImmediate("a", 2);
  EXPECT_EQ(Send({1, 2, 3}), (std::vector<uint32_t>{1, 2, 2, 3}));
}

TEST_F(FaultyFabricTest, AnImmediateIsReplaced) {
  b().ReplaceImmediate("a", 2, 77);
  EXPECT_EQ(Send({1, 2, 3}), (std::vector<uint32_t>{1, 77, 3}));
}

TEST_F(FaultyFabricTest, AnImmediateIsHeldAndLetGo) {
  b().HoldImmediates("a");
  EXPECT_EQ(Send({1, 2}), std::vector<uint32_t>{});
  b().LetImmediatesGo("a");
  EXPECT_EQ(Send({3}), (std::vector<uint32_t>{1, 2, 3}));
}

TEST_F(FaultyFabricTest, AnImmediateIsInjected) {
  b().InjectImmediate("a", 5);
  EXPECT_EQ(Send({1}), (std::vector<uint32_t>{5, 1}));
}

TEST_F(FaultyFabricTest, AKilledLaneFailsOnceAtEachEnd) {
  a().KillLanes("b", kFault);
  a().KillLanes("b", kFault);
  endpoints_.UntilQuiet();
  EXPECT_EQ(lane_.a->Count(FabricEvent::Kind::kFailed, lane_.at_a), 1u);
  EXPECT_EQ(lane_.b->Count(FabricEvent::Kind::kFailed, lane_.at_b), 1u);
  EXPECT_EQ(a().LaneStatus(lane_.at_a), kFault);
  EXPECT_FALSE(a().Post(lane_.at_a, {}, 1, 1).ok());
  EXPECT_TRUE(a().CloseLane(lane_.at_a).ok());
  EXPECT_EQ(a().LaneStatus(lane_.at_a).code(), absl::StatusCode::kNotFound);
}

TEST_F(FaultyFabricTest, LanesAndMemoryAreFoundByName) {
  EXPECT_EQ(a().LaneTo("b"), lane_.at_a);
  EXPECT_EQ(a().LaneTo("c"), LaneId::kNone);
  EXPECT_EQ(a().MemoryOf("source").data, from_.memory.data);
  EXPECT_EQ(a().MemoryOf("nothing").data, nullptr);
}

}  // namespace
}  // namespace waybill::testing_fabric
