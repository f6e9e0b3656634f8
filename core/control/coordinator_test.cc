// The rules of membership and of the two-phase commit, message by message: no sockets, no clocks.

#include "core/control/coordinator.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/control/messages.h"
#include "core/tensor/manifest_codec.h"

namespace waybill {
namespace {

using Kind = proto::ControllerMessage::KindCase;

// A job of two trainers and two workers, whose ranks are this test.
class CoordinatorTest : public testing::Test, public Outbox {
 protected:
  static constexpr ConnectionId kTrainer[] = {10, 11};
  static constexpr ConnectionId kWorker[] = {20, 21};

  void MakeCoordinator(DecisionLog* log = nullptr) {
    coordinator_ =
        std::make_unique<Coordinator>(CoordinatorOptions{.job = "test",
                                                         .join_timeout = absl::Seconds(60),
                                                         .publish_timeout = absl::Seconds(30),
                                                         .quiescence_timeout = absl::Seconds(1)},
                                      log, this);
  }

  void Send(ConnectionId connection, proto::ControllerMessage message) override {
    sent_[connection].push_back(std::move(message));
    order_.push_back({connection, sent_[connection].back().kind_case()});
  }
  void Close(ConnectionId connection) override { closed_.push_back(connection); }

  void Tell(ConnectionId from, const std::function<void(proto::RankMessage&)>& fill) {
    proto::RankMessage message;
    fill(message);
    coordinator_->OnMessage(from, message, now_);
  }

  void Join(ConnectionId connection, Role role, uint32_t rank,
            const std::function<void(proto::Join&)>& more = nullptr) {
    Tell(connection, [&](proto::RankMessage& m) {
      m.mutable_join()->set_protocol_version(kProtocolVersion);
      m.mutable_join()->set_job("test");
      m.mutable_join()->set_role(static_cast<uint32_t>(role));
      m.mutable_join()->set_rank(rank);
      m.mutable_join()->set_world(2);
      m.mutable_join()->set_group(groups_[rank]);
      if (more) more(*m.mutable_join());
    });
    Tell(connection, [&](proto::RankMessage& m) {
      m.mutable_manifest()->set_data(EncodeManifest(ManifestOf(role, rank)));
      m.mutable_manifest()->set_last(true);
    });
  }

  // Each trainer holds a row, and each worker wants both.
  virtual Manifest ManifestOf(Role role, uint32_t rank) {
    Manifest manifest;
    const int64_t rows = role == Role::kTrainer ? 1 : 2;
    const int64_t first = role == Role::kTrainer ? rank : 0;
    manifest.AddRegion("w", static_cast<uint64_t>(rows) * 8);
    manifest.AddShard(manifest.AddTensor("w", {2, 4}, Dtype::kBf16), {Dtype::kBf16},
                      Box({first, 0}, {first + rows, 4}), {0, 0, {4, 1}});
    return manifest;
  }

  void JoinAll() {
    for (const uint32_t rank : {0u, 1u}) {
      Join(kTrainer[rank], Role::kTrainer, rank);
      Join(kWorker[rank], Role::kWorker, rank);
    }
  }

  void Establish() {
    JoinAll();
    Connect();
  }

  // Everybody offers lanes and connects them, in the epoch at hand.
  void Connect() {
    const uint64_t epoch = coordinator_->Status().epoch();
    for (const ConnectionId connection : {kTrainer[0], kTrainer[1], kWorker[0], kWorker[1]}) {
      Tell(connection, [&](proto::RankMessage& m) { m.mutable_offers()->set_epoch(epoch); });
    }
    for (const ConnectionId connection : {kTrainer[0], kTrainer[1], kWorker[0], kWorker[1]}) {
      Tell(connection, [&](proto::RankMessage& m) { m.mutable_connected()->set_epoch(epoch); });
    }
    ASSERT_EQ(coordinator_->Status().phase(), "ready");
    sent_.clear();
    order_.clear();
  }

