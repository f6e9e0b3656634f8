// SPDX-License-Identifier: Apache-2.0

// Commands that come at the wrong time are refused, and change nothing; a buffer that is read is
// not written.

#include <gtest/gtest.h>

#include <future>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/engine/sender_engine.h"
#include "core/stage/work_pool.h"
#include "testing/cluster/fault_cluster.h"

namespace waybill {
namespace {

using absl::StrContains;
using Kind = ReceiverEvent::Kind;

class CommandsTest : public testing::TestWithParam<Network> {
 protected:
  CommandsTest() {
    EXPECT_EQ(cluster_->Connect().message(), "");
    EXPECT_EQ(cluster_.PublishAndCheck(1), "");
  }

  // Prepares worker 0 alone, past the cluster; what it answered at once, if it did.
  std::optional<ReceiverEvent> PrepareWorker0(const UpdateId& update, absl::Duration time) {
    cluster_->worker_events(0).clear();
    cluster_->worker(0).Prepare(update, Digests::kOn, cluster_->now() + time);
    return Answer();
  }
  std::optional<ReceiverEvent> Answer() {
    for (int i = 0; i < 10; ++i) cluster_->Step();
    if (cluster_->worker_events(0).empty()) return std::nullopt;
    return cluster_->worker_events(0).back();
  }
  UpdateId NextUpdate(uint64_t version) {
    UpdateId update = cluster_->update();
    update.version = version;
    update.sequence = ++sequence_;
    return update;
  }

