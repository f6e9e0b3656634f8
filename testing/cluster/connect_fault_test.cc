// SPDX-License-Identifier: Apache-2.0

// Tests that failures while engines are made and connected are reported with the peer concerned.

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/match.h"
#include "core/engine/receiver_engine.h"
#include "core/engine/sender_engine.h"
#include "core/fabric/loopback/loopback.h"
#include "testing/cluster/fault_cluster.h"
#include "testing/faulty_fabric/faulty_fabric.h"

namespace waybill {
namespace {

const absl::Status kFault = absl::InternalError("by script");

struct ConnectFault {
  std::string name;
  bool at_trainer;
  FabricCall call;
  uint64_t nth;
};

const ConnectFault kConnectFaults[] = {
    {"the_trainers_connect", true, FabricCall::kConnect, 1},
    {"the_trainers_grant_of_its_ring", true, FabricCall::kGrant, 1},
    {"the_trainers_first_import", true, FabricCall::kImport, 1},
    {"the_trainers_import_of_the_second_buffer", true, FabricCall::kImport, 3},
    {"the_trainers_map", true, FabricCall::kMap, 1},
    {"the_trainers_answer", true, FabricCall::kPost, 1},
    {"the_workers_connect", false, FabricCall::kConnect, 1},
    {"the_workers_grant", false, FabricCall::kGrant, 1},
    {"the_workers_last_grant", false, FabricCall::kGrant, 4},
    {"the_workers_grants", false, FabricCall::kPost, 1},
};

class ConnectFaultTest : public testing::TestWithParam<ConnectFault> {};

TEST_P(ConnectFaultTest, IsReportedAndCanBeTriedAgain) {
  const ConnectFault& fault = GetParam();
  FaultCluster cluster(Network::kMapped, {});
  FaultyFabric& fabric = fault.at_trainer ? cluster.at_trainer(0) : cluster.at_worker(0);
  fabric.FailCall(fault.call, fault.at_trainer ? "worker 0" : "trainer 0", fault.nth, kFault);
  const absl::Status status = cluster->Connect();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "by script")) << status;
  EXPECT_EQ(fabric.faults(), 1u);
  ASSERT_EQ(cluster->Connect().message(), "");
  EXPECT_EQ(cluster.PublishAndCheck(1), "");
}

INSTANTIATE_TEST_SUITE_P(All, ConnectFaultTest, testing::ValuesIn(kConnectFaults),
                         [](const auto& info) { return info.param.name; });

class CreateTest : public testing::Test {
 protected:
  static Manifest OneRegion() {
    Manifest manifest;
    manifest.AddTensor("t", {10}, Dtype::kBf16);
    manifest.AddRegion("r", 20);
    manifest.AddShard(0, {Dtype::kBf16}, Box({0}, {10}), {0, 0, {1}});
    return manifest;
  }
  absl::Status Create(Mode mode, std::vector<MemorySpan> user_regions) {
    return ReceiverEngine::Create(&fabric_, OneRegion(), user_regions,
                                  {.mode = mode, .verify_threads = 0}, [](const ReceiverEvent&) {})
        .status();
  }

  LoopbackNetwork network_;
  FaultyFabric fabric_{network_.Join("a")};
  std::byte memory_[20];
  const MemorySpan user_{MemoryKind::kHost, memory_, sizeof(memory_)};
};

TEST_F(CreateTest, ShadowWithMemoryOfTheEnginesIsRefused) {
  const absl::Status status = Create(Mode::kShadow, {user_});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(status.message(), "cannot be swapped for another buffer"))
      << status;
}

TEST_F(CreateTest, ShadowCopyWithoutMemoryIsRefused) {
  EXPECT_EQ(Create(Mode::kShadowCopy, {}).message(),
            "mode shadow-copy: there is no memory to copy into");
}

TEST_F(CreateTest, MemoryOfAnotherSizeOrNumberIsRefused) {
  EXPECT_EQ(Create(Mode::kInPlace, {user_, user_}).message(), "2 pieces of memory for 1 regions");
  EXPECT_EQ(Create(Mode::kInPlace, {{MemoryKind::kHost, memory_, 19}}).message(),
            "region \"r\" has 20 bytes, its memory has 19");
}

TEST_F(CreateTest, MemoryThatCannotBeHadIsAnErrorOfCreate) {
  for (const char* name : {"weights", "weights (shadow)"}) {
    fabric_.FailCall(FabricCall::kAllocate, name, 1, absl::ResourceExhaustedError("no memory"));
    EXPECT_EQ(Create(Mode::kShadow, {}).code(), absl::StatusCode::kResourceExhausted) << name;
  }
  EXPECT_EQ(Create(Mode::kShadow, {}).message(), "");
}

TEST_F(CreateTest, ARingThatCannotBeHadIsAnErrorOfCreate) {
  fabric_.FailCall(FabricCall::kAllocate, "", 1, absl::ResourceExhaustedError("no memory"));
  EXPECT_EQ(StagingArea::Create(&fabric_, {}).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(LedgerTest, ALedgerThatCannotBeHadIsAnErrorOfThePlan) {
  FaultCluster cluster(Network::kPosted, {});
  cluster.at_worker(1).FailCall(FabricCall::kAllocate, "ledger", 2,
                                absl::ResourceExhaustedError("no memory"));
  EXPECT_EQ(cluster->Connect().code(), absl::StatusCode::kResourceExhausted);
  ASSERT_EQ(cluster->Connect().message(), "");
  EXPECT_EQ(cluster.PublishAndCheck(1), "");
}

// The ledgers of the plan before are released when a new one is allocated.
TEST(LedgerTest, ALaterPlansLedgerThatCannotBeHadIsTriedAgain) {
  for (const uint64_t nth : {1, 2}) {
    FaultCluster cluster(Network::kPosted, {});
    ASSERT_EQ(cluster->Connect().message(), "");
    cluster.at_worker(1).FailCall(FabricCall::kAllocate, "ledger", nth,
                                  absl::ResourceExhaustedError("no memory"));
    EXPECT_EQ(cluster->Connect().code(), absl::StatusCode::kResourceExhausted) << nth;
    ASSERT_EQ(cluster->Connect().message(), "") << nth;
    EXPECT_EQ(cluster.PublishAndCheck(1), "") << nth;
  }
}

}  // namespace
}  // namespace waybill