  void Publish(uint32_t trainer, uint64_t version, int64_t deadline_ms = 0) {
    Tell(kTrainer[trainer], [&](proto::RankMessage& m) {
      m.mutable_publish()->set_version(version);
      m.mutable_publish()->set_deadline_ms(deadline_ms);
    });
  }
  uint32_t sequence() { return Last(kWorker[0], Kind::kPrepare)->prepare().sequence(); }
  void Ready(uint32_t w) {
    Tell(kWorker[w], [&](auto& m) { m.mutable_ready()->set_sequence(sequence()); });
  }
  void Arrived(uint32_t w) {
    Tell(kWorker[w], [&](auto& m) { m.mutable_arrived()->set_sequence(sequence()); });
  }
  void Shown(uint32_t w) {
    Tell(kWorker[w], [&](auto& m) { m.mutable_shown()->set_sequence(sequence()); });
  }
  void Sent(uint32_t t) {
    Tell(kTrainer[t], [&](auto& m) { m.mutable_sent()->set_sequence(sequence()); });
  }

  // Both trainers publish, and both workers vote for it.
  void Decide(uint64_t version) {
    for (const uint32_t t : {0u, 1u}) Publish(t, version);
    for (const uint32_t w : {0u, 1u}) Ready(w);
    for (const uint32_t w : {0u, 1u}) Arrived(w);
  }

  const proto::ControllerMessage* Last(ConnectionId connection, Kind kind) {
    const proto::ControllerMessage* found = nullptr;
    for (const auto& message : sent_[connection]) {
      if (message.kind_case() == kind) found = &message;
    }
    return found;
  }
  int Count(ConnectionId connection, Kind kind) {
    int count = 0;
    for (const auto& message : sent_[connection]) count += message.kind_case() == kind ? 1 : 0;
    return count;
  }
  std::string Error(ConnectionId connection, Kind kind) {
    const proto::ControllerMessage* message = Last(connection, kind);
    if (message == nullptr) return "(no such message)";
    if (kind == Kind::kDismissal) return message->dismissal().error().message();
    if (kind == Kind::kPublishRefused) return message->publish_refused().error().message();
    if (kind == Kind::kOutcome) return message->outcome().error().message();
    return message->abort().error().message();
  }
  void Pass(absl::Duration time) {
    now_ += time;
    coordinator_->OnTime(now_);
  }