  FaultCluster cluster_{GetParam(), {}};
  uint32_t sequence_ = 1000;
};

TEST_P(CommandsTest, ABufferThatIsReadIsWaitedForAndTheErrorNamesTheReader) {
  ASSERT_EQ(cluster_.PublishAndCheck(2), "");
  std::optional<Snapshot> snapshot = *cluster_->worker(0).TakeSnapshot("eval");
  ASSERT_EQ(cluster_.PublishAndCheck(3), "");  // Into the other buffer.

  EXPECT_FALSE(PrepareWorker0(NextUpdate(4), absl::Seconds(10)));
  cluster_->now() += absl::Seconds(9);
  EXPECT_FALSE(Answer());
  cluster_->now() += absl::Seconds(1);
  const std::optional<ReceiverEvent> refused = Answer();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->kind, Kind::kRefused);
  EXPECT_EQ(refused->status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(StrContains(refused->status.message(), "prepare version 4: buffer "));
  EXPECT_TRUE(
      StrContains(refused->status.message(), "is still read: snapshot of version 2 by eval"));

  EXPECT_FALSE(PrepareWorker0(NextUpdate(4), absl::Seconds(10)));
  EXPECT_EQ(snapshot->version(), 2u);
  snapshot.reset();
  const std::optional<ReceiverEvent> ready = Answer();
  ASSERT_TRUE(ready);
  EXPECT_EQ(ready->kind, Kind::kReady);
  cluster_->worker(0).Abort(ready->update, /*begun=*/false);
  EXPECT_TRUE(cluster_.AllShow(3));
}

TEST_P(CommandsTest, EveryReaderOfABufferIsNamed) {
  ASSERT_EQ(cluster_.PublishAndCheck(2), "");
  const Snapshot first = *cluster_->worker(0).TakeSnapshot("eval");
  const Snapshot second = *cluster_->worker(0).TakeSnapshot("export");
  ASSERT_EQ(cluster_.PublishAndCheck(3), "");
  const std::optional<ReceiverEvent> refused = PrepareWorker0(NextUpdate(4), absl::ZeroDuration());
  ASSERT_TRUE(refused);
  EXPECT_TRUE(StrContains(refused->status.message(),
                          "snapshot of version 2 by eval, snapshot of version 2 by export"));
}

TEST_P(CommandsTest, AnAbandonedWaitForAReaderIsOver) {
  ASSERT_EQ(cluster_.PublishAndCheck(2), "");
  std::optional<Snapshot> snapshot = *cluster_->worker(0).TakeSnapshot("eval");
  ASSERT_EQ(cluster_.PublishAndCheck(3), "");
  const UpdateId update = NextUpdate(4);
  EXPECT_FALSE(PrepareWorker0(update, absl::Seconds(10)));
  cluster_->worker(0).Abort(update, /*begun=*/false);
  snapshot.reset();
  EXPECT_FALSE(Answer());
}

TEST_P(CommandsTest, WhatASnapshotShowsStaysWhileVersionsComeAndGo) {
  const Snapshot snapshot = *cluster_->worker(0).TakeSnapshot("eval");
  const std::vector<std::byte> before(snapshot.region(0).begin(), snapshot.region(0).end());
  ASSERT_EQ(cluster_.PublishAndCheck(2), "");
  EXPECT_FALSE(cluster_->Publish(3).ok());
  EXPECT_EQ(before, std::vector<std::byte>(snapshot.region(0).begin(), snapshot.region(0).end()));
  EXPECT_EQ(snapshot.version(), 1u);
}

TEST_P(CommandsTest, AVersionThatDoesNotGrowIsRefused) {
  ASSERT_EQ(cluster_.PublishAndCheck(5), "");
  for (const uint64_t version : {5u, 4u, 1u}) {
    const absl::Status status = cluster_->Publish(version);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_TRUE(StrContains(status.message(), "version 5 is shown, and versions only grow"))
        << status;
  }
  EXPECT_EQ(cluster_.PublishAndCheck(6), "");
}

TEST_P(CommandsTest, AnotherPlanIsRefusedNamingBoth) {
  UpdateId update = NextUpdate(2);
  update.plan_hash = 0xABC;
  const std::optional<ReceiverEvent> refused = PrepareWorker0(update, absl::Seconds(1));
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->kind, Kind::kRefused);
  EXPECT_EQ(refused->status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(StrContains(refused->status.message(), "its plan is abc, this worker's is "))
      << refused->status;
  EXPECT_EQ(cluster_.PublishAndCheck(2), "");
}

TEST_P(CommandsTest, ASecondUpdateMeanwhileIsRefusedAndTheFirstGoesOn) {
  cluster_->FillTrainers(2);
  ASSERT_TRUE(cluster_->Prepare(2).ok());
  const ReceiverEvent ready = cluster_->worker_events(0)[0];
  const std::optional<ReceiverEvent> refused = PrepareWorker0(NextUpdate(3), absl::Seconds(1));
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->kind, Kind::kRefused);
  EXPECT_TRUE(
      StrContains(refused->status.message(), "prepare version 3: version 2 is not decided yet"))
      << refused->status;
  cluster_->worker_events(0) = {ready};
  ASSERT_EQ(cluster_->StartAndArrive().message(), "");
  ASSERT_EQ(cluster_->Commit().message(), "");
  EXPECT_TRUE(cluster_.AllShow(2));
}

TEST_P(CommandsTest, ASecondStartIsRefusedAndTheFirstGoesOn) {
  ASSERT_TRUE(cluster_->Prepare(2).ok());
  const std::vector<StartTarget> targets = {{0, cluster_->worker_events(0)[0].buffer_index},
                                            {1, cluster_->worker_events(1)[0].buffer_index}};
  cluster_->FillTrainers(2);
  for (uint32_t t = 0; t < 2; ++t) {
    ASSERT_TRUE(cluster_->trainer(t).Start(cluster_->update(), Digests::kOn, targets).ok());
  }
  const absl::Status status = cluster_->trainer(0).Start(cluster_->update(), Digests::kOn, targets);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "start version 2: version 2 is being sent");
  EXPECT_TRUE(cluster_.Until([&] {
    return cluster_->worker_events(0).back().kind == Kind::kArrived &&
           cluster_->worker_events(1).back().kind == Kind::kArrived;
  }));
}

