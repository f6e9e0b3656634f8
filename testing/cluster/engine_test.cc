// SPDX-License-Identifier: Apache-2.0

// One update through both engines, on each fabric that works within a process, in each mode.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>

#include "core/fabric/local/local_fabric.h"
#include "core/fabric/loopback/loopback.h"
#include "core/fabric/tcp/tcp_fabric.h"
#include "core/plan/chunks.h"
#include "testing/cluster/cluster.h"

namespace waybill {
namespace {

enum class Network {
  kLoopback,
  kLoopbackShuffled,
  kLoopbackMapped,
  kThreeLanesShuffled,
  kLocal,
  kLocalThreeLanes,
  kTcp,
  kTcpFourLanes,
  kShuffledDirect,
  kTcpDirect,
};

class EngineTest : public testing::TestWithParam<std::tuple<Network, Mode>> {
 protected:
  void Make(ClusterOptions options) {
    options.mode = std::get<1>(GetParam());
    if (options.mode == Mode::kShadowCopy) options.user_memory = true;
    const Network network = std::get<0>(GetParam());
    options.direct = network == Network::kShuffledDirect || network == Network::kTcpDirect;
    if (options.direct) options.trainer.announced_bytes = 1;
    options.lanes =
        network == Network::kTcpFourLanes || network == Network::kTcpDirect               ? 4
        : network == Network::kThreeLanesShuffled || network == Network::kLocalThreeLanes ? 3
                                                                                          : 1;
    network_ = std::make_unique<LoopbackNetwork>(
        LoopbackOptions{.seed = network == Network::kLoopbackShuffled     ? 7u
                                : network == Network::kShuffledDirect     ? 13u
                                : network == Network::kThreeLanesShuffled ? 11u
                                                                          : 0u,
                        .can_map = network == Network::kLoopbackMapped});
    cluster_ = std::make_unique<Cluster>(
        options, [this, network](const std::string& name) -> std::unique_ptr<Fabric> {
          if (network == Network::kLocal || network == Network::kLocalThreeLanes) {
            return *MakeLocalFabric();
          }
          if (network == Network::kTcp || network == Network::kTcpFourLanes ||
              network == Network::kTcpDirect) {
            return *MakeTcpFabric();
          }
          return network_->Join(name);
        });
    ASSERT_EQ(cluster_->Connect().message(), "");
  }