  std::vector<std::string> groups_ = {"all", "all"};
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  std::unique_ptr<Coordinator> coordinator_;
  std::map<ConnectionId, std::vector<proto::ControllerMessage>> sent_;
  std::vector<std::pair<ConnectionId, Kind>> order_;
  std::vector<ConnectionId> closed_;
};

TEST_F(CoordinatorTest, ATrainerStartsWhenItPublishedAndItsWorkersAreReady) {
  MakeCoordinator();
  Establish();
  Publish(0, 5);
  Ready(0);
  EXPECT_EQ(Count(kTrainer[0], Kind::kStart), 0);
  Ready(1);
  EXPECT_EQ(Count(kTrainer[0], Kind::kStart), 1);
  EXPECT_EQ(Count(kTrainer[1], Kind::kStart), 0);
  Publish(1, 5);
  EXPECT_EQ(Count(kTrainer[1], Kind::kStart), 1);
}

TEST_F(CoordinatorTest, ADecisionIsOnDiskBeforeTheFirstCommit) {
  const std::string path = testing::TempDir() + "/before_commit/decisions";
  auto log = DecisionLog::Open(path);
  ASSERT_TRUE(log.ok()) << log.status();
  MakeCoordinator(log->get());
  Establish();
  Publish(0, 5);
  Publish(1, 5);
  Ready(0);
  Ready(1);
  Arrived(0);
  EXPECT_TRUE((*log)->decisions().empty());
  EXPECT_EQ(Count(kWorker[0], Kind::kCommit), 0);
  Arrived(1);
  ASSERT_EQ((*log)->decisions().size(), 1u);
  EXPECT_EQ((*log)->decisions()[0], (Decision{1, 1, 5, "all"}));
  EXPECT_EQ(Count(kWorker[0], Kind::kCommit), 1);
  EXPECT_EQ(Count(kWorker[1], Kind::kCommit), 1);
  log->reset();
  const auto again = DecisionLog::Open(path);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->decisions().size(), 1u);
  EXPECT_EQ((*again)->last_epoch(), 1u);
}

TEST_F(CoordinatorTest, WhatIsDecidedIsNotTakenBack) {
  MakeCoordinator();
  Establish();
  Decide(5);
  Shown(0);
  Pass(absl::Minutes(5));  // Worker 1 has not said SHOWN by the deadline.
  EXPECT_EQ(Count(kWorker[1], Kind::kAbort), 0);
  ASSERT_NE(Last(kTrainer[0], Kind::kOutcome), nullptr);
  EXPECT_TRUE(Last(kTrainer[0], Kind::kOutcome)->outcome().committed());
  EXPECT_EQ(Error(kTrainer[0], Kind::kOutcome),
            "version 5: the deadline is over, waiting for SHOWN of worker 1");
}

TEST_F(CoordinatorTest, AWorkerThatLeavesWhenItHasShownAVersionIsNotLost) {
  MakeCoordinator();
  Establish();
  Decide(5);
  Shown(0);
  coordinator_->OnGone(kWorker[0], now_);
  Shown(1);
  ASSERT_NE(Last(kTrainer[0], Kind::kOutcome), nullptr);
  EXPECT_TRUE(Last(kTrainer[0], Kind::kOutcome)->outcome().committed());
  EXPECT_EQ(Error(kTrainer[0], Kind::kOutcome), "");
}

TEST_F(CoordinatorTest, AWorkerThatIsGoneBeforeItShowedAVersionIsNamed) {
  MakeCoordinator();
  Establish();
  Decide(5);
  coordinator_->OnGone(kWorker[0], now_);
  Shown(1);
  EXPECT_EQ(Error(kTrainer[0], Kind::kOutcome),
            "version 5 is committed, but lost before they showed it: worker 0");
}

TEST_F(CoordinatorTest, AWorkerThatCannotShowWhatIsDecidedIsNamedAndNotWaitedFor) {
  MakeCoordinator();
  Establish();
  Decide(5);
  Tell(kWorker[0], [&](auto& m) {
    m.mutable_failed()->set_sequence(sequence());
    *m.mutable_failed()->mutable_error() = EncodeError(absl::InternalError("the GPU is gone"));
  });
  Shown(1);
  EXPECT_EQ(Error(kTrainer[0], Kind::kOutcome),
            "version 5 is committed, but worker 0 cannot show it: the GPU is gone");
}

TEST_F(CoordinatorTest, ALostWorkerFailsItsGroupAndNoOther) {
  groups_ = {"a", "b"};
  MakeCoordinator();
  Establish();
  Publish(0, 5);
  Publish(1, 5);
  Ready(0);
  Ready(1);
  coordinator_->OnGone(kWorker[1], now_);
  EXPECT_EQ(Count(kTrainer[0], Kind::kAbort), 0);  // It goes on for group a.
  Arrived(0);
  EXPECT_EQ(Count(kWorker[0], Kind::kCommit), 1);
  EXPECT_EQ(Error(kTrainer[0], Kind::kOutcome), "worker 1 is gone: its stream ended");
}

TEST_F(CoordinatorTest, ALateTrainerTakesPartAlthoughAnotherGroupsWorkerIsGone) {
  groups_ = {"a", "b"};
  MakeCoordinator();
  Establish();
  Publish(0, 5);
  Ready(0);
  coordinator_->OnGone(kWorker[1], now_);
  Publish(1, 5);
  EXPECT_EQ(Count(kTrainer[1], Kind::kPublishRefused), 0);
  EXPECT_EQ(Count(kTrainer[1], Kind::kStart), 1);
  Arrived(0);
  EXPECT_EQ(Count(kWorker[0], Kind::kCommit), 1);
}

TEST_F(CoordinatorTest, AnotherVersionMeanwhileIsRefusedNamingBoth) {
  MakeCoordinator();
  Establish();
  Publish(0, 5);
  Publish(1, 6);
  EXPECT_EQ(Error(kTrainer[1], Kind::kPublishRefused),
            "publish version 6: version 5 is being published");
}

TEST_F(CoordinatorTest, TheEarliestDeadlineRules) {
  MakeCoordinator();
  Establish();
  Publish(0, 5, 20'000);
  Publish(1, 5, 10'000);
  Pass(absl::Seconds(9));
  EXPECT_EQ(Count(kWorker[0], Kind::kAbort), 0);
  Pass(absl::Seconds(1));
  EXPECT_EQ(Error(kWorker[0], Kind::kAbort),
            "version 5: the deadline is over, waiting for READY of worker 0, 1");
}

TEST_F(CoordinatorTest, ATrainerThatPublishesAfterTheAbortIsToldSo) {
  MakeCoordinator();
  Establish();
  Publish(0, 5);
  Tell(kWorker[0], [&](auto& m) {
    m.mutable_refused()->set_sequence(sequence());
    *m.mutable_refused()->mutable_error() = EncodeError(absl::UnavailableError("warming up"));
  });
  const int prepares = Count(kWorker[0], Kind::kPrepare);
  Publish(1, 5);
  EXPECT_EQ(Error(kTrainer[1], Kind::kPublishRefused), "worker 0 refused: warming up");
  EXPECT_EQ(Count(kWorker[0], Kind::kPrepare), prepares);
}

// The abort does not answer a publish that is on its way: that gets an answer of its own.
TEST_F(CoordinatorTest, AnAbortSaysWhetherItAnswersAPublish) {
  groups_ = {"a", "b"};
  MakeCoordinator();
  Establish();
  Publish(0, 5);
  for (const uint32_t w : {0u, 1u}) {
    EXPECT_EQ(Count(kTrainer[1], Kind::kAbort), 0);
    Tell(kWorker[w], [&](auto& m) {
      m.mutable_refused()->set_sequence(sequence());
      *m.mutable_refused()->mutable_error() = EncodeError(absl::UnavailableError("warming up"));
    });
  }
  ASSERT_EQ(Count(kTrainer[1], Kind::kAbort), 1);
  EXPECT_TRUE(Last(kTrainer[0], Kind::kAbort)->abort().published());
  EXPECT_FALSE(Last(kTrainer[1], Kind::kAbort)->abort().published());
  Publish(1, 5);
  EXPECT_EQ(Error(kTrainer[1], Kind::kPublishRefused), "worker 0 refused: warming up");
}

TEST_F(CoordinatorTest, AfterAnAbortTheNextPrepareWaitsForQuietTrainers) {
  MakeCoordinator();
  Establish();
  Publish(0, 5);
  Publish(1, 5);
  Ready(0);
  Ready(1);
  Pass(absl::Seconds(30));  // Aborted by the deadline, with both trainers writing.
  Publish(0, 6);
  EXPECT_EQ(Count(kWorker[0], Kind::kPrepare), 1);
  for (const uint32_t t : {0u, 1u}) {
    Tell(kTrainer[t], [&](auto& m) { m.mutable_stopped()->set_sequence(sequence()); });
  }
  ASSERT_EQ(Count(kWorker[0], Kind::kPrepare), 2);
  EXPECT_FALSE(Last(kWorker[0], Kind::kPrepare)->prepare().fence());
}

TEST_F(CoordinatorTest, ASilentTrainerIsFencedOff) {
  MakeCoordinator();
  Establish();
  Publish(0, 5);
  Publish(1, 5);
  Ready(0);
  Ready(1);
  Pass(absl::Seconds(30));
  Publish(0, 6);
  Tell(kTrainer[0], [&](auto& m) { m.mutable_stopped()->set_sequence(sequence()); });
  EXPECT_EQ(Count(kWorker[0], Kind::kPrepare), 1);
  Pass(absl::Seconds(1));
  ASSERT_EQ(Count(kWorker[0], Kind::kPrepare), 2);
  EXPECT_TRUE(Last(kWorker[0], Kind::kPrepare)->prepare().fence());
}

TEST_F(CoordinatorTest, AWorkerInDoubtCommitsIfARecordSaysSo) {
  const std::string path = testing::TempDir() + "/doubt_record/decisions";
  auto log = DecisionLog::Open(path);
  ASSERT_TRUE(log.ok()) << log.status();
  ASSERT_TRUE((*log)->BeginEpoch(3).ok());
  ASSERT_TRUE((*log)->Commit({3, 8, 5, "all"}).ok());
  MakeCoordinator(log->get());
  const auto doubtful = [](proto::Join& join) {
    join.set_shown_version(4);
    join.set_doubtful_epoch(3);
    join.set_doubtful_sequence(8);
    join.set_doubtful_version(5);
  };
  Join(kTrainer[0], Role::kTrainer, 0);
  Join(kTrainer[1], Role::kTrainer, 1);
  Join(kWorker[0], Role::kWorker, 0, doubtful);
  EXPECT_EQ(Count(kWorker[0], Kind::kCommit), 0);  // Not before everybody has answered.
  Join(kWorker[1], Role::kWorker, 1, doubtful);
  ASSERT_EQ(Count(kWorker[0], Kind::kCommit), 1);
  EXPECT_EQ(Last(kWorker[0], Kind::kCommit)->commit().sequence(), 8u);
  EXPECT_EQ(coordinator_->Status().epoch(), 4u);
}

TEST_F(CoordinatorTest, AWorkerInDoubtFollowsAMemberThatShowsTheVersion) {
  MakeCoordinator();
  Join(kTrainer[0], Role::kTrainer, 0);
  Join(kTrainer[1], Role::kTrainer, 1);
  Join(kWorker[0], Role::kWorker, 0, [](proto::Join& join) {
    join.set_doubtful_epoch(3);
    join.set_doubtful_sequence(8);
    join.set_doubtful_version(5);
  });
  Join(kWorker[1], Role::kWorker, 1, [](proto::Join& join) { join.set_shown_version(5); });
  EXPECT_EQ(Count(kWorker[0], Kind::kCommit), 1);
  EXPECT_EQ(coordinator_->Status().committed_version(), 5u);
}

TEST_F(CoordinatorTest, AWorkerInDoubtAbortsWhereNobodyCommitted) {
  MakeCoordinator();
  Join(kTrainer[0], Role::kTrainer, 0);
  Join(kTrainer[1], Role::kTrainer, 1);
  Join(kWorker[0], Role::kWorker, 0, [](proto::Join& join) {
    join.set_doubtful_epoch(3);
    join.set_doubtful_sequence(8);
    join.set_doubtful_version(5);
  });
  Join(kWorker[1], Role::kWorker, 1, [](proto::Join& join) { join.set_shown_version(4); });
  EXPECT_EQ(Count(kWorker[0], Kind::kCommit), 0);
  EXPECT_EQ(Count(kWorker[0], Kind::kAbort), 1);
}

TEST_F(CoordinatorTest, AReturningRankBeginsAnotherEpoch) {
  MakeCoordinator();
  Establish();
  coordinator_->OnGone(kTrainer[1], now_);
  Publish(0, 5);
  EXPECT_EQ(Error(kTrainer[0], Kind::kPublishRefused),
            "publish version 5: the job is not whole, waiting for trainer 1");
  Join(kTrainer[1], Role::kTrainer, 1);
  EXPECT_EQ(coordinator_->Status().epoch(), 2u);
  Connect();
}

TEST_F(CoordinatorTest, WhoWasPartOfAWholeJobWaitsForTheOthers) {
  MakeCoordinator();
  Establish();
  coordinator_->OnGone(kTrainer[1], now_);
  Pass(absl::Hours(1));
  EXPECT_TRUE(closed_.empty());
  // A newcomer is told in time that somebody else is missing.
  coordinator_->OnGone(kTrainer[0], now_);
  Join(kTrainer[0], Role::kTrainer, 0);
  Pass(absl::Seconds(60));
  EXPECT_EQ(closed_, std::vector<ConnectionId>{kTrainer[0]});
  EXPECT_EQ(Error(kTrainer[0], Kind::kDismissal),
            "job \"test\" is not whole after 1m: missing trainer 1");
}

TEST_F(CoordinatorTest, AtTheJoinDeadlineTheMissingAreNamed) {
  MakeCoordinator();
  Join(kTrainer[0], Role::kTrainer, 0);
  Pass(absl::Seconds(60));
  EXPECT_EQ(Error(kTrainer[0], Kind::kDismissal),
            "job \"test\" is not whole after 1m: missing trainer 1, every worker");
  EXPECT_EQ(closed_, std::vector<ConnectionId>{kTrainer[0]});
}

// A matrix of three rows of blocks. The middle one is split between the trainers and between the
// workers: trainer 1 writes to worker 1 only, and worker 0's part needs its maxima all the same.
class TradingCoordinatorTest : public CoordinatorTest {
 protected:
  TradingCoordinatorTest() { groups_ = {"a", "b"}; }

  Manifest ManifestOf(Role role, uint32_t rank) override {
    const Quantisation q = {.block_rows = 16, .block_columns = 16};
    const int64_t cut = role == Role::kTrainer ? 21 : 19;
    const Box box({rank == 0 ? 0 : cut, 0}, {rank == 0 ? cut : 48, 16});
    Manifest manifest;
    manifest.AddTensor("w", {48, 16}, Dtype::kBf16);
    const auto elements = static_cast<uint64_t>(box.element_count());
    manifest.AddRegion("w", role == Role::kTrainer ? elements * 2 : elements);
    if (role == Role::kTrainer) {
      manifest.AddShard(0, {Dtype::kBf16}, box, {0, 0, {16, 1}});
      return manifest;
    }
    const Box cells = CellsMeeting(box, ScaleExtents(q, {48, 16}));
    manifest.AddRegion("scales", static_cast<uint64_t>(cells.element_count()) * 4);
    manifest.AddShard(0, Format::Quantised(q), box, {0, 0, {16, 1}});
    manifest.AddShard(0, Format::Scales(q), cells, {1, 0, {1, 1}});
    return manifest;
  }

  struct OfferedLane {
    uint32_t peer;
    std::string address;
    bool co_owner = false;
  };
  void Offer(ConnectionId connection, const std::vector<OfferedLane>& lanes,
             const std::string& mailbox = "") {
    Tell(connection, [&](proto::RankMessage& m) {
      m.mutable_offers()->set_epoch(coordinator_->Status().epoch());
      m.mutable_offers()->set_mailbox(mailbox);
      for (const OfferedLane& lane : lanes) {
        proto::Lane* offered = m.mutable_offers()->add_lanes();
        offered->set_peer(lane.peer);
        offered->set_address(lane.address);
        offered->set_co_owner(lane.co_owner);
      }
    });
  }

  // "co-owner 1 at t1-t0 with mailbox 1", a line for each peer.
  std::string ToConnect(ConnectionId connection) {
    const proto::ControllerMessage* message = Last(connection, Kind::kConnect);
    if (message == nullptr) return Error(connection, Kind::kDismissal);
    std::string text;
    for (const proto::Peer& peer : message->connect().peers()) {
      text += (peer.co_owner() ? "co-owner " : "peer ") + std::to_string(peer.rank()) + " at";
      for (const std::string& address : peer.lane_addresses()) text += " " + address;
      if (!peer.mailbox().empty()) text += " with " + peer.mailbox();
      text += "\n";
    }
    return text;
  }

  void LoseLaneBetweenTrainers() {
    Tell(kTrainer[0], [&](proto::RankMessage& m) {
      m.mutable_failed()->set_lane(true);
      m.mutable_failed()->set_co_owner(true);
      m.mutable_failed()->set_peer(1);
      *m.mutable_failed()->mutable_error() = EncodeError(absl::UnavailableError("torn"));
    });
  }

  void PublishAll(uint64_t version) {
    for (const uint32_t t : {0u, 1u}) Publish(t, version);
  }
};

TEST_F(TradingCoordinatorTest, CoOwnersLearnEachOthersLanesAndMailboxesAndNobodyElseDoes) {
  MakeCoordinator();
  JoinAll();
  Offer(kTrainer[0], {{0, "t0-w0"}, {1, "t0-w1"}, {1, "t0-t1", true}}, "mailbox 0");
  Offer(kTrainer[1], {{1, "t1-w1"}, {0, "t1-t0", true}}, "mailbox 1");
  Offer(kWorker[0], {{0, "w0-t0"}});
  Offer(kWorker[1], {{0, "w1-t0"}, {1, "w1-t1"}});
  EXPECT_EQ(ToConnect(kTrainer[0]),
            "co-owner 1 at t1-t0 with mailbox 1\npeer 0 at w0-t0\npeer 1 at w1-t0\n");
  EXPECT_EQ(ToConnect(kTrainer[1]), "co-owner 0 at t0-t1 with mailbox 0\npeer 1 at w1-t1\n");
  EXPECT_EQ(ToConnect(kWorker[0]), "peer 0 at t0-w0\n");
  EXPECT_EQ(ToConnect(kWorker[1]), "peer 0 at t0-w1\npeer 1 at t1-w1\n");
}

TEST_F(TradingCoordinatorTest, WhoseOwnGroupsAreGivenUpStartsForTheMaximaOfOthers) {
  MakeCoordinator();
  Establish();
  PublishAll(5);
  Ready(0);
  EXPECT_EQ(Count(kTrainer[1], Kind::kStart), 0);
  Tell(kWorker[1], [&](auto& m) {
    m.mutable_refused()->set_sequence(sequence());
    *m.mutable_refused()->mutable_error() = EncodeError(absl::UnavailableError("warming up"));
  });
  EXPECT_EQ(Count(kTrainer[1], Kind::kAbort), 0);
  ASSERT_EQ(Count(kTrainer[1], Kind::kStart), 1);
  EXPECT_EQ(Last(kTrainer[1], Kind::kStart)->start().targets_size(), 0);
  ASSERT_EQ(Count(kTrainer[0], Kind::kStart), 1);
  ASSERT_EQ(Last(kTrainer[0], Kind::kStart)->start().targets_size(), 1);
  EXPECT_EQ(Last(kTrainer[0], Kind::kStart)->start().targets(0).worker(), 0u);
  // The next update waits for what trainer 1 may still be sending to trainer 0.
  Arrived(0);
  Shown(0);
  Sent(0);
  EXPECT_EQ(coordinator_->Status().committed_version(), 5u);
  PublishAll(6);
  EXPECT_EQ(Count(kWorker[0], Kind::kPrepare), 1);
  Sent(1);
  EXPECT_EQ(Count(kWorker[0], Kind::kPrepare), 2);
}

TEST_F(TradingCoordinatorTest, ALateTrainerOfGivenUpGroupsStartsAsSoonAsItPublishes) {
  MakeCoordinator();
  Establish();
  Publish(0, 5);
  Ready(0);
  coordinator_->OnGone(kWorker[1], now_);
  EXPECT_EQ(Count(kTrainer[1], Kind::kStart), 0);
  Publish(1, 5);
  EXPECT_EQ(Count(kTrainer[1], Kind::kStart), 1);
}

// Trainer 1 writes to worker 1 only; nothing is quantised here that it would trade for.
class SeparateCoordinatorTest : public TradingCoordinatorTest {
 protected:
  Manifest ManifestOf(Role, uint32_t rank) override {
    const Box box({rank * 4, 0}, {rank * 4 + 4, 4});
    Manifest manifest;
    manifest.AddRegion("w", 32);
    manifest.AddShard(manifest.AddTensor("w", {8, 4}, Dtype::kBf16), {Dtype::kBf16}, box,
                      {0, 0, {4, 1}});
    return manifest;
  }
};

TEST_F(SeparateCoordinatorTest, WhoPublishesForGivenUpGroupsOnlyIsToldWhileOthersGoOn) {
  MakeCoordinator();
  Establish();
  Publish(0, 5);
  Ready(0);
  coordinator_->OnGone(kWorker[1], now_);
  EXPECT_FALSE(Last(kTrainer[1], Kind::kAbort)->abort().published());
  Publish(1, 5);
  EXPECT_EQ(Count(kTrainer[1], Kind::kStart), 0);
  EXPECT_TRUE(Last(kTrainer[1], Kind::kAbort)->abort().published());
  EXPECT_EQ(Error(kTrainer[1], Kind::kAbort), "worker 1 is gone: its stream ended");
  EXPECT_EQ(Count(kTrainer[0], Kind::kAbort), 0);
}

TEST_F(TradingCoordinatorTest, ALostLaneBetweenCoOwnersAbortsWhatHasNotArrivedAndLeadsToNewLanes) {
  MakeCoordinator();
  Establish();
  PublishAll(5);
  Ready(0);
  Ready(1);
  Arrived(0);  // Decided: it has all that it needs.
  LoseLaneBetweenTrainers();
  EXPECT_EQ(Count(kWorker[0], Kind::kAbort), 0);
  EXPECT_EQ(Error(kWorker[1], Kind::kAbort), "lane between trainer 0 and trainer 1: torn");
  EXPECT_EQ(Error(kTrainer[0], Kind::kAbort), "lane between trainer 0 and trainer 1: torn");
  EXPECT_EQ(coordinator_->Status().epoch(), 1u);  // Until the update is over.
  Shown(0);
  EXPECT_EQ(coordinator_->Status().epoch(), 2u);
  EXPECT_EQ(coordinator_->Status().lanes_lost(), 1u);
  Connect();
}

TEST_F(TradingCoordinatorTest, ALostLaneBetweenCoOwnersLeadsToNewLanesBetweenUpdatesToo) {
  MakeCoordinator();
  Establish();
  LoseLaneBetweenTrainers();
  EXPECT_EQ(coordinator_->Status().epoch(), 2u);
  PublishAll(5);  // Waits for the lanes.
  EXPECT_EQ(Count(kWorker[0], Kind::kPrepare), 0);
  LoseLaneBetweenTrainers();  // The other end's word of it.
  const uint64_t epoch = coordinator_->Status().epoch();
  for (const ConnectionId connection : {kTrainer[0], kTrainer[1], kWorker[0], kWorker[1]}) {
    Offer(connection, {});
  }
  for (const ConnectionId connection : {kTrainer[0], kTrainer[1], kWorker[0], kWorker[1]}) {
    Tell(connection, [&](proto::RankMessage& m) { m.mutable_connected()->set_epoch(epoch); });
  }
  EXPECT_EQ(Count(kWorker[0], Kind::kPrepare), 1);
  EXPECT_EQ(coordinator_->Status().epoch(), 2u);
}

TEST_F(TradingCoordinatorTest, ATrainerThatIsGoneAbortsWhatIsQuantisedByItsMaxima) {
  MakeCoordinator();
  Establish();
  PublishAll(5);
  Ready(0);
  Ready(1);
  coordinator_->OnGone(kTrainer[1], now_);
  for (const uint32_t w : {0u, 1u}) {
    EXPECT_EQ(Error(kWorker[w], Kind::kAbort), "trainer 1 is gone: its stream ended");
  }
}

TEST_F(TradingCoordinatorTest, ATrainerThatIsGoneAbortsNothingThatHasArrived) {
  MakeCoordinator();
  Establish();
  PublishAll(5);
  Ready(0);
  Ready(1);
  Arrived(0);
  coordinator_->OnGone(kTrainer[1], now_);
  EXPECT_EQ(Count(kWorker[0], Kind::kAbort), 0);
  EXPECT_EQ(Count(kWorker[0], Kind::kCommit), 1);
  EXPECT_EQ(Count(kWorker[1], Kind::kAbort), 1);
}

}  // namespace
}  // namespace waybill