TEST_P(CommandsTest, AStartBehindAnUpdateThatIsNotQuiescentIsRefused) {
  if (!IsPosted(GetParam())) GTEST_SKIP() << "stores are quiescent at once";
  ASSERT_TRUE(cluster_->Prepare(2).ok());
  cluster_.at_trainer(0).HoldPosts("");
  EXPECT_FALSE(cluster_->StartAndArrive().ok());
  cluster_->Abort(/*begun=*/true);
  EXPECT_FALSE(cluster_->UntilStopped());
  const absl::Status status = cluster_->trainer(0).Start(NextUpdate(3), Digests::kOn, {});
  EXPECT_EQ(status.message(), "start version 3: version 2 is not quiescent yet");
  cluster_.at_trainer(0).LetPostsGo("");
  EXPECT_TRUE(cluster_->UntilStopped());
  EXPECT_EQ(cluster_.PublishAndCheck(3), "");
}

TEST_P(CommandsTest, AnAbortThatIsToldTwiceIsAnsweredOnceWhenNothingCanLandAnyMore) {
  if (!IsPosted(GetParam())) GTEST_SKIP() << "stores are quiescent at once";
  ASSERT_TRUE(cluster_->Prepare(2).ok());
  cluster_.at_trainer(0).HoldPosts("");
  EXPECT_FALSE(cluster_->StartAndArrive().ok());
  cluster_->Abort(/*begun=*/true);
  cluster_->trainer(0).Abort(cluster_->update().sequence);
  EXPECT_FALSE(cluster_->UntilStopped());
  EXPECT_TRUE(cluster_->trainer_events(0).empty());
  cluster_.at_trainer(0).LetPostsGo("");
  EXPECT_TRUE(cluster_->UntilStopped());
  EXPECT_EQ(cluster_->trainer_events(0).size(), 1u);
  EXPECT_EQ(cluster_->trainer_events(0)[0].update, cluster_->update());

  cluster_->trainer(0).Abort(cluster_->update().sequence);  // It is true already.
  EXPECT_EQ(cluster_->trainer_events(0).size(), 2u);
  EXPECT_EQ(cluster_.PublishAndCheck(3), "");
}

TEST_P(CommandsTest, StoppingAtOnceClosesTheLanesThatAreNotQuiescent) {
  if (!IsPosted(GetParam())) GTEST_SKIP() << "stores are quiescent at once";
  ASSERT_TRUE(cluster_->Prepare(2).ok());
  cluster_.at_trainer(0).HoldPosts("worker 0");
  EXPECT_FALSE(cluster_->StartAndArrive().ok());
  cluster_->trainer(0).StopNow();
  EXPECT_EQ(cluster_->trainer_events(0).back().kind, SenderEvent::Kind::kStopped);
  EXPECT_TRUE(
      cluster_.Until([&] { return cluster_->worker_events(0).back().kind == Kind::kLacking; }));
  EXPECT_EQ(cluster_->worker_events(0).back().lacking, std::vector<uint32_t>{0});
  EXPECT_TRUE(cluster_.AllShow(1));
}

TEST_P(CommandsTest, AStartForABufferThatIsNotThereIsRefused) {
  ASSERT_TRUE(cluster_->Prepare(2).ok());
  const StartTarget no_buffer[] = {{0, 2}};
  EXPECT_EQ(cluster_->trainer(0).Start(cluster_->update(), Digests::kOn, no_buffer).message(),
            "start version 2: worker 0 has 2 buffers, not 3");
  const StartTarget no_worker[] = {{7, 0}};
  EXPECT_EQ(cluster_->trainer(0).Start(cluster_->update(), Digests::kOn, no_worker).message(),
            "the plan has no route to worker 7");
}

