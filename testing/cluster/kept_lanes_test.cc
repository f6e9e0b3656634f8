// SPDX-License-Identifier: Apache-2.0

// Lanes that go on from one term to the next: what they carry, and when they must not be kept.

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>

#include "testing/cluster/fault_cluster.h"

namespace waybill {
namespace {

bool All(uint32_t /*trainer*/, uint32_t /*worker*/) { return true; }

uint32_t GrantedImmediate(uint32_t term) {
  return Immediate{Immediate::Kind::kGranted, term}.Pack();
}

class KeptLanesTest : public testing::TestWithParam<Network> {
 protected:
  KeptLanesTest() {
    EXPECT_EQ(cluster_->Connect().message(), "");
    EXPECT_EQ(cluster_.PublishAndCheck(1), "");
  }

  // How often each trainer has done something with the workers.
  std::array<uint64_t, 2> CountsOf(FabricCall call) {
    return {cluster_.at_trainer(0).count(call), cluster_.at_trainer(1).count(call)};
  }

  FaultCluster cluster_{GetParam(), {}};
};

class PostedKeptLanesTest : public KeptLanesTest {};

TEST_P(KeptLanesTest, CarryTheNextPlanWithoutBeingConnectedAgain) {
  const auto connected = CountsOf(FabricCall::kConnect);
  auto imported = CountsOf(FabricCall::kImport);
  for (uint64_t version = 2; version <= 5; ++version) {
    ASSERT_EQ(cluster_->Connect(All).message(), "");
    EXPECT_EQ(cluster_.PublishAndCheck(version), "");
    // Of what there was before, only the ledgers of the two workers' two buffers are new.
    const auto now = CountsOf(FabricCall::kImport);
    for (uint32_t t = 0; t < 2; ++t) EXPECT_EQ(now[t], imported[t] + 4);
    imported = now;
  }
  EXPECT_EQ(CountsOf(FabricCall::kConnect), connected);
  EXPECT_EQ(cluster_.at_trainer(0).open_lanes(), 2u);
}

TEST_P(KeptLanesTest, OnlyThoseOfWhoHasChangedAreOpenedAnew) {
  const auto connected = CountsOf(FabricCall::kConnect);
  ASSERT_EQ(cluster_->Connect([](uint32_t t, uint32_t) { return t == 0; }).message(), "");
  EXPECT_EQ(cluster_.PublishAndCheck(2), "");
  EXPECT_EQ(CountsOf(FabricCall::kConnect), (std::array{connected[0], connected[1] + 2}));
  EXPECT_EQ(cluster_.at_trainer(1).open_lanes(), 2u);
  EXPECT_EQ(cluster_.at_worker(0).open_lanes(), 2u);
}

TEST_P(KeptLanesTest, ADeadOneIsNotKept) {
  cluster_.at_trainer(0).KillLanes("worker 1", absl::UnavailableError("cable"));
  ASSERT_TRUE(cluster_.Until([&] {
    return !cluster_->worker_events(1).empty() &&
           cluster_->worker_events(1).back().kind == ReceiverEvent::Kind::kPeerFailed;
  }));
  const absl::Status status = cluster_->Connect(All);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "the lanes to rank 1 of the other side are not there any more");
  ASSERT_EQ(cluster_->Connect().message(), "");
  EXPECT_EQ(cluster_.PublishAndCheck(2), "");
}

TEST_P(KeptLanesTest, AnUpdateThatWasGivenUpLeavesNothingToTheNextTerm) {
  for (uint64_t version = 2; version <= 6; version += 2) {
    ASSERT_EQ(cluster_->Abandon(version).message(), "");
    ASSERT_EQ(cluster_->Connect(All).message(), "");
    EXPECT_EQ(cluster_.PublishAndCheck(version + 1), "");
  }
}

TEST_P(KeptLanesTest, AGrantOfAnEarlierTermIsNotTakenForThisOne) {
  cluster_.at_trainer(0).HoldImmediates("worker 0");
  EXPECT_EQ(cluster_->Connect(All).message(), "the lanes do not connect");
  cluster_.at_trainer(0).InjectImmediate("worker 0", GrantedImmediate(1));
  EXPECT_FALSE(cluster_.Until([&] { return !cluster_->trainer_events(0).empty(); }));
  cluster_.at_trainer(0).LetImmediatesGo("worker 0");
  EXPECT_TRUE(cluster_.Until([&] { return !cluster_->trainer_events(0).empty(); }));
  EXPECT_EQ(cluster_.PublishAndCheck(2), "");
}

TEST_P(KeptLanesTest, ATermThatNeverBeganIsNoObstacle) {
  cluster_.at_trainer(0).HoldImmediates("worker 0");
  EXPECT_FALSE(cluster_->Connect(All).ok());
  cluster_.at_trainer(0).LetImmediatesGo("worker 0");
  ASSERT_EQ(cluster_->Connect(All).message(), "");
  EXPECT_EQ(cluster_.PublishAndCheck(2), "");
}

TEST_P(PostedKeptLanesTest, ALaneWithWritesOutstandingIsNotKept) {
  cluster_->FillTrainers(2);
  ASSERT_TRUE(cluster_->Prepare(2).ok());
  cluster_.at_trainer(0).HoldPosts("worker 0");
  ASSERT_FALSE(cluster_->StartAndArrive().ok());
  cluster_->Abort(/*begun=*/true);
  EXPECT_EQ(cluster_->Connect(All).message(),
            "the lanes to rank 0 of the other side are not there any more");
  cluster_.at_trainer(0).LetPostsGo("worker 0");  // Those of a lane that is closed.
  ASSERT_EQ(cluster_->Connect().message(), "");
  EXPECT_EQ(cluster_.PublishAndCheck(3), "");
}

constexpr auto kName = [](const auto& info) { return NameOf(info.param); };
INSTANTIATE_TEST_SUITE_P(All, KeptLanesTest,
                         testing::Values(Network::kPosted, Network::kDirect, Network::kCopied,
                                         Network::kMapped, Network::kLocal),
                         kName);
INSTANTIATE_TEST_SUITE_P(All, PostedKeptLanesTest,
                         testing::Values(Network::kPosted, Network::kDirect, Network::kCopied),
                         kName);

}  // namespace
}  // namespace waybill
