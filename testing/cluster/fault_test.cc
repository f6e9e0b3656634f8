// SPDX-License-Identifier: Apache-2.0

// What a network can do to an update: wrong bytes, lost and foreign immediates, dead lanes, a dead
// trainer. Every worker shows a version whole, or the one before it.

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/match.h"
#include "testing/cluster/fault_cluster.h"

namespace waybill {
namespace {

using absl::StrContains;
using Kind = ReceiverEvent::Kind;

uint32_t DataImmediate(uint32_t sequence) {
  return Immediate{Immediate::Kind::kData, sequence}.Pack();
}

class FaultTest : public testing::TestWithParam<Network> {
 protected:
  void Make(ClusterOptions options = {}) {
    cluster_ = std::make_unique<FaultCluster>(GetParam(), options);
    ASSERT_EQ((*cluster_)->Connect().message(), "");
    ASSERT_EQ(cluster_->PublishAndCheck(1), "");
  }
  FaultCluster& cluster() { return *cluster_; }
  size_t CountOf(uint32_t w, Kind kind) {
    size_t count = 0;
    for (const ReceiverEvent& event : (*cluster_)->worker_events(w)) {
      count += event.kind == kind ? 1 : 0;
    }
    return count;
  }

  std::unique_ptr<FaultCluster> cluster_;
};

// Stores cannot be corrupted on their way: that is for what is posted.
class PostedFaultTest : public FaultTest {};

TEST_P(PostedFaultTest, AWrongByteIsFoundByItsDigestAndTheVersionIsNotShown) {
  Make();
  for (uint64_t nth = 1; nth <= 5; ++nth) {
    cluster()->FillTrainers(1 + nth);
    cluster().at_trainer(1).CorruptWrite("worker 0", nth);
    const absl::Status status = cluster()->Publish(1 + nth);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_TRUE(StrContains(status.message(), "tensor \"")) << status;
    EXPECT_TRUE(StrContains(status.message(), "from trainer 1")) << status;
    EXPECT_EQ(cluster().at_trainer(1).faults(), nth);
    EXPECT_TRUE(cluster().AllShow(1));
  }
  EXPECT_EQ(cluster().PublishAndCheck(100), "");
}

TEST_P(PostedFaultTest, AWrongByteOfALedgerEntryIsFound) {
  Make();
  ASSERT_EQ(cluster().PublishAndCheck(2), "");
  // The last write of an update is of ledger entries.
  const TransferCounts counts = cluster()->trainer_events(0).back().counts;
  cluster()->FillTrainers(3);
  cluster().at_trainer(0).CorruptWrite("", counts.writes);
  const absl::Status status = cluster()->Publish(3);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_TRUE(StrContains(status.message(), "from trainer 0")) << status;
  EXPECT_TRUE(cluster().AllShow(2));
  EXPECT_EQ(cluster().PublishAndCheck(4), "");
}

TEST_P(PostedFaultTest, APostThatIsPutOffIsDoneLater) {
  Make();
  for (uint64_t nth = 1; nth <= 4; ++nth) {
    cluster().at_trainer(0).FailCall(FabricCall::kPost, "worker 1", nth,
                                     absl::ResourceExhaustedError("full"));
  }
  EXPECT_EQ(cluster().PublishAndCheck(2), "");
  EXPECT_EQ(cluster().at_trainer(0).faults(), 4u);
}

TEST_P(PostedFaultTest, AWorkerThatIsSlowHoldsUpNoOther) {
  Make({.trainer = {.ring_bytes = 8 << 10, .chunk_bytes = 4 << 10, .stage_threads = 0}});
  cluster()->FillTrainers(2);
  ASSERT_TRUE(cluster()->Prepare(2).ok());
  cluster().at_trainer(0).HoldPosts("worker 0");
  EXPECT_EQ(cluster()->StartAndArrive().message(), "not everything arrives");
  EXPECT_EQ(CountOf(0, Kind::kArrived), 0u);
  EXPECT_EQ(CountOf(1, Kind::kArrived), 1u);
  // Once is not enough: what is let go takes the ring's slots again.
  while (CountOf(0, Kind::kArrived) == 0) {
    cluster().at_trainer(0).LetPostsGo("worker 0");
    cluster()->Step();
  }
  EXPECT_TRUE(cluster()->Commit().ok());
  EXPECT_TRUE(cluster().AllShow(2));
}

TEST_P(PostedFaultTest, AFailedPostFailsItsWorkerAndNoOther) {
  Make();
  cluster()->FillTrainers(2);
  ASSERT_TRUE(cluster()->Prepare(2).ok());
  cluster().at_trainer(0).FailCall(FabricCall::kPost, "worker 0", 2,
                                   absl::UnavailableError("retries exceeded"));
  const absl::Status status = cluster()->StartAndArrive();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(cluster().Until([&] { return CountOf(1, Kind::kArrived) == 1; }));
  ASSERT_TRUE(cluster().Until(
      [&] { return cluster()->trainer_events(0).back().kind == SenderEvent::Kind::kSent; }));
  EXPECT_EQ(cluster()->trainer_events(0)[0].kind, SenderEvent::Kind::kPeerFailed);
  EXPECT_EQ(cluster()->trainer_events(0)[0].peer, (RankId{Role::kWorker, 0}));
  EXPECT_EQ(CountOf(0, Kind::kArrived), 0u);
  EXPECT_TRUE(cluster().AllShow(1));
}

TEST_P(PostedFaultTest, LateWritesOfAnAbandonedUpdateDoNotReachAFencedBuffer) {
  Make();
  cluster()->FillTrainers(2);
  ASSERT_TRUE(cluster()->Prepare(2).ok());
  const uint32_t target = cluster()->worker_events(0)[0].buffer_index;
  cluster().at_trainer(1).HoldPosts("worker 0");
  EXPECT_FALSE(cluster()->StartAndArrive().ok());
  cluster()->Abort(/*begun=*/true);
  EXPECT_FALSE(cluster()->UntilStopped());  // Trainer 1 cannot say that it is quiescent.

  ASSERT_EQ(cluster()->Prepare(3).message(), "");
  ASSERT_EQ(cluster()->worker_events(0)[0].buffer_index, target);
  const MemorySpan buffer =
      cluster().at_worker(0).MemoryOf(target == 0 ? "weights" : "weights (shadow)");
  const auto is_zero = [&] {
    for (uint64_t i = 0; i < buffer.size_bytes; ++i) {
      if (buffer.data[i] != std::byte{0}) return false;
    }
    return true;
  };
  ASSERT_TRUE(is_zero());
  cluster().at_trainer(1).LetPostsGo("worker 0");
  EXPECT_TRUE(cluster().Until([&] { return CountOf(0, Kind::kPeerFailed) == 1; }));
  EXPECT_TRUE(is_zero());
  EXPECT_TRUE(cluster().AllShow(1));

  cluster()->Abort(/*begun=*/false);
  ASSERT_EQ(cluster()->Connect().message(), "");
  EXPECT_EQ(cluster().PublishAndCheck(4), "");
}

TEST_P(PostedFaultTest, ANewPlanTakesBackTheRingOfPostsThatNeverCompleted) {
  Make();
  for (uint64_t round = 0; round < 4; ++round) {
    cluster()->FillTrainers(2 + 2 * round);
    ASSERT_TRUE(cluster()->Prepare(2 + 2 * round).ok());
    cluster().at_trainer(0).HoldPosts("");
    EXPECT_FALSE(cluster()->StartAndArrive().ok());
    cluster()->Abort(/*begun=*/true);
    cluster().at_trainer(0).LetPostsGo("nobody");
    ASSERT_EQ(cluster()->Connect().code(), absl::StatusCode::kDeadlineExceeded);
    cluster().at_trainer(0).LetPostsGo("");
    ASSERT_EQ(cluster()->Connect().message(), "");
    ASSERT_EQ(cluster().PublishAndCheck(3 + 2 * round), "");
  }
}

TEST_P(FaultTest, WithoutItsImmediateNothingHasArrived) {
  Make();
  cluster()->FillTrainers(2);
  ASSERT_TRUE(cluster()->Prepare(2).ok());
  cluster().at_worker(0).DropImmediate("trainer 1", 1);
  EXPECT_EQ(cluster()->StartAndArrive().message(), "not everything arrives");
  EXPECT_EQ(CountOf(0, Kind::kArrived), 0u);
  EXPECT_EQ(CountOf(1, Kind::kArrived), 1u);
  cluster()->Abort(/*begun=*/true);
  EXPECT_TRUE(cluster()->UntilStopped());
  EXPECT_TRUE(cluster().AllShow(1));
  EXPECT_EQ(cluster().PublishAndCheck(3), "");
}

TEST_P(FaultTest, ARepeatedImmediateIsCountedAndHarmless) {
  Make();
  cluster().at_worker(0).DuplicateImmediate("trainer 0", 1);
  EXPECT_EQ(cluster().PublishAndCheck(2), "");
  cluster()->Step();
  EXPECT_EQ(cluster()->worker(0).counts().repeats, 1u);
  EXPECT_EQ(cluster()->worker(0).counts().stragglers, 0u);
  EXPECT_EQ(cluster()->worker(1).counts().repeats, 0u);
}

TEST_P(FaultTest, AnImmediateOfAnEarlierUpdateIsCountedAndHarmless) {
  Make();
  ASSERT_EQ(cluster().PublishAndCheck(2), "");
  cluster()->FillTrainers(3);
  ASSERT_TRUE(cluster()->Prepare(3).ok());
  cluster().at_worker(1).InjectImmediate("trainer 1", DataImmediate(1));
  ASSERT_EQ(cluster()->StartAndArrive().message(), "");
  ASSERT_EQ(cluster()->Commit().message(), "");
  EXPECT_TRUE(cluster().AllShow(3));
  EXPECT_EQ(cluster()->worker(1).counts().stragglers, 1u);
  EXPECT_EQ(cluster()->worker(1).counts().repeats, 0u);
}

TEST_P(FaultTest, AnImmediateInsteadOfTheRightOneIsNoArrival) {
  Make();
  cluster()->FillTrainers(2);
  ASSERT_TRUE(cluster()->Prepare(2).ok());
  cluster().at_worker(0).ReplaceImmediate("trainer 0", 1, DataImmediate(1));
  EXPECT_EQ(cluster()->StartAndArrive().message(), "not everything arrives");
  EXPECT_EQ(cluster()->worker(0).counts().repeats, 1u);
  cluster()->Abort(/*begun=*/true);
  EXPECT_TRUE(cluster().AllShow(1));
  EXPECT_EQ(cluster().PublishAndCheck(3), "");
}

TEST_P(FaultTest, AnImmediateAheadOfItsDataIsCaughtByTheLedger) {
  Make();
  cluster().at_worker(0).InjectImmediate("trainer 1",
                                         DataImmediate(cluster()->update().sequence + 1));
  cluster()->Step();
  cluster()->FillTrainers(2);
  const absl::Status status = cluster()->Publish(2);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_TRUE(StrContains(status.message(), "its ledger entry is of sequence")) << status;
  EXPECT_TRUE(StrContains(status.message(), "from trainer 1")) << status;
  EXPECT_TRUE(cluster().AllShow(1));
  EXPECT_EQ(cluster().PublishAndCheck(3), "");
}

ClusterOptions Announced() {
  ClusterOptions options;
  options.trainer.announced_bytes = 1;
  return options;
}

TEST_P(PostedFaultTest, AChunkThatIsAnnouncedIsVerifiedBeforeTheOthersAreHere) {
  Make(Announced());
  const uint64_t before = cluster()->worker(0).counts().early_chunks;
  EXPECT_EQ(cluster().PublishAndCheck(2), "");
  // In chunks of 8 KiB: each trainer has 13440 bytes for one worker and 5760 for the other.
  EXPECT_EQ(before, 3u);
  EXPECT_EQ(cluster()->worker(0).counts().early_chunks, 6u);
  EXPECT_EQ(cluster()->worker(1).counts().early_chunks, 6u);
}

// Progress is told by chunks, not once for each trainer.
TEST_P(PostedFaultTest, WhatIsDigestedHasArrivedBeforeItsTrainerIsVerified) {
  Make(Announced());
  const ReceiverCounts before = cluster()->worker(0).counts();
  EXPECT_EQ(before.arrived_bytes, before.verified_bytes);
  cluster().at_worker(0).DropImmediate("trainer 0", 3);  // The last, behind those of two chunks.
  cluster().at_worker(0).DropImmediate("trainer 1", 2);
  cluster()->FillTrainers(2);
  EXPECT_EQ(cluster()->Publish(2).message(), "not everything arrives");
  EXPECT_EQ(cluster()->worker(0).counts().verified_bytes, before.verified_bytes);
  EXPECT_EQ(cluster()->worker(0).counts().arrived_bytes, before.arrived_bytes + 13440 + 5760);
}

TEST_P(PostedFaultTest, AnAnnouncementThatIsLostIsNotMissed) {
  Make(Announced());
  cluster().at_worker(0).DropImmediate("trainer 0", 1);
  EXPECT_EQ(cluster().PublishAndCheck(2), "");
}

TEST_P(PostedFaultTest, AnAnnouncementOfAnotherUpdateIsLeftAlone) {
  Make(Announced());
  ASSERT_TRUE(cluster()->Prepare(2).ok());
  const uint32_t sequence = cluster()->update().sequence;
  cluster().at_worker(0).InjectImmediate("trainer 0", ChunkImmediate{sequence + 255, 0}.Pack());
  cluster().at_worker(0).InjectImmediate("trainer 0", ChunkImmediate{sequence, 999}.Pack());
  cluster()->Step();
  cluster()->FillTrainers(2);
  ASSERT_EQ(cluster()->StartAndArrive().message(), "");
  ASSERT_EQ(cluster()->Commit().message(), "");
  EXPECT_TRUE(cluster().AllShow(2));
}

TEST_P(PostedFaultTest, AnAnnouncementAheadOfItsDataFailsTheUpdateAndNoLaterOne) {
  Make(Announced());
  cluster()->FillTrainers(2);
  ASSERT_TRUE(cluster()->Prepare(2).ok());
  const uint32_t sequence = cluster()->update().sequence;
  cluster().at_worker(0).InjectImmediate("trainer 0", ChunkImmediate{sequence, 0}.Pack());
  cluster()->Step();
  EXPECT_EQ(cluster()->StartAndArrive().code(), absl::StatusCode::kDataLoss);
  cluster()->Abort(/*begun=*/true);
  ASSERT_TRUE(cluster()->UntilStopped());
  EXPECT_TRUE(cluster().AllShow(1));
  EXPECT_EQ(cluster().PublishAndCheck(3), "");
}

TEST_P(PostedFaultTest, AWrongByteOfAnAnnouncedChunkIsFound) {
  Make(Announced());
  cluster()->FillTrainers(2);
  cluster().at_trainer(1).CorruptWrite("worker 0", 1);
  EXPECT_EQ(cluster()->Publish(2).code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(cluster().AllShow(1));
  EXPECT_EQ(cluster().PublishAndCheck(3), "");
}

TEST_P(FaultTest, AnUnknownKindOfImmediateIsLeftAlone) {
  Make();
  cluster().at_worker(0).InjectImmediate("trainer 0", 0xF000'0007);
  cluster().at_trainer(0).InjectImmediate("worker 0", 0xF000'0007);
  cluster().at_trainer(0).InjectImmediate("worker 1", Immediate{Immediate::Kind::kGranted}.Pack());
  EXPECT_EQ(cluster().PublishAndCheck(2), "");
}

TEST_P(FaultTest, AnImmediateThatIsLateIsWaitedFor) {
  Make();
  cluster()->FillTrainers(2);
  ASSERT_TRUE(cluster()->Prepare(2).ok());
  cluster().at_worker(1).HoldImmediates("trainer 0");
  EXPECT_EQ(cluster()->StartAndArrive().message(), "not everything arrives");
  cluster().at_worker(1).LetImmediatesGo("trainer 0");
  EXPECT_TRUE(cluster().Until([&] { return CountOf(1, Kind::kArrived) == 1; }));
  EXPECT_TRUE(cluster()->Commit().ok());
  EXPECT_TRUE(cluster().AllShow(2));
}

TEST_P(FaultTest, ALaneThatDiesMeanwhileLeavesTheOldVersion) {
  Make();
  cluster()->FillTrainers(2);
  ASSERT_TRUE(cluster()->Prepare(2).ok());
  cluster().at_trainer(0).KillLanes("worker 1", absl::UnavailableError("cut"));
  EXPECT_EQ(cluster()->StartAndArrive().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(cluster().Until(
      [&] { return CountOf(1, Kind::kPeerFailed) == 1 && CountOf(0, Kind::kArrived) == 1; }));
  EXPECT_EQ(CountOf(1, Kind::kArrived), 0u);
  cluster()->Abort(/*begun=*/true);
  EXPECT_TRUE(cluster().AllShow(1));
  // The next update is received as far as lanes work.
  cluster()->FillTrainers(3);
  ASSERT_TRUE(cluster()->Prepare(3).ok());
  ASSERT_TRUE(cluster()->StartAndArrive().ok());
  EXPECT_TRUE(cluster().Until([&] { return CountOf(1, Kind::kLacking) == 1; }));
  EXPECT_EQ(cluster()->worker_events(1).back().lacking, std::vector<uint32_t>{0});
  cluster()->Abort(/*begun=*/true);
  ASSERT_EQ(cluster()->Connect().message(), "");
  EXPECT_EQ(cluster().PublishAndCheck(4), "");
}

TEST_P(FaultTest, ATrainerThatDiesInTheMiddleLeavesTheOldVersion) {
  Make();
  cluster()->FillTrainers(2);
  ASSERT_TRUE(cluster()->Prepare(2).ok());
  cluster().at_trainer(1).HoldPosts("");  // Trainer 0 is through, trainer 1 in the middle.
  EXPECT_EQ(cluster()->StartAndArrive().message(), "not everything arrives");
  cluster()->KillTrainer(1);
  EXPECT_TRUE(cluster().Until(
      [&] { return CountOf(0, Kind::kPeerFailed) == 1 && CountOf(1, Kind::kPeerFailed) == 1; }));
  // All else is here.
  EXPECT_TRUE(cluster().Until(
      [&] { return CountOf(0, Kind::kLacking) == 1 && CountOf(1, Kind::kLacking) == 1; }));
  EXPECT_EQ(cluster()->worker_events(0).back().lacking, std::vector<uint32_t>{1});
  cluster()->Abort(/*begun=*/true);
  EXPECT_TRUE(cluster().AllShow(1));
}

TEST_P(FaultTest, ATrainerThatDiesInTheMiddleLeavesItDirtyInPlace) {
  Make({.mode = Mode::kInPlace});
  cluster()->FillTrainers(2);
  ASSERT_TRUE(cluster()->Prepare(2).ok());
  cluster().at_trainer(1).HoldPosts("");
  EXPECT_EQ(cluster()->StartAndArrive().message(), "not everything arrives");
  cluster()->KillTrainer(1);
  cluster().Until([&] { return CountOf(0, Kind::kPeerFailed) == 1; });
  cluster()->Abort(/*begun=*/true);
  for (uint32_t w = 0; w < 2; ++w) {
    EXPECT_TRUE(cluster()->worker(w).dirty());
    const absl::Status status = cluster()->worker(w).TakeSnapshot("test").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(status.message(),
              "take a snapshot: the memory is dirty, a version after 1 was being written in place");
  }
}

TEST_P(FaultTest, InPlaceAnAbortedUpdateThatDidNotBeginIsNotDirty) {
  Make({.mode = Mode::kInPlace});
  ASSERT_TRUE(cluster()->Prepare(2).ok());
  EXPECT_TRUE(cluster()->worker(0).dirty());
  cluster()->Abort(/*begun=*/false);
  EXPECT_TRUE(cluster()->UntilStopped());
  EXPECT_FALSE(cluster()->worker(0).dirty());
  EXPECT_TRUE(cluster().AllShow(1));
}

TEST_P(FaultTest, InPlaceDirtyMemoryStaysDirtyUntilAWholeVersionIsThere) {
  Make({.mode = Mode::kInPlace});
  cluster()->FillTrainers(2);
  ASSERT_TRUE(cluster()->Prepare(2).ok());
  cluster().at_worker(0).DropImmediate("trainer 1", 1);
  EXPECT_FALSE(cluster()->StartAndArrive().ok());
  cluster()->Abort(/*begun=*/true);
  ASSERT_TRUE(cluster()->UntilStopped());
  ASSERT_TRUE(cluster()->Prepare(3).ok());
  cluster()->Abort(/*begun=*/false);  // It did not begin, but the one before had.
  ASSERT_TRUE(cluster()->UntilStopped());
  EXPECT_TRUE(cluster()->worker(0).dirty());
  EXPECT_EQ(cluster().PublishAndCheck(4), "");
  EXPECT_FALSE(cluster()->worker(0).dirty());
}

INSTANTIATE_TEST_SUITE_P(All, FaultTest,
                         testing::Values(Network::kPosted, Network::kDirect, Network::kCopied,
                                         Network::kMapped, Network::kLocal),
                         [](const auto& info) { return NameOf(info.param); });
INSTANTIATE_TEST_SUITE_P(All, PostedFaultTest,
                         testing::Values(Network::kPosted, Network::kDirect, Network::kCopied),
                         [](const auto& info) { return NameOf(info.param); });

}  // namespace
}  // namespace waybill