// The worker renewed its buffer for an update that was aborted before trainer 1 heard of it.
TEST_P(CommandsTest, ATrainerThatMissedARenewalWritesToTheNewPagesInTheNextUpdate) {
  cluster_->FillTrainers(2);
  ASSERT_EQ(cluster_->Abandon(2).message(), "");
  ASSERT_EQ(cluster_->Prepare(2).message(), "");
  ASSERT_EQ(cluster_->Start(0).message(), "");
  cluster_->Abort(/*begun=*/true);
  ASSERT_TRUE(cluster_->UntilStopped());

  EXPECT_EQ(cluster_.PublishAndCheck(3), "");
  EXPECT_EQ(cluster_->worker_events(0)[0].address.generation, 2u);
  EXPECT_EQ(cluster_->worker(0).counts().renewals, 2u);
}

TEST_P(CommandsTest, ATrainerThatWasNotToldOfARenewalDoesNotStart) {
  cluster_->FillTrainers(2);
  ASSERT_EQ(cluster_->Abandon(2).message(), "");
  ASSERT_EQ(cluster_->Prepare(2).message(), "");
  const std::vector<StartTarget> targets = cluster_->TargetsOf(1);
  const absl::Status status = cluster_->trainer(1).Start(cluster_->update(), Digests::kOn, targets);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            absl::StrCat("start version 2: buffer ", targets[0].buffer_index,
                         " of worker 0 has generation 1, and this trainer has its address of "
                         "generation 0"));
  ASSERT_EQ(cluster_->StartAndArrive().message(), "");
  ASSERT_EQ(cluster_->Commit().message(), "");
  EXPECT_TRUE(cluster_.AllShow(2));
}

TEST_P(CommandsTest, AnAddressThatComesTwiceOrLateChangesNothing) {
  const BufferAddress old = (*cluster_->worker(0).Describe())[1];
  cluster_->FillTrainers(2);
  ASSERT_EQ(cluster_->Abandon(2).message(), "");
  ASSERT_EQ(cluster_->Prepare(2).message(), "");
  const ReceiverEvent ready = cluster_->worker_events(0)[0];
  for (uint32_t t = 0; t < 2; ++t) {
    for (const BufferAddress& address : {ready.address, ready.address, old}) {
      ASSERT_TRUE(cluster_->trainer(t).SetBufferAddress(0, ready.buffer_index, address).ok());
    }
  }
  ASSERT_EQ(cluster_->StartAndArrive().message(), "");
  ASSERT_EQ(cluster_->Commit().message(), "");
  EXPECT_TRUE(cluster_.AllShow(2));
}

TEST_P(CommandsTest, AnAddressThatDoesNotFitIsRefused) {
  BufferAddress address = (*cluster_->worker(0).Describe())[0];
  address.generation = 1;
  EXPECT_EQ(cluster_->trainer(0).SetBufferAddress(7, 0, address).message(),
            "the plan has no route to worker 7");
  EXPECT_EQ(cluster_->trainer(0).SetBufferAddress(0, 2, address).message(),
            "address of buffer 2 of worker 0: it has 2 buffers");
  const size_t regions = address.regions.size();
  address.regions.pop_back();
  EXPECT_EQ(cluster_->trainer(0).SetBufferAddress(0, 0, address).message(),
            absl::StrCat("address of buffer 0 of worker 0: it has ", regions - 1,
                         " regions, and had ", regions));
  EXPECT_EQ(cluster_.PublishAndCheck(2), "");
}

TEST_P(CommandsTest, WhatIsOfAnotherUpdateIsLeftAlone) {
  cluster_->FillTrainers(2);
  ASSERT_TRUE(cluster_->Prepare(2).ok());
  cluster_->worker(0).Commit(cluster_->update());  // It has not arrived.
  UpdateId other = cluster_->update();
  ++other.sequence;
  cluster_->worker(0).Abort(other, /*begun=*/true);
  ASSERT_EQ(cluster_->StartAndArrive().message(), "");
  cluster_->worker(0).Commit(other);
  EXPECT_TRUE(cluster_.AllShow(1));
  ASSERT_EQ(cluster_->Commit().message(), "");
  EXPECT_TRUE(cluster_.AllShow(2));
}