  std::unique_ptr<LoopbackNetwork> network_;
  std::unique_ptr<Cluster> cluster_;
};

TEST_P(EngineTest, EveryWorkerShowsEveryVersionToTheByte) {
  Make({});
  for (uint64_t version = 1; version <= 4; ++version) {
    cluster_->FillTrainers(version);
    ASSERT_EQ(cluster_->Publish(version).message(), "");
    for (uint32_t w = 0; w < 2; ++w) {
      EXPECT_TRUE(cluster_->Shows(w, version)) << w;
      EXPECT_EQ(*cluster_->worker(w).Verify(), version) << w;
    }
  }
}

// A sender's host copies nothing but what is turned on the way.
TEST_P(EngineTest, WhatIsDirectIsSentFromWhereItLies) {
  Make({});
  const Network network = std::get<0>(GetParam());
  if (network != Network::kShuffledDirect && network != Network::kTcpDirect) {
    GTEST_SKIP() << "its networks read slots only";
  }
  cluster_->FillTrainers(1);
  ASSERT_EQ(cluster_->Publish(1).message(), "");
  for (uint32_t t = 0; t < 2; ++t) {
    const RouteTable& routes = cluster_->tables().senders[t];
    uint64_t not_direct = 0, direct = 0;
    for (uint32_t r = 0; r < routes.size(); ++r) {
      (IsDirect(routes, r, 1) ? direct : not_direct) += routes.written_bytes(r);
    }
    EXPECT_GT(direct, 0u);
    EXPECT_EQ(cluster_->trainer(t).counts().staged_bytes, not_direct) << t;
  }
}

TEST_P(EngineTest, FloatsArriveRounded) {
  Make({.trainers = 3, .workers = 1, .trainer_dtype = Dtype::kF32});
  cluster_->FillTrainers(1);
  ASSERT_EQ(cluster_->Publish(1).message(), "");
  EXPECT_TRUE(cluster_->Shows(0, 1));
}

TEST_P(EngineTest, WithoutDigestsTheBytesAreTheSame) {
  Make({.trainers = 1, .workers = 3, .digests = Digests::kOff});
  cluster_->FillTrainers(1);
  ASSERT_EQ(cluster_->Publish(1).message(), "");
  for (uint32_t w = 0; w < 3; ++w) EXPECT_TRUE(cluster_->Shows(w, 1)) << w;
}

TEST_P(EngineTest, ItsBuffersAreCountedAsTheHosts) {
  Make({});
  const ReceiverCounts counts = cluster_->worker(0).counts();
  EXPECT_GT(counts.host_buffer_bytes, 0u);
  EXPECT_EQ(counts.gpu_buffer_bytes, 0u);
}

TEST_P(EngineTest, MemoryOfTheEnginesOwnIsWrittenInPlace) {
  if (std::get<1>(GetParam()) != Mode::kInPlace) GTEST_SKIP() << "only in place";
  Make({.user_memory = true});
  cluster_->FillTrainers(1);
  ASSERT_EQ(cluster_->Publish(1).message(), "");
  EXPECT_TRUE(cluster_->Shows(0, 1));
}

TEST_P(EngineTest, ThreadsGiveTheSameBytes) {
  Make({.trainer = {.ring_bytes = 64 << 10, .chunk_bytes = 8 << 10, .stage_threads = 2},
        .verify_threads = 2});
  for (uint64_t version = 1; version <= 3; ++version) {
    cluster_->FillTrainers(version);
    ASSERT_EQ(cluster_->Publish(version).message(), "");
    for (uint32_t w = 0; w < 2; ++w) EXPECT_TRUE(cluster_->Shows(w, version)) << w;
  }
}

TEST_P(EngineTest, AFencedBufferTakesTheNextVersion) {
  Make({});
  cluster_->FillTrainers(1);
  ASSERT_EQ(cluster_->Publish(1).message(), "");
  cluster_->FillTrainers(2);
  ASSERT_EQ(cluster_->Abandon(2).message(), "");
  ASSERT_EQ(cluster_->Prepare(2).message(), "");
  ASSERT_EQ(cluster_->StartAndArrive().message(), "");
  ASSERT_EQ(cluster_->Commit().message(), "");
  for (uint32_t w = 0; w < 2; ++w) EXPECT_TRUE(cluster_->Shows(w, 2)) << w;
  EXPECT_EQ(cluster_->worker(0).counts().renewals, 1u);
}

// Somebody else writes to what is shown.
TEST_P(EngineTest, AChangedByteIsNamedUntilTheNextVersionRepairsIt) {
  Make({});
  cluster_->FillTrainers(1);
  ASSERT_EQ(cluster_->Publish(1).message(), "");
  std::string name;
  {
    const absl::StatusOr<Snapshot> snapshot = cluster_->worker(0).TakeSnapshot("test");
    ASSERT_TRUE(snapshot.ok());
    const ShardView shard = cluster_->worker_manifest(0).shard(0);
    name = std::string(cluster_->worker_manifest(0).tensor_name(shard.tensor_index));
    const auto region = snapshot->region(shard.place.region_index);
    auto* const byte = const_cast<std::byte*>(region.data() + shard.place.offset_bytes);
    *byte ^= std::byte{1};
  }
  const absl::Status found = cluster_->worker(0).Verify().status();
  EXPECT_EQ(found.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(found.message(), testing::HasSubstr("version 1: 1 of "));
  EXPECT_THAT(found.message(), testing::HasSubstr("tensor \"" + name + "\""));
  EXPECT_EQ(*cluster_->worker(1).Verify(), 1u);
  cluster_->FillTrainers(2);
  ASSERT_EQ(cluster_->Publish(2).message(), "");
  EXPECT_EQ(*cluster_->worker(0).Verify(), 2u);
}

TEST_P(EngineTest, AnUpdateThatIsGivenUpAndAnotherPlanLeaveTheDigestsOfWhatIsShown) {
  if (std::get<1>(GetParam()) == Mode::kInPlace) GTEST_SKIP() << "in place it leaves no version";
  Make({});
  EXPECT_EQ(cluster_->worker(0).Verify().status().code(), absl::StatusCode::kFailedPrecondition);
  cluster_->FillTrainers(1);
  ASSERT_EQ(cluster_->Publish(1).message(), "");
  cluster_->FillTrainers(2);
  ASSERT_EQ(cluster_->Prepare(2).message(), "");
  ASSERT_EQ(cluster_->StartAndArrive().message(), "");
  cluster_->Abort(true);
  EXPECT_EQ(*cluster_->worker(0).Verify(), 1u);
  ASSERT_EQ(cluster_->Connect().message(), "");
  EXPECT_EQ(*cluster_->worker(0).Verify(), 1u);
}

TEST_P(EngineTest, WithoutDigestsThereIsNothingToCompareWith) {
  Make({.digests = Digests::kOff});
  cluster_->FillTrainers(1);
  ASSERT_EQ(cluster_->Publish(1).message(), "");
  const absl::Status found = cluster_->worker(0).Verify().status();
  EXPECT_EQ(found.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(found.message(), testing::HasSubstr("published without digests"));
}

TEST_P(EngineTest, AVersionOfTheBytesThatWereShownIsSaidToBeUnchanged) {
  Make({});
  const auto unchanged = [this](uint64_t version, uint64_t bytes) {
    cluster_->FillTrainers(bytes);
    EXPECT_EQ(cluster_->Publish(version).message(), "");
    const uint64_t all = cluster_->worker(0).counts().unchanged_versions;
    EXPECT_EQ(cluster_->worker(1).counts().unchanged_versions, all);
    return all;
  };
  EXPECT_EQ(unchanged(1, 7), 0u);
  EXPECT_EQ(unchanged(2, 7), 1u);
  EXPECT_EQ(unchanged(3, 8), 1u);
  EXPECT_EQ(unchanged(4, 7), 1u);
  EXPECT_EQ(unchanged(5, 7), 2u);
}

TEST_P(EngineTest, WithoutDigestsNothingIsSaidToBeUnchanged) {
  Make({.digests = Digests::kOff});
  cluster_->FillTrainers(1);
  ASSERT_EQ(cluster_->Publish(1).message(), "");
  ASSERT_EQ(cluster_->Publish(2).message(), "");
  EXPECT_EQ(cluster_->worker(0).counts().unchanged_versions, 0u);
}

std::string NameOf(const testing::TestParamInfo<EngineTest::ParamType>& info) {
  constexpr const char* kNetworks[] = {
      "loopback",          "shuffled", "mapped",         "three_lanes",     "local",
      "local_three_lanes", "tcp",      "tcp_four_lanes", "shuffled_direct", "tcp_direct"};
  constexpr const char* kModes[] = {"", "shadow", "copy", "inplace"};
  return std::string(kNetworks[static_cast<int>(std::get<0>(info.param))]) + "_" +
         kModes[static_cast<int>(std::get<1>(info.param))];
}

INSTANTIATE_TEST_SUITE_P(
    All, EngineTest,
    testing::Combine(testing::Values(Network::kLoopback, Network::kLoopbackShuffled,
                                     Network::kLoopbackMapped, Network::kThreeLanesShuffled,
                                     Network::kLocal, Network::kLocalThreeLanes, Network::kTcp,
                                     Network::kTcpFourLanes, Network::kShuffledDirect,
                                     Network::kTcpDirect),
                     testing::Values(Mode::kShadow, Mode::kShadowCopy, Mode::kInPlace)),
    NameOf);

}  // namespace
}  // namespace waybill