TEST_P(CommandsTest, LateStoresThroughAnOldMappingDoNotReachAFencedBuffer) {
  if (IsPosted(GetParam())) GTEST_SKIP() << "nothing is mapped";
  FaultyFabric& trainer = cluster_.at_trainer(1);
  const auto buffers = cluster_->worker(0).Describe();
  ASSERT_TRUE(cluster_->Prepare(2).ok());
  const uint32_t target = cluster_->worker_events(0)[0].buffer_index;
  const auto remote =
      trainer.Import(trainer.LaneTo("worker 0"), (*buffers)[target].regions[0].descriptor);
  ASSERT_TRUE(remote.ok()) << remote.status();
  const MemorySpan late = *trainer.Map(*remote);
  trainer.HoldPosts("worker 0");
  EXPECT_FALSE(cluster_->StartAndArrive().ok());
  cluster_->Abort(/*begun=*/true);
  (void)cluster_->UntilStopped();

  cluster_->FillTrainers(3);
  ASSERT_EQ(cluster_->Prepare(3).message(), "");
  ASSERT_EQ(cluster_->worker_events(0)[0].buffer_index, target);
  trainer.LetPostsGo("worker 0");  // The immediate of version 2.
  for (uint64_t i = 0; i < late.size_bytes; ++i) late.data[i] = std::byte{0xFF};
  ASSERT_EQ(cluster_->StartAndArrive().message(), "");
  for (uint64_t i = 0; i < late.size_bytes; ++i) late.data[i] = std::byte{0xFF};
  ASSERT_EQ(cluster_->Commit().message(), "");
  EXPECT_TRUE(cluster_.AllShow(3));
  EXPECT_EQ(cluster_->worker(0).counts().stragglers, 1u);
  EXPECT_EQ(cluster_->worker(0).counts().renewals, 1u);
}

// The area's only thread is busy, so that the first chunk waits for it, and the second one for the
// first.
TEST(Abort, DropsStoresThatWaitForOthers) {
  FaultCluster cluster(
      Network::kMapped,
      {.trainer = {.ring_bytes = 64 << 10, .chunk_bytes = 8 << 10, .stage_threads = 1}});
  ASSERT_EQ(cluster->Connect().message(), "");
  ASSERT_EQ(cluster.PublishAndCheck(1), "");
  cluster->FillTrainers(2);
  ASSERT_EQ(cluster->Prepare(2).message(), "");
  std::promise<void> end;
  WorkPool::Batch busy([future = end.get_future().share()](uint32_t) { future.wait(); }, [] {});
  cluster->staging(0).threads().Run(busy, 1);
  SenderEngine& engine = cluster->trainer(0);
  ASSERT_EQ(engine
                .Start(cluster->update(), Digests::kOn, cluster->TargetsOf(0), NonFiniteRule::kKept,
                       SourcesAre::kArriving)
                .message(),
            "");
  for (const uint32_t chunk : {0u, 1u}) {
    engine.Release(chunk);
    cluster->Step();
  }
  cluster->Abort(/*begun=*/true);
  EXPECT_TRUE(cluster->StepUntil([&] {
    return !cluster->trainer_events(0).empty() &&
           cluster->trainer_events(0).back().kind == SenderEvent::Kind::kStopped;
  }));
  end.set_value();
  cluster->staging(0).threads().Cancel(busy);
  for (int i = 0; i < 10; ++i) cluster->Step();
  EXPECT_TRUE(cluster.AllShow(1));
  EXPECT_EQ(cluster.PublishAndCheck(3), "");
}

INSTANTIATE_TEST_SUITE_P(All, CommandsTest,
                         testing::Values(Network::kPosted, Network::kDirect, Network::kCopied,
                                         Network::kMapped, Network::kLocal),
                         [](const auto& info) { return NameOf(info.param); });

}  // namespace
}  // namespace waybill
