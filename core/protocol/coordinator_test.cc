// SPDX-License-Identifier: Apache-2.0

// The rules of membership and of the two-phase commit, message by message: no sockets, no clocks.

#include "core/protocol/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <ctime>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/deflate.h"
#include "core/base/sha256.h"
#include "core/plan/plan_codec.h"
#include "core/protocol/message_codec.h"
#include "core/tensor/manifest_codec.h"
#include "core/tensor/replica_units.h"

namespace waybill {
namespace {

using Kind = proto::ControllerMessage::KindCase;

// A job of two trainers and two workers, whose ranks are this test. Jobs run, and decisions are
// recorded, before the next message, unless the test holds them.
class CoordinatorTest : public testing::Test, public CoordinatorActions {
 protected:
  static constexpr ConnectionId kTrainer[] = {10, 11};
  static constexpr ConnectionId kWorker[] = {20, 21};

  void MakeCoordinator(const std::vector<Decision>& decisions = {}, bool durable = false) {
    coordinator_ =
        std::make_unique<Coordinator>(CoordinatorOptions{.job = "test",
                                                         .required_groups = required_,
                                                         .incarnation = 7,
                                                         .decisions_are_durable = durable,
                                                         .join_timeout = absl::Seconds(60),
                                                         .absence_timeout = absl::Seconds(5),
                                                         .relays = relays_},
                                      decisions, this);
  }

  void Send(ConnectionId connection, proto::ControllerMessage message) override {
    if (message.has_plan()) {
      epoch_ = message.plan().epoch();
      epochs_[message.plan().group()] = epoch_;
    }
    if (message.has_part_wanted()) wanted_.emplace_back(connection, message.part_wanted().name());
    sent_[connection].push_back(std::move(message));
  }
  void Close(ConnectionId connection) override { closed_.push_back(connection); }
  void Compute(Work work) override { work_.push_back(std::move(work)); }
  void Record(uint64_t ticket, const Decision& decision) override {
    recording_.push_back({ticket, decision});
  }

  void Forget(const std::string& group) override { forgotten_.push_back(group); }

  void RunJobs() {
    while (!work_.empty() || (!hold_parts_ && !wanted_.empty()) ||
           (!hold_records_ && !recording_.empty())) {
      if (!hold_parts_) SendParts();
      for (const Work& work : std::exchange(work_, {})) work(InTurn)(now_);
      if (!hold_records_) EndRecords(Recorded::kDurable);
    }
  }
  void EndRecords(Recorded recorded, const absl::Status& status = absl::OkStatus()) {
    for (const auto& [ticket, decision] : std::exchange(recording_, {})) {
      if (recorded == Recorded::kDurable) recorded_.push_back(decision);
      coordinator_->OnRecorded(ticket, recorded, status, now_);
    }
  }

  void Tell(ConnectionId from, const std::function<void(proto::RankMessage&)>& fill) {
    proto::RankMessage message;
    fill(message);
    coordinator_->OnMessage(from, message, now_);
    RunJobs();
  }
  void Gone(ConnectionId connection) {
    coordinator_->OnGone(connection, now_);
    RunJobs();
  }
  proto::Round round(uint32_t w = 0) { return Last(kWorker[w], Kind::kPrepare)->prepare().round(); }

  void Join(ConnectionId connection, Role role, uint32_t rank,
            const std::function<void(proto::Join&)>& more = nullptr) {
    Tell(connection, [&](proto::RankMessage& m) {
      m.mutable_join()->set_protocol_version(kProtocolVersion);
      m.mutable_join()->set_job("test");
      m.mutable_join()->set_role(static_cast<uint32_t>(role));
      m.mutable_join()->set_rank(role == Role::kWorker ? RankOf(rank) : rank);
      m.mutable_join()->set_world(role == Role::kWorker && groups_[0] != groups_[1] ? 1 : 2);
      m.mutable_join()->set_incarnation(connection);
      m.mutable_join()->set_mode(static_cast<uint32_t>(Mode::kShadow));
      m.mutable_join()->set_group(groups_[rank]);
      if (more) more(*m.mutable_join());
    });
    const EncodedManifest& manifest = manifests_[connection] =
        EncodeInParts(ManifestOf(role, rank));
    Tell(connection, [&](auto& m) { m.mutable_manifest()->set_head(manifest.head); });
  }

  // Sends the parts that the coordinator has asked for.
  void SendParts() {
    for (const auto& [from, name] : std::exchange(wanted_, {})) {
      const EncodedManifest& manifest = manifests_[from];
      proto::RankMessage message;
      *message.mutable_part()->mutable_name() = name;
      message.mutable_part()->set_deflated(
          Deflate(static_cast<PartKind>(name.kind()) == PartKind::kTensors ? manifest.tensors
                                                                           : manifest.holdings));
      coordinator_->OnMessage(from, message, now_);
    }
  }

  // Each trainer holds a row, and each worker wants both.
  virtual Manifest ManifestOf(Role role, uint32_t rank) {
    Manifest manifest;
    const int64_t rows = role == Role::kTrainer ? 1 : 2;
    const int64_t first = role == Role::kTrainer ? (swapped_ ? 1 - rank : rank) : 0;
    manifest.AddRegion("w", first_byte_ + static_cast<uint64_t>(rows) * 8);
    manifest.AddShard(manifest.AddTensor(stranger_ ? "v" : "w", {2, 4}, Dtype::kBf16),
                      {Dtype::kBf16}, Box({first, 0}, {first + rows, 4}), {0, first_byte_, {4, 1}});
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

  // A worker's rank within its group.
  uint32_t RankOf(uint32_t w) const { return groups_[0] == groups_[1] ? w : 0; }
  std::vector<ConnectionId> TermOf(const std::string& group) const {
    std::vector<ConnectionId> term = {kTrainer[0], kTrainer[1]};
    for (const uint32_t w : {0u, 1u}) {
      if (groups_[w] == group) term.push_back(kWorker[w]);
    }
    return term;
  }
  void OfferIn(const std::string& group) {
    for (const ConnectionId connection : TermOf(group)) {
      Tell(connection, [&](auto& m) { m.mutable_offers()->set_epoch(epochs_.at(group)); });
    }
  }
  void ConnectIn(const std::string& group) {
    for (const ConnectionId connection : TermOf(group)) {
      Tell(connection, [&](auto& m) { m.mutable_connected()->set_epoch(epochs_.at(group)); });
    }
  }

  // Worker 0 is group "a", which is whole; worker 1 is to be group "b".
  void EstablishGroupA() {
    groups_ = {"a", "b"};
    MakeCoordinator();
    for (const uint32_t t : {0u, 1u}) Join(kTrainer[t], Role::kTrainer, t);
    Join(kWorker[0], Role::kWorker, 0);
    OfferIn("a");
    ConnectIn("a");
  }

  // Everybody offers lanes and connects them, in the terms at hand.
  void Connect() {
    for (const std::string& group : std::set<std::string>(groups_.begin(), groups_.end())) {
      OfferIn(group);
      ConnectIn(group);
    }
    ASSERT_EQ(coordinator_->Status().phase(), "ready");
    sent_.clear();
  }

  void LoseALane() {
    Tell(kTrainer[0], [&](auto& m) {
      m.mutable_lane_failed()->set_epoch(epoch_);
      *m.mutable_lane_failed()->mutable_error() = EncodeError(absl::UnavailableError("torn"));
    });
  }
  void Publish(uint32_t trainer, uint64_t version, int64_t deadline_ms = 0) {
    Tell(kTrainer[trainer], [&](proto::RankMessage& m) {
      m.mutable_publish()->set_version(version);
      m.mutable_publish()->set_deadline_ms(deadline_ms);
      m.mutable_publish()->set_composition(composition_);
    });
  }
  void Ready(uint32_t w) {
    Tell(kWorker[w], [&](auto& m) { *m.mutable_ready()->mutable_round() = round(w); });
  }
  void Arrived(uint32_t w) {
    Tell(kWorker[w], [&](auto& m) { *m.mutable_arrived()->mutable_round() = round(w); });
  }
  void Shown(uint32_t w, bool unchanged = false) {
    Tell(kWorker[w], [&](auto& m) {
      *m.mutable_shown()->mutable_round() = round(w);
      const proto::Prepare& prepare = Last(kWorker[w], Kind::kPrepare)->prepare();
      m.mutable_shown()->set_version(prepare.version());
      m.mutable_shown()->set_composition(prepare.composition());
      m.mutable_shown()->set_unchanged(unchanged);
    });
  }
  // As the trainer says once it has sent a version with attempt 30 + t; 0: it holds none any more.
  void Hold(uint32_t t, uint64_t version) {
    Tell(kTrainer[t], [&](auto& m) {
      m.mutable_held()->set_version(version);
      m.mutable_held()->set_attempt(30 + t);
      m.mutable_held()->set_composition(composition_);
    });
  }
  void Refuse(uint32_t w) {
    Tell(kWorker[w], [&](auto& m) {
      *m.mutable_refused()->mutable_round() = round(w);
      *m.mutable_refused()->mutable_error() = EncodeError(absl::UnavailableError("warming up"));
    });
  }
  void Sent(uint32_t t) {
    Tell(kTrainer[t], [&](auto& m) { *m.mutable_sent()->mutable_round() = round(); });
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
    RunJobs();
    EXPECT_GT(coordinator_->next_deadline(), now_);
  }

  std::vector<std::string> groups_ = {"all", "all"};
  std::set<std::string> required_;
  Relays relays_ = Relays::kNever;
  bool stranger_ = false;     // Workers want a tensor that no trainer has.
  bool swapped_ = false;      // Trainers hold each other's rows.
  uint64_t composition_ = 0;  // The composition that trainers publish and hold, and workers show.
  uint64_t first_byte_ = 0;   // Where the shard of a rank that joins begins in its region.
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  std::unique_ptr<Coordinator> coordinator_;
  std::map<ConnectionId, std::vector<proto::ControllerMessage>> sent_;
  uint64_t epoch_ = 0;                      // The newest.
  std::map<std::string, uint64_t> epochs_;  // By group.
  std::vector<Work> work_;
  std::map<ConnectionId, EncodedManifest> manifests_;
  std::vector<std::pair<ConnectionId, proto::PartName>> wanted_;  // Asked for, and not sent.
  bool hold_parts_ = false;
  std::vector<std::pair<uint64_t, Decision>> recording_;
  bool hold_records_ = false;
  std::vector<Decision> recorded_;
  std::vector<ConnectionId> closed_;
  std::vector<std::string> forgotten_;
};

TEST_F(CoordinatorTest, WorkersThatHoldTheSameSendItOnce) {
  MakeCoordinator();
  JoinAll();
  EXPECT_EQ(Count(kWorker[0], Kind::kPartWanted) + Count(kWorker[1], Kind::kPartWanted), 1);
  EXPECT_EQ(Count(kWorker[1], Kind::kPlan), 1);
}

TEST_F(CoordinatorTest, ARankThatHangsOrGoesAwayWithAPartDoesNotKeepOthersFromJoining) {
  for (const bool goes : {false, true}) {
    SCOPED_TRACE(goes);
    hold_parts_ = true;
    MakeCoordinator();
    JoinAll();
    wanted_.clear();  // Whoever was asked says nothing.
    hold_parts_ = false;
    const bool first = Count(kWorker[0], Kind::kPartWanted) > 0;
    const ConnectionId silent = kWorker[first ? 0 : 1], other = kWorker[first ? 1 : 0];
    EXPECT_EQ(Count(other, Kind::kPartWanted), 0);
    if (goes) {
      Gone(silent);
    } else {
      now_ = coordinator_->next_deadline();
      coordinator_->OnTime(now_);
      RunJobs();
    }
    EXPECT_GT(Count(other, Kind::kPartWanted), 0);
    sent_.clear();
    work_.clear();
  }
}

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

TEST_F(CoordinatorTest, TrainersHearOfTheVersionThatAWorkerHasBesides) {
  MakeCoordinator();
  Establish();
  Publish(0, 5);
  Tell(kWorker[0], [&](auto& m) {
    *m.mutable_ready()->mutable_round() = round(0);
    m.mutable_ready()->set_base(4);
  });
  Ready(1);
  const proto::ControllerMessage* start = Last(kTrainer[0], Kind::kStart);
  ASSERT_NE(start, nullptr);
  ASSERT_EQ(start->start().targets_size(), 2);
  EXPECT_EQ(start->start().targets(0).base(), 4u);
  EXPECT_EQ(start->start().targets(1).base(), 0u);
}

TEST_F(CoordinatorTest, AVersionThatCameOutWrongForItsBaseIsSentOnceMore) {
  MakeCoordinator();
  Establish();
  for (const uint32_t t : {0u, 1u}) Publish(t, 5);
  for (const uint32_t w : {0u, 1u}) Ready(w);
  const proto::Round first = round(0);
  Tell(kWorker[0], [&](auto& m) {
    *m.mutable_failed()->mutable_round() = first;
    *m.mutable_failed()->mutable_error() = EncodeError(absl::DataLossError("a digest"));
    m.mutable_failed()->set_wrong_base(true);
  });
  for (const ConnectionId rank : {kTrainer[0], kTrainer[1], kWorker[0], kWorker[1]}) {
    ASSERT_NE(Last(rank, Kind::kAbort), nullptr);
    EXPECT_TRUE(Last(rank, Kind::kAbort)->abort().again());
  }
  EXPECT_EQ(Count(kTrainer[0], Kind::kOutcome), 0);
  EXPECT_EQ(Count(kWorker[1], Kind::kPrepare), 2);
  EXPECT_NE(round(0).sequence(), first.sequence());
  for (const uint32_t w : {0u, 1u}) Ready(w);
  EXPECT_EQ(Count(kTrainer[0], Kind::kStart), 2);
  for (const uint32_t w : {0u, 1u}) Arrived(w);
  for (const uint32_t w : {0u, 1u}) Shown(w);
  ASSERT_EQ(Count(kTrainer[0], Kind::kOutcome), 1);
  EXPECT_TRUE(Last(kTrainer[0], Kind::kOutcome)->outcome().committed());
}

TEST_F(CoordinatorTest, ADecisionIsRecordedBeforeTheFirstCommit) {
  MakeCoordinator();
  Establish();
  hold_records_ = true;
  Decide(5);
  EXPECT_EQ(Count(kWorker[0], Kind::kCommit), 0);
  ASSERT_EQ(recording_.size(), 1u);
  EndRecords(Recorded::kDurable);
  EXPECT_EQ(recorded_, (std::vector<Decision>{{epoch_, 1, 5, "all"}}));
  EXPECT_EQ(Count(kWorker[0], Kind::kCommit), 1);
  EXPECT_EQ(Count(kWorker[1], Kind::kCommit), 1);
}

TEST_F(CoordinatorTest, ADecisionThatCertainlyWasNotRecordedIsAnAbort) {
  MakeCoordinator();
  Establish();
  hold_records_ = true;
  Decide(5);
  EndRecords(Recorded::kNotRecorded, absl::UnavailableError("no space left"));
  EXPECT_EQ(Count(kWorker[0], Kind::kCommit), 0);
  EXPECT_EQ(Error(kWorker[0], Kind::kAbort), "record the decision to commit: no space left");
}

TEST_F(CoordinatorTest, AfterARecordThatMayOrMayNotBeThereNothingIsDecided) {
  MakeCoordinator();
  Establish();
  hold_records_ = true;
  Decide(5);
  EndRecords(Recorded::kUnknown, absl::UnavailableError("input/output error"));
  EXPECT_EQ(Count(kWorker[0], Kind::kCommit) + Count(kWorker[0], Kind::kAbort), 0);
  EXPECT_EQ(closed_.size(), 4u);  // The ranks come back to the controller that takes its place.
  EXPECT_EQ(coordinator_->Status().phase(), "halted");
}

// While the record is being written, neither the deadline nor a lost worker undoes the vote.
TEST_F(CoordinatorTest, AnUpdateWhoseRecordIsOnItsWayCannotBeAborted) {
  MakeCoordinator();
  Establish();
  hold_records_ = true;
  Decide(5);
  Gone(kWorker[1]);
  Pass(absl::Minutes(5));
  EXPECT_EQ(Count(kWorker[0], Kind::kAbort), 0);
  EndRecords(Recorded::kDurable);
  EXPECT_EQ(Count(kWorker[0], Kind::kCommit), 1);
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
            "version 5: the deadline is over, waiting for SHOWN of worker 1 (its readers, or its "
            "program's answer to COMMIT)");
}

TEST_F(CoordinatorTest, AWorkerThatLeavesWhenItHasShownAVersionIsNotLost) {
  MakeCoordinator();
  Establish();
  Decide(5);
  Shown(0);
  Gone(kWorker[0]);
  Shown(1);
  ASSERT_NE(Last(kTrainer[0], Kind::kOutcome), nullptr);
  EXPECT_TRUE(Last(kTrainer[0], Kind::kOutcome)->outcome().committed());
  EXPECT_EQ(Error(kTrainer[0], Kind::kOutcome), "");
}

TEST_F(CoordinatorTest, AWorkerThatIsGoneBeforeItShowedAVersionIsNamed) {
  MakeCoordinator();
  Establish();
  Decide(5);
  Gone(kWorker[0]);
  Shown(1);
  EXPECT_EQ(Error(kTrainer[0], Kind::kOutcome),
            "version 5 is committed, but lost before they showed it: worker 0");
}

TEST_F(CoordinatorTest, AWorkerThatCannotShowWhatIsDecidedIsNamedAndNotWaitedFor) {
  MakeCoordinator();
  Establish();
  Decide(5);
  Tell(kWorker[0], [&](auto& m) {
    *m.mutable_failed()->mutable_round() = round();
    *m.mutable_failed()->mutable_error() = EncodeError(absl::InternalError("the GPU is gone"));
  });
  Shown(1);
  EXPECT_EQ(Error(kTrainer[0], Kind::kOutcome),
            "version 5 is committed, but worker 0 cannot show it: the GPU is gone");
}

// Also one that comes back, to this controller or to another one, and whose round is over.
TEST_F(CoordinatorTest, ATrainerThatComesBackHearsWhoCannotUseWhatIsCommitted) {
  for (const bool here : {true, false}) {
    SCOPED_TRACE(here);
    MakeCoordinator();
    Establish();
    Decide(5);
    const proto::Round of = round();
    for (const uint32_t w : {0u, 1u}) Shown(w);
    Gone(kTrainer[1]);
    proto::Unusable unusable;
    unusable.set_version(5);
    *unusable.mutable_error() = EncodeError(absl::InternalError("no room"));
    if (here) {
      Tell(kWorker[0], [&](auto& m) {
        *m.mutable_failed()->mutable_round() = of;
        *m.mutable_failed()->mutable_error() = unusable.error();
      });
    } else {
      Gone(kWorker[0]);
      Join(kWorker[0], Role::kWorker, 0, [&](proto::Join& join) {
        join.set_shown_version(5);
        *join.mutable_unusable() = unusable;
      });
    }
    Join(kTrainer[1], Role::kTrainer, 1, [](proto::Join& join) { join.add_undecided_versions(5); });
    OfferIn("all");
    ConnectIn("all");
    ASSERT_NE(Last(kTrainer[1], Kind::kOutcome), nullptr);
    EXPECT_TRUE(Last(kTrainer[1], Kind::kOutcome)->outcome().committed());
    EXPECT_EQ(Error(kTrainer[1], Kind::kOutcome),
              "version 5 is committed, but worker 0 cannot show it: no room");
  }
}

// Also if no decision is known, but a worker that shows the version.
TEST_F(CoordinatorTest, ATrainerThatComesBackHearsOfACommitOnceWorkersHaveShownItOrCannot) {
  for (const bool known : {true, false}) {
    for (const bool shows : {true, false}) {
      SCOPED_TRACE(absl::StrCat(known, shows));
      std::vector<Decision> decisions;
      if (known) decisions = {{.epoch = 1, .sequence = 1, .version = 5, .group = "all"}};
      MakeCoordinator(decisions, /*durable=*/known);
      proto::Round of;
      of.set_epoch(1);
      of.set_sequence(1);
      for (const uint32_t t : {0u, 1u}) {
        Join(kTrainer[t], Role::kTrainer, t,
             [](proto::Join& join) { join.add_undecided_versions(5); });
      }
      Join(kWorker[1], Role::kWorker, 1, [](proto::Join& join) { join.set_shown_version(5); });
      Join(kWorker[0], Role::kWorker, 0, [&](proto::Join& join) {
        join.set_shown_version(4);
        *join.mutable_doubt()->mutable_round() = of;
        join.mutable_doubt()->set_version(5);
      });
      OfferIn("all");
      ConnectIn("all");
      ASSERT_EQ(Count(kWorker[0], Kind::kCommit), 1);
      EXPECT_EQ(Count(kTrainer[0], Kind::kOutcome), 0);
      // The next version does not wait.
      for (const uint32_t t : {0u, 1u}) Publish(t, 6);
      ASSERT_EQ(Count(kWorker[0], Kind::kPrepare), 1);
      Tell(kWorker[0], [&](auto& m) {
        if (shows) {
          *m.mutable_shown()->mutable_round() = of;
          m.mutable_shown()->set_version(5);
        } else {
          *m.mutable_failed()->mutable_round() = of;
          *m.mutable_failed()->mutable_error() = EncodeError(absl::InternalError("no room"));
          m.mutable_failed()->set_version(5);
        }
      });
      for (const uint32_t t : {0u, 1u}) {
        ASSERT_EQ(Count(kTrainer[t], Kind::kOutcome), 1);
        EXPECT_EQ(Last(kTrainer[t], Kind::kOutcome)->outcome().version(), 5u);
        EXPECT_TRUE(Last(kTrainer[t], Kind::kOutcome)->outcome().committed());
        EXPECT_EQ(Error(kTrainer[t], Kind::kOutcome),
                  shows ? "" : "version 5 is committed, but worker 0 cannot show it: no room");
      }
      sent_.clear();
    }
  }
}

// A round belongs to the ranks that it began with, whatever ranks the job has by then.
TEST_F(CoordinatorTest, TrainersOfAnotherNumberAreNoMembersOfARoundThatIsNotOver) {
  for (const bool recorded : {true, false}) {
    SCOPED_TRACE(recorded);
    MakeCoordinator();
    Establish();
    hold_records_ = !recorded;
    Decide(5);
    const proto::Round of = round();
    for (const ConnectionId trainer : kTrainer) Gone(trainer);
    const auto fail_lane = [&](bool co_owner) {
      Tell(33, [&](auto& m) {
        m.mutable_lane_failed()->set_epoch(of.epoch());
        m.mutable_lane_failed()->set_co_owner(co_owner);
        *m.mutable_lane_failed()->mutable_error() = EncodeError(absl::UnavailableError("torn"));
      });
    };
    for (const uint32_t rank : {0u, 1u, 2u, 3u}) {
      Join(30 + rank, Role::kTrainer, rank % 2, [&](proto::Join& join) {
        join.set_rank(rank);
        join.set_world(4);
      });
    }
    Tell(33, [&](auto& m) { m.mutable_publish()->set_version(5); });
    Tell(33, [&](auto& m) { m.mutable_withdraw()->set_version(5); });
    Tell(33, [&](auto& m) { *m.mutable_failed()->mutable_round() = of; });
    Tell(33, [&](auto& m) { *m.mutable_kept()->mutable_round() = of; });
    fail_lane(/*co_owner=*/false);
    fail_lane(/*co_owner=*/true);
    Tell(33, [&](auto& m) { m.mutable_connect_failed()->set_epoch(of.epoch()); });
    Gone(33);
    hold_records_ = false;
    EndRecords(Recorded::kDurable);
    for (const uint32_t w : {0u, 1u}) {
      EXPECT_EQ(Count(kWorker[w], Kind::kCommit), 1);
      Tell(kWorker[w], [&](auto& m) { *m.mutable_shown()->mutable_round() = of; });
    }
    EXPECT_EQ(coordinator_->Status().groups(0).updating_version(), 0u);
    sent_.clear();
    recorded_.clear();
  }
}

// Worker 0 shows version 5, which the trainers hold for worker 1.
TEST_F(CoordinatorTest, AWorkerThatHasTheVersionAlreadyIsNoMemberOfItsRound) {
  MakeCoordinator({{.epoch = 1, .sequence = 1, .version = 5, .group = "all"}}, /*durable=*/true);
  for (const uint32_t t : {0u, 1u}) {
    Join(kTrainer[t], Role::kTrainer, t);
    Tell(kTrainer[t], [&](auto& m) { m.mutable_held()->set_version(5); });
  }
  for (const uint32_t w : {0u, 1u}) {
    Join(kWorker[w], Role::kWorker, w, [&](proto::Join& join) {
      join.set_catch_up(true);
      if (w == 0) join.set_shown_version(5);
    });
  }
  OfferIn("all");
  ConnectIn("all");
  ASSERT_EQ(Count(kWorker[0], Kind::kPrepare), 0);
  const proto::Round of = round(1);
  Tell(kWorker[0], [&](auto& m) { *m.mutable_ready()->mutable_round() = of; });
  Tell(kWorker[0], [&](auto& m) { *m.mutable_arrived()->mutable_round() = of; });
  Tell(kWorker[0], [&](auto& m) { *m.mutable_refused()->mutable_round() = of; });
  Tell(kWorker[0], [&](auto& m) { *m.mutable_failed()->mutable_round() = of; });
  EXPECT_EQ(Count(kWorker[1], Kind::kAbort) + Count(kTrainer[0], Kind::kStart), 0);
  Ready(1);
  Arrived(1);
  EXPECT_EQ(Count(kWorker[1], Kind::kCommit), 1);
}

TEST_F(CoordinatorTest, ALostWorkerFailsItsGroupAndNoOther) {
  groups_ = {"a", "b"};
  MakeCoordinator();
  Establish();
  Publish(0, 5);
  Publish(1, 5);
  Ready(0);
  Ready(1);
  Gone(kWorker[1]);
  ASSERT_EQ(Count(kTrainer[0], Kind::kAbort), 1);  // It goes on for group a.
  EXPECT_EQ(Last(kTrainer[0], Kind::kAbort)->abort().round().epoch(), epochs_.at("b"));
  EXPECT_EQ(Error(kTrainer[0], Kind::kOutcome),
            "worker 0 of group \"b\" is gone: its stream ended");
  EXPECT_EQ(Last(kTrainer[0], Kind::kTermOver)->term_over().group(), "b");
  Arrived(0);
  EXPECT_EQ(Count(kWorker[0], Kind::kCommit), 1);
}

TEST_F(CoordinatorTest, ALateTrainerTakesPartAlthoughAnotherGroupsWorkerIsGone) {
  groups_ = {"a", "b"};
  MakeCoordinator();
  Establish();
  Publish(0, 5);
  Ready(0);
  Gone(kWorker[1]);
  Publish(1, 5);
  EXPECT_EQ(Count(kTrainer[1], Kind::kPublishRefused), 0);
  const proto::PublishAccepted& accepted =
      Last(kTrainer[1], Kind::kPublishAccepted)->publish_accepted();
  EXPECT_EQ(accepted.groups_size(), 1);
  EXPECT_EQ(accepted.groups(0), "a");
  EXPECT_EQ(Count(kTrainer[1], Kind::kStart), 1);
  EXPECT_EQ(Last(kTrainer[1], Kind::kOutcome)->outcome().group(), "b");  // Is not waited for.
  Arrived(0);
  EXPECT_EQ(Count(kWorker[0], Kind::kCommit), 1);
}

TEST_F(CoordinatorTest, AGroupThatIsRemovedIsDismissedAndNotWaitedForAnyMore) {
  required_ = {"b"};
  groups_ = {"a", "b"};
  MakeCoordinator();
  Establish();
  EXPECT_EQ(*coordinator_->RemoveGroup("b", now_), 1u);
  EXPECT_EQ(Error(kWorker[1], Kind::kDismissal), "group b was removed");
  EXPECT_EQ(Last(kTrainer[0], Kind::kTermOver)->term_over().group(), "b");
  for (const uint32_t t : {0u, 1u}) Publish(t, 5);
  EXPECT_EQ(Count(kWorker[0], Kind::kPrepare), 1);
  EXPECT_EQ(coordinator_->Status().groups_size(), 1);
  EXPECT_EQ(coordinator_->RemoveGroup("b", now_).status().message(),
            "remove group b: job \"test\" has no such group");
}

TEST_F(CoordinatorTest, AGroupThatHasNotComeBackAfterAFailoverIsNamedAmongTheOutcomes) {
  MakeCoordinator({{6 << kEpochCountBits, 1, 3, "a"}, {6 << kEpochCountBits | 1, 1, 4, "b"}},
                  /*durable=*/true);
  groups_ = {"a", "b"};
  for (const uint32_t t : {0u, 1u}) Join(kTrainer[t], Role::kTrainer, t);
  Join(kWorker[0], Role::kWorker, 0);
  OfferIn("a");
  ConnectIn("a");
  for (const uint32_t t : {0u, 1u}) Publish(t, 5);
  for (const ConnectionId trainer : kTrainer) {
    ASSERT_EQ(Count(trainer, Kind::kOutcome), 1);
    EXPECT_EQ(Last(trainer, Kind::kOutcome)->outcome().group(), "b");
    EXPECT_FALSE(Last(trainer, Kind::kOutcome)->outcome().committed());
  }
  EXPECT_EQ(Error(kTrainer[0], Kind::kOutcome),
            "group b is not here: it was before this controller began, and has not come back yet");
  Ready(0);
  Arrived(0);
  Shown(0);
  EXPECT_TRUE(Last(kTrainer[0], Kind::kOutcome)->outcome().committed());
}

TEST_F(CoordinatorTest, AGroupThatIsLostIsNamedAmongTheOutcomesUntilNobodyExpectsIt) {
  enum class Goes { kLost, kLeaves, kRemoved, kComesBack };
  for (const Goes goes : {Goes::kLost, Goes::kLeaves, Goes::kRemoved, Goes::kComesBack}) {
    SCOPED_TRACE(static_cast<int>(goes));
    groups_ = {"a", "b"};
    MakeCoordinator();
    Establish();
    Decide(5);
    for (const uint32_t w : {0u, 1u}) Shown(w);
    if (goes == Goes::kLeaves) {
      Tell(kWorker[1], [](auto& m) { m.mutable_leave(); });
    } else if (goes == Goes::kRemoved) {
      EXPECT_TRUE(coordinator_->RemoveGroup("b", now_).ok());
    } else {
      Gone(kWorker[1]);
    }
    if (goes == Goes::kComesBack) {
      Join(kWorker[1], Role::kWorker, 1);
      Connect();
    }
    sent_[kTrainer[0]].clear();
    for (const uint32_t t : {0u, 1u}) Publish(t, 6);
    ASSERT_EQ(Count(kTrainer[0], Kind::kOutcome), goes == Goes::kLost ? 1 : 0);
    if (goes != Goes::kLost) continue;
    EXPECT_EQ(Error(kTrainer[0], Kind::kOutcome),
              "group b is not here: worker 0 of group \"b\" is gone: its stream ended");
    Ready(0);
    Arrived(0);
    Shown(0);
    Pass(absl::Seconds(31));
    sent_[kTrainer[0]].clear();
    for (const uint32_t t : {0u, 1u}) Publish(t, 7);
    EXPECT_EQ(Count(kTrainer[0], Kind::kOutcome), 0);
  }
}

TEST_F(CoordinatorTest, AGroupsCommittedVersionIsOneThatItsWorkersHave) {
  const auto committed = [&] { return coordinator_->Status().groups(0).committed_version(); };
  MakeCoordinator();
  Establish();
  EXPECT_EQ(committed(), 0u);
  Decide(5);
  EXPECT_EQ(committed(), 5u);
  for (const uint32_t w : {0u, 1u}) Shown(w);
  EXPECT_EQ(committed(), 5u);
  Gone(kWorker[1]);
  Join(kWorker[1], Role::kWorker, 1);  // Another process, which shows nothing.
  EXPECT_EQ(committed(), 0u);
  EXPECT_EQ(coordinator_->Status().committed_version(), 5u);
}

TEST_F(CoordinatorTest, APlanComesWithTheHashOfTheManifestThatItsRankDeclared) {
  MakeCoordinator();
  JoinAll();
  for (const ConnectionId rank : {kTrainer[0], kTrainer[1], kWorker[0], kWorker[1]}) {
    EXPECT_EQ(Last(rank, Kind::kPlan)->plan().manifest_hash(), Sha256(manifests_[rank].head));
  }
}

// --- lanes that go on ---

class KeptLanesTest : public CoordinatorTest {
 protected:
  void SetUp() override {
    MakeCoordinator();
    Establish();
  }
  // Trainer 1's process is replaced by another, which has joined.
  void ReplaceTrainer1() {
    Gone(kTrainer[1]);
    Join(kTrainer[1], Role::kTrainer, 1);
  }
  // The peers with which a rank keeps its lanes in the newest plan.
  std::vector<uint32_t> KeptBy(ConnectionId connection) {
    std::vector<uint32_t> kept;
    for (const proto::PeerLanes& lanes : Last(connection, Kind::kPlan)->plan().lanes()) {
      if (lanes.kept()) kept.push_back(lanes.peer());
    }
    return kept;
  }
  using Peers = std::vector<uint32_t>;
};

TEST_F(KeptLanesTest, AreThoseOfTheRanksThatStay) {
  ReplaceTrainer1();
  EXPECT_EQ(KeptBy(kTrainer[0]), (Peers{0, 1}));
  EXPECT_EQ(KeptBy(kTrainer[1]), Peers{});
  for (const ConnectionId worker : kWorker) EXPECT_EQ(KeptBy(worker), Peers{0});
  Connect();
  Gone(kWorker[0]);
  Join(kWorker[0], Role::kWorker, 0);
  for (const ConnectionId trainer : kTrainer) EXPECT_EQ(KeptBy(trainer), Peers{1});
  EXPECT_EQ(KeptBy(kWorker[0]), Peers{});
  EXPECT_EQ(KeptBy(kWorker[1]), (Peers{0, 1}));
}

TEST_F(KeptLanesTest, OnesThatAreNotConnectedYetAreNotAmongThem) {
  ReplaceTrainer1();
  OfferIn("all");
  Gone(kTrainer[1]);
  Join(kTrainer[1], Role::kTrainer, 1);
  EXPECT_EQ(KeptBy(kTrainer[0]), (Peers{0, 1}));
  EXPECT_EQ(KeptBy(kTrainer[1]), Peers{});
}

TEST_F(KeptLanesTest, AnUpdateDoesNotHaveTheSequenceOfOneBeforeOnTheSameLane) {
  Publish(0, 5);
  Publish(1, 5);
  const uint32_t before = round().sequence();
  ReplaceTrainer1();
  Connect();
  Publish(0, 6);
  Publish(1, 6);
  EXPECT_GT(round().sequence(), before);
}

TEST_F(KeptLanesTest, ADeadOneIsNotAmongThem) {
  LoseALane();  // From trainer 0 to worker 0.
  EXPECT_EQ(KeptBy(kTrainer[0]), Peers{1});
  EXPECT_EQ(KeptBy(kWorker[0]), Peers{1});
  EXPECT_EQ(KeptBy(kWorker[1]), (Peers{0, 1}));
}

TEST_F(KeptLanesTest, ARankThatHasThemNoMoreGetsNewOnes) {
  ReplaceTrainer1();
  ASSERT_EQ(KeptBy(kWorker[1]), Peers{0});
  Tell(kWorker[1], [&](auto& m) { m.mutable_connect_failed()->set_epoch(epoch_); });
  EXPECT_EQ(KeptBy(kWorker[1]), Peers{});
  EXPECT_EQ(KeptBy(kTrainer[0]), Peers{0});
}

TEST_F(KeptLanesTest, ThoseOfARankWhoseNicsHaveChangedAreOpenedAnew) {
  Tell(kTrainer[0], [](auto& m) { m.mutable_nics()->add_nics()->set_name("mlx5_0"); });
  EXPECT_EQ(KeptBy(kTrainer[0]), Peers{});
  EXPECT_EQ(KeptBy(kTrainer[1]), (Peers{0, 1}));
}

TEST_F(KeptLanesTest, ARankThatJoinsAgainWithOtherMemoryGetsAnotherTable) {
  const auto table = [&](ConnectionId connection) {
    return Last(connection, Kind::kPlan)->plan().routes();
  };
  ReplaceTrainer1();
  const std::map<ConnectionId, std::string> before = {{kTrainer[0], table(kTrainer[0])},
                                                      {kTrainer[1], table(kTrainer[1])}};
  ReplaceTrainer1();
  EXPECT_EQ(table(kTrainer[0]), before.at(kTrainer[0]));
  EXPECT_EQ(table(kTrainer[1]), before.at(kTrainer[1]));
  first_byte_ = 64;
  ReplaceTrainer1();
  EXPECT_EQ(table(kTrainer[0]), before.at(kTrainer[0]));
  const auto moved = DecodeRankPlan(*Inflate(table(kTrainer[1]), 1 << 20));
  ASSERT_TRUE(moved.ok()) << moved.status();
  EXPECT_EQ(moved->routes.source_offset(0), 64u);
}

// --- catching up ---

// Group a shows version 5; group b, which has missed it, joins.
class CatchUpTest : public CoordinatorTest {
 protected:
  void SetUp() override {
    groups_ = {"a", "b"};
    MakeCoordinator(decisions_, /*durable=*/true);
    for (const uint32_t t : {0u, 1u}) Join(kTrainer[t], Role::kTrainer, t);
    JoinShowing(0, 5);
    OfferIn("a");
    ConnectIn("a");
    sent_.clear();
  }
  void JoinShowing(uint32_t w, uint64_t version) {
    Join(kWorker[w], Role::kWorker, w, [&](proto::Join& join) {
      join.set_shown_version(version);
      join.mutable_shown_round()->set_epoch(1);
      join.mutable_shown_round()->set_sequence(shown_sequence_);
      join.set_shown_composition(version == 0 ? 0 : composition_);
      join.set_catch_up(catch_up_);
    });
  }
  // Both ends of the loan offer their lanes and connect them.
  void ConnectLoan() {
    for (const uint32_t w : {0u, 1u}) {
      Tell(kWorker[w], [&](auto& m) { m.mutable_offers()->set_epoch(epochs_.at("b")); });
    }
    for (const uint32_t w : {0u, 1u}) {
      Tell(kWorker[w], [&](auto& m) { m.mutable_connected()->set_epoch(epochs_.at("b")); });
    }
  }
  std::string LenderOf(ConnectionId connection) {
    const proto::ControllerMessage* plan = Last(connection, Kind::kPlan);
    return plan == nullptr ? "(no plan)" : plan->plan().lender();
  }

  bool catch_up_ = true;
  uint32_t shown_sequence_ = 1;  // Of the update that has brought what a worker shows.
  std::vector<Decision> decisions_ = {{.epoch = 1, .sequence = 1, .version = 5, .group = "a"}};
};

TEST_F(CatchUpTest, AGroupThatJoinsGetsTheNewestVersionFromOneThatShowsIt) {
  JoinShowing(1, 0);
  for (const uint32_t w : {0u, 1u}) {
    EXPECT_EQ(LenderOf(kWorker[w]), "a");
    EXPECT_EQ(Last(kWorker[w], Kind::kPlan)->plan().lent_version(), 5u);
  }
  EXPECT_EQ(LenderOf(kTrainer[0]), "(no plan)");
  ConnectLoan();
  EXPECT_EQ(coordinator_->Status().groups(1).phase(), "catching up");
  EXPECT_EQ(Count(kWorker[1], Kind::kEstablished), 1);  // Its user can answer from now on.
  EXPECT_EQ(Count(kWorker[0], Kind::kPrepare), 0);      // The lender shows it already.
  ASSERT_EQ(Count(kWorker[1], Kind::kPrepare), 1);
  EXPECT_EQ(Last(kWorker[1], Kind::kPrepare)->prepare().version(), 5u);
  Ready(1);
  ASSERT_EQ(Count(kWorker[0], Kind::kStart), 1);
  EXPECT_EQ(Last(kWorker[0], Kind::kStart)->start().version(), 5u);
  const uint64_t epoch = epochs_.at("b");
  Arrived(1);
  EXPECT_EQ(recorded_, (std::vector<Decision>{{epoch, 1, 5, "b"}}));
  EXPECT_EQ(Count(kWorker[1], Kind::kCommit), 1);
  EXPECT_EQ(Last(kWorker[0], Kind::kTermOver)->term_over().group(), "b");
  EXPECT_EQ(LenderOf(kTrainer[0]), "");  // Now its term with the trainers begins.
  OfferIn("b");
  ConnectIn("b");
  EXPECT_EQ(Count(kTrainer[0], Kind::kOutcome), 0);
}

// Group "b" has two workers. Worker 0 of it is about to show version 6, which group "a" has missed.
class ApproximateLoanTest : public CatchUpTest {
 protected:
  ApproximateLoanTest() { composition_ = 77; }
};

TEST_F(ApproximateLoanTest, AnApproximateVersionIsLentAsOne) {
  JoinShowing(1, 0);
  ConnectLoan();
  EXPECT_EQ(Last(kWorker[1], Kind::kPrepare)->prepare().composition(), 77u);
  const proto::StatusReply status = coordinator_->Status();
  for (const proto::RankStatus& rank : status.ranks()) {
    EXPECT_EQ(rank.approximate(), rank.group() == "a") << rank.name();
  }
}

class NewerThanTheLenderTest : public CatchUpTest {
 protected:
  NewerThanTheLenderTest() {
    decisions_.push_back({.epoch = 1, .sequence = 2, .version = 6, .group = "b"});
  }
  void JoinInB(ConnectionId connection, uint32_t rank, uint64_t committed) {
    Join(connection, Role::kWorker, 1, [&](proto::Join& join) {
      join.set_rank(rank);
      join.set_world(2);
      join.set_committed_version(committed);
      join.set_catch_up(true);
    });
  }
};

TEST_F(NewerThanTheLenderTest, NothingOlderIsLentThanWhatAWorkerOfTheGroupHas) {
  JoinInB(kWorker[1], 0, 6);
  JoinInB(22, 1, 0);
  EXPECT_EQ(LenderOf(kWorker[1]), "");
  EXPECT_EQ(LenderOf(22), "");
}

// The trainers hold version 5, and nobody shows it any more.
class HeldCatchUpTest : public CatchUpTest {
 protected:
  void SetUp() override {
    CatchUpTest::SetUp();
    Gone(kWorker[0]);
    for (const uint32_t t : {0u, 1u}) Hold(t, 5);
    JoinShowing(1, 0);
    OfferIn("b");
    ConnectIn("b");
  }
};

TEST_F(HeldCatchUpTest, AGroupGetsWhatItMissedFromTrainersThatHoldIt) {
  EXPECT_EQ(Last(kWorker[1], Kind::kPrepare)->prepare().version(), 5u);
  EXPECT_TRUE(Last(kWorker[1], Kind::kPrepare)->prepare().catch_up());
  Ready(1);
  EXPECT_EQ(Last(kTrainer[0], Kind::kStart)->start().attempt(), 30u);
  EXPECT_EQ(Last(kTrainer[1], Kind::kStart)->start().attempt(), 31u);
  Arrived(1);
  EXPECT_EQ(Count(kWorker[1], Kind::kCommit), 1);
  EXPECT_EQ(Count(kTrainer[0], Kind::kOutcome), 0);
  EXPECT_EQ(coordinator_->Status().phase(), "ready");  // The term goes on.
}

class ApproximateHeldTest : public HeldCatchUpTest {
 protected:
  ApproximateHeldTest() { composition_ = 77; }
};

TEST_F(ApproximateHeldTest, AnApproximateVersionThatIsHeldComesAsOne) {
  EXPECT_EQ(Last(kWorker[1], Kind::kPrepare)->prepare().version(), 5u);
  EXPECT_EQ(Last(kWorker[1], Kind::kPrepare)->prepare().composition(), 77u);
}

TEST_F(ApproximateHeldTest, TrainersThatHoldDifferentVersionsOfOneNumberHoldNone) {
  Refuse(1);
  composition_ = 78;
  Hold(0, 5);
  sent_.clear();
  Pass(absl::Seconds(30));
  EXPECT_EQ(Count(kWorker[1], Kind::kPrepare), 0);
}

TEST_F(HeldCatchUpTest, AReleaseEndsItAndTheNextVersionBringsTheGroupUpToDate) {
  Ready(1);
  Hold(0, 0);
  Tell(kTrainer[0], [&](auto& m) {
    *m.mutable_failed()->mutable_round() = round(1);
    *m.mutable_failed()->mutable_error() = EncodeError(absl::CancelledError("it is not held"));
  });
  EXPECT_EQ(Count(kWorker[1], Kind::kAbort), 1);
  EXPECT_EQ(coordinator_->Status().groups(0).catch_up_trouble(),
            "catch up from the trainers: trainer 0: it is not held");
  sent_.clear();
  for (const uint32_t t : {0u, 1u}) Publish(t, 6);
  EXPECT_EQ(Last(kWorker[1], Kind::kPrepare)->prepare().version(), 6u);
}

TEST_F(HeldCatchUpTest, ATrainerThatHoldsNothingLeavesTheGroupWithoutIt) {
  Gone(kTrainer[0]);
  sent_.clear();
  Join(kTrainer[0], Role::kTrainer, 0);
  OfferIn("b");
  ConnectIn("b");
  EXPECT_EQ(Last(kWorker[1], Kind::kPrepare), nullptr);
}

// Both workers fetch versions; they are one group unless a test says otherwise.
class FetchTest : public CoordinatorTest {
 protected:
  void JoinFetching(uint32_t w, bool fetches = true) {
    Join(kWorker[w], Role::kWorker, w, [&](proto::Join& join) { join.set_fetches(fetches); });
  }
  void EstablishFetching(bool pushed_to_a = false, const std::vector<Decision>& decisions = {}) {
    MakeCoordinator(decisions);
    for (const uint32_t t : {0u, 1u}) Join(kTrainer[t], Role::kTrainer, t);
    JoinFetching(0, !pushed_to_a);
    JoinFetching(1);
    Connect();
  }
  // Returns the group and the version that a trainer was told last.
  std::pair<std::string, uint64_t> OldestShown(uint32_t t) {
    const auto* told = Last(kTrainer[t], Kind::kOldestShown);
    if (told != nullptr) return {told->oldest_shown().group(), told->oldest_shown().version()};
    told = Last(kTrainer[t], Kind::kEstablished);
    if (told == nullptr) return {"(no such message)", 0};
    const proto::OldestShown& oldest = told->established().oldest_shown();
    return {oldest.group(), oldest.version()};
  }
  void PublishHeld(uint32_t t, uint64_t version) {
    Tell(kTrainer[t], [&](auto& m) {
      m.mutable_publish()->set_version(version);
      m.mutable_publish()->set_attempt(30 + t);
      m.mutable_publish()->set_hold(true);
    });
  }
  void PublishAndHold(uint64_t version) {
    for (const uint32_t t : {0u, 1u}) PublishHeld(t, version);
    for (const uint32_t t : {0u, 1u}) Hold(t, version);
  }
  void Fetch(uint32_t w, uint64_t number, uint64_t at_least = 0) {
    Tell(kWorker[w], [&](auto& m) {
      m.set_fetch(number);
      m.set_fetch_at_least(at_least);
    });
  }
  void BothReceive() {
    for (const uint32_t w : {0u, 1u}) Ready(w);
    for (const uint32_t w : {0u, 1u}) Arrived(w);
  }
  void Show(uint32_t w, uint64_t version) {
    Tell(kWorker[w], [&](auto& m) {
      *m.mutable_shown()->mutable_round() = round(w);
      m.mutable_shown()->set_version(version);
    });
  }
  void BothFetchAndShow(uint64_t version) {
    for (const uint32_t w : {0u, 1u}) Fetch(w, 1);
    BothReceive();
    for (const uint32_t w : {0u, 1u}) Show(w, version);
  }
  void ShowWhatArrives(uint32_t w, uint64_t version) {
    Ready(w);
    Arrived(w);
    Show(w, version);
  }
  uint64_t Prepared(uint32_t w) {
    const auto* const message = Last(kWorker[w], Kind::kPrepare);
    return message == nullptr ? 0 : message->prepare().version();
  }
};

TEST_F(FetchTest, AVersionComesOnceAllWorkersOfTheGroupHaveAsked) {
  EstablishFetching();
  PublishAndHold(5);
  EXPECT_EQ(Count(kTrainer[0], Kind::kPublishAccepted), 1);
  EXPECT_EQ(Last(kTrainer[0], Kind::kPublishAccepted)->publish_accepted().groups_size(), 0);
  Fetch(0, 1);
  EXPECT_EQ(Prepared(0), 0u);
  Fetch(1, 1);
  for (const uint32_t w : {0u, 1u}) EXPECT_EQ(Prepared(w), 5u);
  for (const uint32_t w : {0u, 1u}) Ready(w);
  EXPECT_EQ(Last(kTrainer[1], Kind::kStart)->start().attempt(), 31u);
  for (const uint32_t w : {0u, 1u}) Arrived(w);
  EXPECT_EQ(recorded_, (std::vector<Decision>{{epoch_, 1, 5, "all"}}));
  EXPECT_EQ(Count(kTrainer[0], Kind::kOutcome), 0);
}

TEST_F(FetchTest, TrainersAreToldOfTheRequiredGroupThatShowsTheOldestVersion) {
  required_ = {"all"};
  using Told = std::pair<std::string, uint64_t>;
  EstablishFetching();
  Gone(kTrainer[0]);  // It hears once it is back.
  Join(kTrainer[0], Role::kTrainer, 0);
  OfferIn("all");
  ConnectIn("all");
  EXPECT_EQ(OldestShown(0), Told("all", 0));
  PublishAndHold(5);
  for (const uint32_t w : {0u, 1u}) Fetch(w, 1);
  BothReceive();
  Show(0, 5);
  EXPECT_EQ(OldestShown(0), Told("all", 0));  // Its other worker still shows what it did.
  Show(1, 5);
  for (const uint32_t t : {0u, 1u}) EXPECT_EQ(OldestShown(t), Told("all", 5));
  EXPECT_EQ(Count(kTrainer[0], Kind::kOldestShown), 1);
  EXPECT_TRUE(coordinator_->RemoveGroup("all", now_).ok());
  for (const uint32_t t : {0u, 1u}) EXPECT_EQ(OldestShown(t), Told("", 0));
}

TEST_F(FetchTest, NoTrainerIsToldToWaitForAGroupThatIsNotRequired) {
  EstablishFetching();
  PublishAndHold(5);
  BothFetchAndShow(5);
  EXPECT_EQ(Last(kTrainer[0], Kind::kOldestShown), nullptr);
}

TEST_F(FetchTest, AGroupThatShowsTheNewestVersionIsToldSo) {
  EstablishFetching();
  PublishAndHold(5);
  BothFetchAndShow(5);
  sent_.clear();
  Fetch(0, 2);
  EXPECT_EQ(Last(kWorker[0], Kind::kShowsNewest), nullptr);
  Fetch(1, 7);
  EXPECT_EQ(Last(kWorker[0], Kind::kShowsNewest)->shows_newest(), 2u);
  EXPECT_EQ(Last(kWorker[1], Kind::kShowsNewest)->shows_newest(), 7u);
  PublishAndHold(6);  // Nobody waits any more.
  EXPECT_EQ(Prepared(0), 0u);
}

// Versions that are published faster than they can be fetched must not keep a fetch waiting.
TEST_F(FetchTest, AGroupIsAnsweredWhenItShowsWhatWasNewestWhenItAsked) {
  EstablishFetching();
  PublishAndHold(5);
  for (const uint32_t w : {0u, 1u}) Fetch(w, 1);
  BothReceive();
  PublishAndHold(6);
  EXPECT_EQ(Prepared(0), 5u);
  for (const uint32_t w : {0u, 1u}) {
    EXPECT_EQ(Last(kWorker[0], Kind::kShowsNewest), nullptr);
    Show(w, 5);
  }
  EXPECT_EQ(Last(kWorker[0], Kind::kShowsNewest)->shows_newest(), 1u);
  EXPECT_EQ(Prepared(0), 5u);
}

TEST_F(FetchTest, AFetchWaitsForAVersionThatIsOnItsWay) {
  groups_ = {"a", "b"};
  EstablishFetching(/*pushed_to_a=*/true);
  PublishAndHold(5);
  ShowWhatArrives(0, 5);
  Fetch(1, 1);
  ShowWhatArrives(1, 5);
  for (const uint32_t t : {0u, 1u}) PublishHeld(t, 6);
  sent_[kWorker[1]].clear();
  Fetch(1, 2);
  EXPECT_EQ(Last(kWorker[1], Kind::kShowsNewest), nullptr);
  Refuse(0);  // Nobody gets it, so version 5 is the newest.
  EXPECT_EQ(Last(kWorker[1], Kind::kShowsNewest)->shows_newest(), 2u);

  for (const uint32_t t : {0u, 1u}) PublishHeld(t, 7);
  Fetch(1, 3);
  for (const uint32_t t : {0u, 1u}) Hold(t, 7);
  ShowWhatArrives(0, 7);
  EXPECT_EQ(Prepared(1), 7u);
}

TEST_F(FetchTest, AFetchWaitsForWhatTrainersAreAboutToHold) {
  EstablishFetching();
  PublishAndHold(5);
  BothFetchAndShow(5);
  sent_.clear();
  for (const uint32_t t : {0u, 1u}) PublishHeld(t, 6);
  for (const uint32_t w : {0u, 1u}) Fetch(w, 2);
  EXPECT_EQ(Last(kWorker[0], Kind::kShowsNewest), nullptr);
  for (const uint32_t t : {0u, 1u}) Hold(t, 6);
  EXPECT_EQ(Prepared(0), 6u);
}

TEST_F(FetchTest, AFetchWaitsForTheFirstVersion) {
  EstablishFetching();
  for (const uint32_t w : {0u, 1u}) Fetch(w, 1);
  EXPECT_EQ(Last(kWorker[0], Kind::kShowsNewest), nullptr);
  PublishAndHold(5);
  EXPECT_EQ(Prepared(0), 5u);
}

TEST_F(FetchTest, WhoDoesNotWaitAnyMoreGetsNothing) {
  EstablishFetching();
  for (const uint32_t w : {0u, 1u}) Fetch(w, 1);
  Fetch(1, 0);
  PublishAndHold(5);
  EXPECT_EQ(Prepared(0), 0u);
}

TEST_F(FetchTest, AFetchWaitsForTheLeastVersionThatWillDo) {
  EstablishFetching();
  PublishAndHold(5);
  Fetch(0, 1, /*at_least=*/6);
  Fetch(1, 1);
  EXPECT_EQ(Prepared(0), 0u);
  PublishAndHold(6);
  EXPECT_EQ(Prepared(0), 6u);
  EXPECT_EQ(Prepared(1), 6u);
}

TEST_F(FetchTest, AWorkerThatComesBackStillWaits) {
  EstablishFetching();
  for (const uint32_t w : {0u, 1u}) Fetch(w, 1);
  Gone(kWorker[1]);
  Join(kWorker[1], Role::kWorker, 1, [&](proto::Join& join) {
    join.set_fetches(true);
    join.set_fetch(1);
  });
  Connect();
  PublishAndHold(5);
  EXPECT_EQ(Prepared(1), 5u);
}

TEST_F(FetchTest, AVersionThatIsPublishedMeanwhileTakesItsPlace) {
  EstablishFetching();
  PublishAndHold(5);
  for (const uint32_t w : {0u, 1u}) Fetch(w, 1);
  for (const uint32_t w : {0u, 1u}) Ready(w);
  for (const uint32_t t : {0u, 1u}) {
    Hold(t, 0);
    Tell(kTrainer[t], [&](auto& m) {
      *m.mutable_failed()->mutable_round() = round(1);
      *m.mutable_failed()->mutable_error() = EncodeError(absl::CancelledError("it is not held"));
    });
  }
  EXPECT_EQ(Count(kWorker[1], Kind::kAbort), 1);
  PublishAndHold(6);
  EXPECT_EQ(Prepared(0), 6u);
}

// The next version is held before the workers have stopped receiving the old one.
TEST_F(FetchTest, AVersionThatIsHeldWhileTheOldOneStopsIsFetched) {
  EstablishFetching();
  PublishAndHold(5);
  for (const uint32_t w : {0u, 1u}) Fetch(w, 1);
  for (const uint32_t w : {0u, 1u}) Ready(w);
  for (const uint32_t t : {0u, 1u}) Hold(t, 0);
  PublishAndHold(6);
  Tell(kTrainer[0], [&](auto& m) {
    *m.mutable_failed()->mutable_round() = round(1);
    *m.mutable_failed()->mutable_error() = EncodeError(absl::CancelledError("it is not held"));
  });
  for (const uint32_t w : {0u, 1u}) EXPECT_EQ(Prepared(w), 6u);
}

TEST_F(FetchTest, AVersionThatIsHeldIsPublishedThoughNobodyIsHere) {
  EstablishFetching();
  for (const uint32_t w : {0u, 1u}) {
    Tell(kWorker[w], [](auto& m) { m.mutable_leave(); });
  }
  for (const uint32_t t : {0u, 1u}) PublishHeld(t, 5);
  EXPECT_EQ(Count(kTrainer[1], Kind::kPublishAccepted), 1);
  for (const uint32_t t : {0u, 1u}) Hold(t, 5);
  for (const uint32_t w : {0u, 1u}) JoinFetching(w);
  Connect();
  for (const uint32_t w : {0u, 1u}) Fetch(w, 1);
  EXPECT_EQ(Prepared(0), 5u);
}

TEST_F(FetchTest, AfterARestartAGroupThatIsBackIsNotMissed) {
  EstablishFetching(/*pushed_to_a=*/false,
                    {{.epoch = 1, .sequence = 1, .version = 4, .group = "all"}});
  for (const uint32_t t : {0u, 1u}) PublishHeld(t, 5);
  EXPECT_EQ(Count(kTrainer[1], Kind::kPublishAccepted), 1);
}

TEST_F(FetchTest, AfterARestartAGroupThatDoesNotComeBackIsMissedForAWhile) {
  EstablishFetching(/*pushed_to_a=*/false,
                    {{.epoch = 1, .sequence = 1, .version = 4, .group = "gone"}});
  for (const uint32_t t : {0u, 1u}) PublishHeld(t, 5);
  EXPECT_EQ(Count(kTrainer[1], Kind::kPublishAccepted), 0);
  const absl::Time expected_until = coordinator_->next_deadline();
  EXPECT_LE(expected_until, now_ + absl::Seconds(30));
  Pass(expected_until - now_);
  EXPECT_EQ(Count(kTrainer[1], Kind::kPublishAccepted), 1);
}

TEST_F(CoordinatorTest, AVersionThatIsNotHeldIsNotPublishedToNobody) {
  MakeCoordinator();
  Establish();
  for (const uint32_t w : {0u, 1u}) {
    Tell(kWorker[w], [](auto& m) { m.mutable_leave(); });
  }
  Publish(0, 5);
  Pass(absl::Seconds(5));
  EXPECT_EQ(Error(kTrainer[0], Kind::kPublishRefused),
            "publish version 5: it cannot begin without every worker");
}

TEST_F(FetchTest, AFetchIsTriedThreeTimes) {
  EstablishFetching();
  PublishAndHold(5);
  for (const uint32_t w : {0u, 1u}) Fetch(w, 1);
  for (int i = 0; i < 5; ++i) Refuse(0);
  EXPECT_EQ(Count(kWorker[1], Kind::kPrepare), 3);
  Fetch(0, 2);
  EXPECT_EQ(Count(kWorker[1], Kind::kPrepare), 4);
}

TEST_F(FetchTest, AVersionThatNotAllTrainersHoldIsNotFetched) {
  EstablishFetching();
  for (const uint32_t w : {0u, 1u}) Fetch(w, 1);
  for (const uint32_t t : {0u, 1u}) PublishHeld(t, 5);
  Hold(0, 5);
  EXPECT_EQ(Prepared(0), 0u);
  Gone(kTrainer[1]);
  EXPECT_EQ(Prepared(0), 0u);
}

TEST_F(FetchTest, ReplicasAreComparedBeforeAVersionIsFetched) {
  EstablishFetching();
  for (const uint32_t w : {0u, 1u}) Fetch(w, 1);
  PublishHeld(0, 5);
  for (const uint32_t t : {0u, 1u}) Hold(t, 5);
  EXPECT_EQ(Prepared(0), 0u);  // Trainer 1 has not said what it publishes.
  PublishHeld(1, 5);
  EXPECT_EQ(Prepared(0), 5u);
}

TEST_F(FetchTest, AVersionThatNotAllTrainersHavePublishedInTimeIsNotFetched) {
  EstablishFetching();
  for (const uint32_t w : {0u, 1u}) Fetch(w, 1);
  PublishHeld(0, 5);
  Pass(absl::Minutes(1));
  for (const uint32_t t : {0u, 1u}) Hold(t, 5);
  PublishHeld(1, 5);
  EXPECT_EQ(Error(kTrainer[1], Kind::kPublishRefused), "not all trainers have published version 5");
  EXPECT_EQ(Prepared(0), 0u);
}

TEST_F(FetchTest, AVersionOfWhichReplicasDifferIsNotFetched) {
  EstablishFetching();
  for (const uint32_t w : {0u, 1u}) Fetch(w, 1);
  for (const uint32_t t : {0u, 1u}) {
    Tell(kTrainer[t], [&](auto& m) {
      m.mutable_publish()->set_version(5);
      m.mutable_publish()->set_attempt(30 + t);
      m.mutable_publish()->set_hold(true);
      m.mutable_publish()->add_sampled_units(77);
      m.mutable_publish()->add_sampled_digests(t);
    });
  }
  EXPECT_THAT(Error(kTrainer[1], Kind::kPublishRefused),
              testing::HasSubstr("hold different bytes"));
  for (const uint32_t t : {0u, 1u}) Hold(t, 5);
  EXPECT_EQ(Prepared(0), 0u);
}

TEST_F(FetchTest, APublishThatHoldsNothingIsRefusedIfAllGroupsFetch) {
  EstablishFetching();
  Publish(0, 5);
  EXPECT_EQ(
      Error(kTrainer[0], Kind::kPublishRefused),
      "publish version 5: only groups that fetch versions are here, and they could not once it "
      "is sent: hold it, or let the trainers keep images");
}

TEST_F(FetchTest, APublishThatWaitsForAWordIsRefusedIfAllGroupsFetch) {
  EstablishFetching();
  Tell(kTrainer[0], [&](auto& m) {
    m.mutable_publish()->set_version(5);
    m.mutable_publish()->set_hold(true);
    m.mutable_publish()->set_hold_commit(true);
  });
  EXPECT_EQ(Error(kTrainer[0], Kind::kPublishRefused),
            "publish version 5: only groups that fetch versions are here, which wait for nobody's "
            "word: publish it without hold_commit");
}

TEST_F(FetchTest, APublishGoesToOtherGroupsAndIsFetchedOnceTheyHaveDecided) {
  groups_ = {"a", "b"};
  EstablishFetching(/*pushed_to_a=*/true);
  Fetch(1, 1);
  PublishAndHold(5);
  EXPECT_EQ(Last(kTrainer[0], Kind::kPublishAccepted)->publish_accepted().groups_size(), 1);
  EXPECT_EQ(Prepared(0), 5u);
  EXPECT_EQ(Prepared(1), 0u);
  ShowWhatArrives(0, 5);
  EXPECT_EQ(Prepared(1), 5u);  // From the trainers, in the term at hand.
  EXPECT_EQ(Count(kWorker[1], Kind::kPlan), 0);
  EXPECT_EQ(Count(kTrainer[0], Kind::kOutcome), 1);
}

TEST_F(FetchTest, AVersionThatIsGivenUpIsNotFetched) {
  groups_ = {"a", "b"};
  EstablishFetching(/*pushed_to_a=*/true);
  Fetch(1, 1);
  PublishAndHold(5);
  Refuse(0);
  EXPECT_EQ(Error(kTrainer[0], Kind::kOutcome), "worker 0 refused: warming up");
  EXPECT_EQ(Prepared(1), 0u);
}

TEST_F(FetchTest, AGroupThatFetchesIsNotMissedWhenItIsGone) {
  groups_ = {"a", "b"};
  EstablishFetching(/*pushed_to_a=*/true);
  Fetch(1, 1);
  PublishAndHold(5);
  ShowWhatArrives(0, 5);
  ShowWhatArrives(1, 5);
  Gone(kWorker[1]);
  PublishAndHold(6);
  ShowWhatArrives(0, 6);
  EXPECT_EQ(Count(kTrainer[0], Kind::kOutcome), 2);
  EXPECT_TRUE(Last(kTrainer[0], Kind::kOutcome)->outcome().committed());
}

TEST_F(FetchTest, AVersionThatATrainerHasOvertakenIsNotFetched) {
  EstablishFetching();
  PublishHeld(0, 5);
  PublishHeld(1, 6);
  PublishHeld(0, 6);
  for (const uint32_t t : {0u, 1u}) Hold(t, 6);
  for (const uint32_t w : {0u, 1u}) Fetch(w, 1);
  EXPECT_EQ(Last(kWorker[0], Kind::kPrepare)->prepare().version(), 6u);
}

TEST_F(FetchTest, APublishThatWaitedForALostGroupNamesIt) {
  groups_ = {"a", "b"};
  EstablishFetching(/*pushed_to_a=*/true);
  PublishAndHold(5);
  ShowWhatArrives(0, 5);
  Gone(kWorker[0]);
  for (const uint32_t t : {0u, 1u}) Publish(t, 6, /*deadline_ms=*/1000);
  EXPECT_EQ(Count(kTrainer[0], Kind::kPublishRefused), 0);
  Pass(absl::Seconds(1));
  EXPECT_EQ(Error(kTrainer[0], Kind::kPublishRefused),
            "publish version 6: still waiting for group a (group a is not here: worker 0 of group "
            "\"a\" is gone: its stream ended)");
}

TEST_F(FetchTest, AGroupGetsVersionsInOneWay) {
  MakeCoordinator();
  JoinFetching(0);
  JoinFetching(1, /*fetches=*/false);
  EXPECT_EQ(Error(kWorker[1], Kind::kDismissal),
            "join: worker 1 gets versions as published, unlike other workers of its group");
}

TEST_F(CatchUpTest, APublishGoesWithoutAGroupThatCatchesUpForLong) {
  JoinShowing(1, 0);
  ConnectLoan();
  for (const uint32_t t : {0u, 1u}) Publish(t, 6);
  EXPECT_EQ(Count(kWorker[0], Kind::kPrepare), 0);
  Pass(absl::Milliseconds(250));
  EXPECT_EQ(Last(kWorker[0], Kind::kPrepare)->prepare().version(), 6u);
  EXPECT_EQ(Last(kTrainer[0], Kind::kOutcome)->outcome().group(), "b");
  EXPECT_EQ(
      Error(kTrainer[0], Kind::kOutcome),
      "group b is not whole: waiting for READY of worker 0 (its buffer, or its program's answer "
      "to PREPARE)");
  Ready(0);
  Arrived(0);
  Shown(0);
  EXPECT_EQ(Count(kWorker[1], Kind::kAbort), 0);  // What is lent is held.
}

// A worker whose user never answers would keep all publishes waiting for ten minutes.
TEST_F(CatchUpTest, APublishEndsWhatARequiredGroupCatchesUpOnForLong) {
  required_ = {"b"};
  SetUp();
  JoinShowing(1, 0);
  ConnectLoan();
  Ready(1);
  for (const uint32_t t : {0u, 1u}) Publish(t, 6);
  Pass(absl::Milliseconds(249));
  EXPECT_EQ(Count(kWorker[1], Kind::kAbort), 0);
  Pass(absl::Milliseconds(1));
  EXPECT_EQ(Error(kWorker[1], Kind::kAbort), "version 6 is published, which replaces it");
  EXPECT_EQ(LenderOf(kWorker[1]), "");
  OfferIn("b");
  ConnectIn("b");
  for (const uint32_t w : {0u, 1u}) {
    EXPECT_EQ(Last(kWorker[w], Kind::kPrepare)->prepare().version(), 6u) << w;
  }
}

TEST_F(HeldCatchUpTest, TheNextPublishEndsIt) {
  Ready(1);
  for (const uint32_t t : {0u, 1u}) Publish(t, 6);
  EXPECT_EQ(Error(kWorker[1], Kind::kAbort), "version 6 is published, which replaces it");
  EXPECT_EQ(Last(kWorker[1], Kind::kPrepare)->prepare().version(), 6u);
}

TEST_F(CatchUpTest, APublishEndsALoanToARequiredGroupThatHasNoLanesForLong) {
  required_ = {"b"};
  SetUp();
  JoinShowing(1, 0);
  for (const uint32_t t : {0u, 1u}) Publish(t, 6);
  EXPECT_EQ(LenderOf(kWorker[1]), "a");
  Pass(absl::Milliseconds(250));
  EXPECT_EQ(LenderOf(kWorker[1]), "");
  OfferIn("b");
  ConnectIn("b");
  EXPECT_EQ(Last(kWorker[1], Kind::kPrepare)->prepare().version(), 6u);
}

TEST_F(CatchUpTest, AGroupWhoseRoundFailedCatchesUpFromOneWhoseRoundDidNot) {
  JoinShowing(1, 5);
  OfferIn("b");
  ConnectIn("b");
  for (const uint32_t t : {0u, 1u}) Publish(t, 6);
  Refuse(1);
  Ready(0);
  Arrived(0);
  EXPECT_EQ(LenderOf(kWorker[1]), "");  // Group a does not show it yet.
  Tell(kWorker[0], [&](auto& m) {
    *m.mutable_shown()->mutable_round() = round(0);
    m.mutable_shown()->set_version(6);
  });
  EXPECT_EQ(LenderOf(kWorker[1]), "a");
  EXPECT_EQ(Last(kWorker[1], Kind::kPlan)->plan().lent_version(), 6u);
  // Whoever refuses it again is left alone.
  ConnectLoan();
  Refuse(1);
  EXPECT_EQ(LenderOf(kWorker[1]), "");
  OfferIn("b");
  ConnectIn("b");
  EXPECT_EQ(coordinator_->Status().groups(1).phase(), "ready");
}

// Its lender may have been short of memory, say.
TEST_F(CatchUpTest, AGroupThatGaveUpCatchesUpWithTheNextVersionOfOthers) {
  JoinShowing(1, 0);
  for (int tries = 0; tries < 3; ++tries) {
    Tell(kWorker[0], [&](auto& m) { m.mutable_connect_failed()->set_epoch(epochs_.at("b")); });
    Pass(absl::Seconds(5));
  }
  OfferIn("b");
  ConnectIn("b");
  EXPECT_EQ(LenderOf(kWorker[1]), "");
  for (const uint32_t t : {0u, 1u}) Publish(t, 6);
  Refuse(1);
  Ready(0);
  Arrived(0);
  Tell(kWorker[0], [&](auto& m) {
    *m.mutable_shown()->mutable_round() = round(0);
    m.mutable_shown()->set_version(6);
  });
  EXPECT_EQ(LenderOf(kWorker[1]), "a");
}

TEST_F(CatchUpTest, APublishWaitsForAGroupThatCatchesUpAtOnce) {
  JoinShowing(1, 0);
  ConnectLoan();
  for (const uint32_t t : {0u, 1u}) Publish(t, 6);
  Ready(1);
  Arrived(1);
  OfferIn("b");
  ConnectIn("b");
  for (const uint32_t w : {0u, 1u}) {
    EXPECT_EQ(Last(kWorker[w], Kind::kPrepare)->prepare().version(), 6u) << w;
  }
}

// A worker of yesterday's job, say, or of a job with the same token and another controller.
TEST_F(CatchUpTest, WhatThisJobHasNotDecidedIsNotLent) {
  shown_sequence_ = 2;
  for (const uint64_t version : {5u, 1000u}) {
    Gone(kWorker[0]);
    JoinShowing(0, version);
    JoinShowing(1, 0);
    EXPECT_EQ(LenderOf(kWorker[1]), "");
    Gone(kWorker[1]);
  }
  // Group b has not decided anything.
  shown_sequence_ = 1;
  JoinShowing(1, 5);
  Gone(kWorker[0]);
  JoinShowing(0, 0);
  EXPECT_NE(LenderOf(kWorker[0]), "b");
}

TEST_F(CatchUpTest, WhatAWorkerSaysItShowsIsNotLentEither) {
  Tell(kWorker[0], [&](auto& m) { m.mutable_shown()->set_version(1000); });
  JoinShowing(1, 0);
  EXPECT_EQ(LenderOf(kWorker[1]), "");
}

TEST_F(CatchUpTest, AWorkerThatShowsWhatIsNotOfThisJobHasAPartInItsUpdates) {
  JoinShowing(1, 1000);
  ConnectLoan();
  EXPECT_EQ(Last(kWorker[1], Kind::kPrepare)->prepare().version(), 5u);
  Refuse(1);  // Its engine shows a later one.
  OfferIn("b");
  ConnectIn("b");
  for (const uint32_t t : {0u, 1u}) Publish(t, 6);
  EXPECT_EQ(Last(kWorker[1], Kind::kPrepare)->prepare().version(), 6u);
}

TEST_F(CatchUpTest, AWorkerThatShowsAVersionLateHasNotMissedIt) {
  JoinShowing(1, 5);
  OfferIn("b");
  ConnectIn("b");
  for (const uint32_t t : {0u, 1u}) Publish(t, 6, /*deadline_ms=*/1000);
  for (const uint32_t w : {0u, 1u}) Ready(w);
  for (const uint32_t w : {0u, 1u}) Arrived(w);
  Tell(kWorker[0], [&](auto& m) {
    *m.mutable_shown()->mutable_round() = round(0);
    m.mutable_shown()->set_version(6);
  });
  Pass(absl::Seconds(1));
  EXPECT_EQ(LenderOf(kWorker[1]), "");
  EXPECT_EQ(coordinator_->Status().groups(1).phase(), "ready");
}

TEST_F(CatchUpTest, AWorkerThatCannotShowAVersionHasMissedIt) {
  JoinShowing(1, 5);
  OfferIn("b");
  ConnectIn("b");
  for (const uint32_t t : {0u, 1u}) Publish(t, 6);
  for (const uint32_t w : {0u, 1u}) Ready(w);
  for (const uint32_t w : {0u, 1u}) Arrived(w);
  Tell(kWorker[0], [&](auto& m) {
    *m.mutable_shown()->mutable_round() = round(0);
    m.mutable_shown()->set_version(6);
  });
  Tell(kWorker[1], [&](auto& m) {
    *m.mutable_failed()->mutable_round() = round(1);
    *m.mutable_failed()->mutable_error() = EncodeError(absl::InternalError("the GPU is gone"));
  });
  EXPECT_EQ(LenderOf(kWorker[1]), "a");
}

TEST_F(CatchUpTest, AGroupCatchesUpWithoutTheTrainers) {
  Gone(kTrainer[1]);
  JoinShowing(1, 0);
  EXPECT_EQ(LenderOf(kWorker[1]), "a");
}

TEST_F(CatchUpTest, NothingIsLentToAGroupThatHasItOrDoesNotWantIt) {
  JoinShowing(1, 5);
  EXPECT_EQ(LenderOf(kWorker[1]), "");
  Gone(kWorker[1]);
  catch_up_ = false;
  JoinShowing(1, 0);
  EXPECT_EQ(LenderOf(kWorker[1]), "");
}

TEST_F(CatchUpTest, MemoryThatIsWrittenInPlaceIsNotLent) {
  Gone(kWorker[0]);
  Join(kWorker[0], Role::kWorker, 0, [&](proto::Join& join) {
    join.set_shown_version(5);
    join.set_mode(static_cast<uint32_t>(Mode::kInPlace));
  });
  JoinShowing(1, 0);
  EXPECT_EQ(LenderOf(kWorker[1]), "");
}

TEST_F(CatchUpTest, ALenderThatDiesLeavesTheGroupToTheTrainers) {
  JoinShowing(1, 0);
  ConnectLoan();
  Ready(1);
  Gone(kWorker[0]);
  EXPECT_EQ(Error(kWorker[1], Kind::kAbort), "worker 0 of group \"a\" is gone: its stream ended");
  EXPECT_EQ(LenderOf(kWorker[1]), "");
}

// It may show a later version by the time it hears of the loan.
TEST_F(CatchUpTest, ALenderIsAskedThreeTimes) {
  JoinShowing(1, 0);
  for (const int attempt : {1, 2, 3}) {
    EXPECT_EQ(LenderOf(kWorker[1]), "a") << attempt;
    Tell(kWorker[0], [&](auto& m) {
      m.mutable_connect_failed()->set_epoch(epochs_.at("b"));
      *m.mutable_connect_failed()->mutable_error() =
          EncodeError(absl::FailedPreconditionError("it shows version 6, not 5"));
    });
    Pass(absl::Seconds(1));
  }
  EXPECT_EQ(LenderOf(kWorker[1]), "");
}

TEST_F(CatchUpTest, ALenderThatMakesNoLanesIsNotSentAway) {
  JoinShowing(1, 0);
  Pass(absl::Seconds(30));
  EXPECT_TRUE(closed_.empty());
  EXPECT_EQ(LenderOf(kWorker[1]), "");
}

TEST_F(CatchUpTest, ALenderWhoseBytesAreWrongIsNotAskedAgain) {
  JoinShowing(1, 0);
  ConnectLoan();
  Ready(1);
  Tell(kWorker[1], [&](auto& m) {
    *m.mutable_failed()->mutable_round() = round(1);
    *m.mutable_failed()->mutable_error() = EncodeError(absl::DataLossError("its digest is wrong"));
  });
  EXPECT_EQ(Count(kWorker[1], Kind::kCommit), 0);
  EXPECT_EQ(LenderOf(kWorker[1]), "");
  EXPECT_EQ(coordinator_->Status().groups(1).catch_up_trouble(),
            "catch up from group a: worker 0: its digest is wrong");
}

TEST_F(CatchUpTest, AUserWhoDoesNotPauseForItDoesNotHoldItsGroupUp) {
  JoinShowing(1, 0);
  ConnectLoan();
  Pass(absl::Seconds(5));
  EXPECT_EQ(LenderOf(kWorker[1]), "");
}

TEST_F(CatchUpTest, WhatMovesMayTakeItsTime) {
  JoinShowing(1, 0);
  ConnectLoan();
  Ready(1);
  Pass(absl::Seconds(50));
  EXPECT_EQ(Count(kWorker[1], Kind::kAbort), 0);
}

TEST_F(CoordinatorTest, ALaterVersionWaitsItsTurn) {
  MakeCoordinator();
  Establish();
  Decide(5);
  for (const uint32_t t : {0u, 1u}) Publish(t, 6);
  EXPECT_EQ(Count(kTrainer[1], Kind::kPublishRefused), 0);
  EXPECT_EQ(Count(kWorker[0], Kind::kPrepare), 1);
  for (const uint32_t w : {0u, 1u}) Shown(w);
  EXPECT_EQ(Count(kWorker[0], Kind::kPrepare), 2);
  EXPECT_EQ(Last(kWorker[0], Kind::kPrepare)->prepare().version(), 6u);
}

TEST_F(CoordinatorTest, AVersionThatIsOvertakenBeforeItBeginsIsGivenUpAndComesTooLate) {
  MakeCoordinator();
  Establish();
  Decide(5);
  Publish(1, 6);
  Publish(0, 7);
  EXPECT_EQ(Error(kTrainer[1], Kind::kOutcome),
            "publish version 6: trainer 0 publishes version 7, and has not published this one");
  Publish(1, 7);
  for (const uint32_t w : {0u, 1u}) Shown(w);
  for (const uint32_t w : {0u, 1u}) Ready(w);
  for (const uint32_t w : {0u, 1u}) Arrived(w);
  Publish(0, 6);
  EXPECT_EQ(Error(kTrainer[0], Kind::kPublishRefused),
            "publish version 6: version 7 is committed, and versions only grow");
}

TEST_F(CoordinatorTest, AVersionEndsOnceATrainerThatLacksItPublishesALaterOne) {
  for (const bool begun : {true, false}) {
    SCOPED_TRACE(begun);
    MakeCoordinator();
    Establish();
    Publish(0, 5, 10'000);
    if (begun) {
      for (const uint32_t w : {0u, 1u}) Ready(w);
      ASSERT_EQ(Count(kTrainer[0], Kind::kStart), 1);
    }
    Publish(1, 6, 10'000);
    EXPECT_EQ(Error(kTrainer[0], begun ? Kind::kAbort : Kind::kOutcome),
              "publish version 5: trainer 1 publishes version 6, and has not published this one");
    EXPECT_EQ(Count(kWorker[0], Kind::kAbort), 1);
    sent_.clear();
  }
}

TEST_F(CoordinatorTest, AVersionEndsAtOnceIfATrainerThatLacksItHasPublishedALaterOne) {
  MakeCoordinator();
  Establish();
  Publish(1, 6, 10'000);
  Publish(0, 5, 10'000);
  EXPECT_EQ(Error(kTrainer[0], Kind::kPublishRefused),
            "publish version 5: trainer 1 publishes version 6, and has not published this one");
  EXPECT_EQ(Count(kWorker[0], Kind::kAbort), 0);
}

TEST_F(CoordinatorTest, AVersionThatWaitsForRanksEndsIfATrainerWithdrawsItAndPublishesALaterOne) {
  MakeCoordinator();
  Establish();
  Gone(kWorker[0]);
  for (const uint32_t t : {0u, 1u}) Publish(t, 5, 10'000);
  Publish(1, 6, 10'000);
  ASSERT_EQ(Count(kTrainer[0], Kind::kPublishRefused), 0);
  Tell(kTrainer[1], [](auto& m) { m.mutable_withdraw()->set_version(5); });
  EXPECT_EQ(Error(kTrainer[0], Kind::kPublishRefused),
            "publish version 5: trainer 1 publishes version 6, and has not published this one");
}

TEST_F(CoordinatorTest, ATrainerThatHasPublishedAVersionDoesNotOvertakeIt) {
  MakeCoordinator();
  Establish();
  for (const uint32_t t : {0u, 1u}) Publish(t, 5);
  for (const uint32_t w : {0u, 1u}) Ready(w);
  Publish(1, 6);
  EXPECT_EQ(Count(kTrainer[0], Kind::kAbort) + Count(kTrainer[0], Kind::kOutcome), 0);
  for (const uint32_t w : {0u, 1u}) Arrived(w);
  for (const uint32_t w : {0u, 1u}) Shown(w);
  EXPECT_TRUE(Last(kTrainer[0], Kind::kOutcome)->outcome().committed());
}

TEST_F(CoordinatorTest, TheStatusHasTheVersionThatAGroupLostUntilItShowsAnother) {
  MakeCoordinator();
  Establish();
  Publish(0, 5, 10'000);
  Publish(1, 5, 10'000);
  Refuse(1);
  EXPECT_EQ(coordinator_->Status().groups(0).lost_version(), 5u);
  EXPECT_THAT(coordinator_->Status().groups(0).lost_why(), testing::HasSubstr("worker 1 refused"));
  Decide(6);
  for (const uint32_t w : {0u, 1u}) Shown(w);
  EXPECT_EQ(coordinator_->Status().groups(0).lost_version(), 0u);
  EXPECT_EQ(coordinator_->Status().groups(0).lost_why(), "");
}

TEST_F(CoordinatorTest, ALaneThatDiedWithItsRankIsNotCounted) {
  MakeCoordinator();
  Establish();
  LoseALane();
  Gone(kWorker[0]);
  Join(kWorker[0], Role::kWorker, 0);
  Connect();
  EXPECT_EQ(coordinator_->Status().phase(), "ready");
  EXPECT_THAT(coordinator_->Status().groups(0).lanes_lost(), testing::IsEmpty());
}

TEST_F(CoordinatorTest, AVersionIsUnchangedIfItIsForEveryWorkerOfTheGroup) {
  MakeCoordinator();
  Establish();
  const auto told = [this](uint64_t version, bool first, bool second) {
    Decide(version);
    Shown(0, first);
    Shown(1, second);
    return Last(kTrainer[0], Kind::kOutcome)->outcome().unchanged();
  };
  EXPECT_FALSE(told(5, false, false));
  EXPECT_FALSE(told(6, true, false));
  EXPECT_TRUE(told(7, true, true));
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
            "version 5: the deadline is over, waiting for READY of worker 0, 1 (its buffer, or its "
            "program's answer to PREPARE)");
}

TEST_F(CoordinatorTest, ATrainerThatPublishesAfterTheAbortIsToldSo) {
  MakeCoordinator();
  Establish();
  Publish(0, 5);
  Tell(kWorker[0], [&](auto& m) {
    *m.mutable_refused()->mutable_round() = round();
    *m.mutable_refused()->mutable_error() = EncodeError(absl::UnavailableError("warming up"));
  });
  const int prepares = Count(kWorker[0], Kind::kPrepare);
  Publish(1, 5);
  EXPECT_EQ(Error(kTrainer[1], Kind::kPublishRefused), "worker 0 refused: warming up");
  EXPECT_EQ(Count(kWorker[0], Kind::kPrepare), prepares);
}

TEST_F(CoordinatorTest, TheStatusHasTheNewestPublishedVersionAlsoIfItFailed) {
  MakeCoordinator({{3, 7, 4, "all"}}, /*durable=*/true);
  EXPECT_EQ(coordinator_->Status().published_version(), 4u);
  Establish();
  Publish(0, 5);
  Refuse(0);
  EXPECT_EQ(coordinator_->Status().published_version(), 5u);
  EXPECT_EQ(coordinator_->Status().committed_version(), 4u);
}

TEST_F(CoordinatorTest, ATrainerIsToldOfAnAbortOnceAndOnlyIfItHasStarted) {
  groups_ = {"a", "b"};
  MakeCoordinator();
  Establish();
  Publish(0, 5);
  Ready(0);
  for (const uint32_t w : {0u, 1u}) Refuse(w);
  EXPECT_EQ(Count(kTrainer[0], Kind::kAbort), 1);
  EXPECT_EQ(Count(kTrainer[0], Kind::kOutcome), 2);
  EXPECT_EQ(Count(kTrainer[1], Kind::kAbort), 0);
  Publish(1, 5);
  EXPECT_EQ(Error(kTrainer[1], Kind::kPublishRefused), "worker 0 refused: warming up");
}

// Found by the simulation: its stream was dead, and the controller did not know it yet.
TEST_F(CoordinatorTest, ATrainerThatIsLostAfterAnAbortIsToldOfItWhenItPublishesAgain) {
  MakeCoordinator();
  Establish();
  Publish(0, 5);
  Publish(1, 5);
  Refuse(0);
  Gone(kTrainer[1]);
  Join(kTrainer[1], Role::kTrainer, 1);
  Connect();
  Publish(1, 5);
  EXPECT_EQ(Error(kTrainer[1], Kind::kPublishRefused), "worker 0 refused: warming up");
}

// --- groups ---

TEST_F(CoordinatorTest, AGroupJoinsWhileTheOthersTermGoesOn) {
  EstablishGroupA();
  const uint64_t term = epochs_.at("a");
  Publish(0, 5);
  Ready(0);
  Join(kWorker[1], Role::kWorker, 1);
  OfferIn("b");
  ConnectIn("b");
  Publish(1, 5);
  Arrived(0);
  Shown(0);
  EXPECT_EQ(epochs_.at("a"), term);
  EXPECT_EQ(Count(kWorker[1], Kind::kPrepare), 0);
  Decide(6);
  EXPECT_EQ(Count(kWorker[1], Kind::kCommit), 1);
}

// Groups of one worker each come, show a version and go, one a second.
class PassingGroupsTest : public CoordinatorTest {
 protected:
  void SetUp() override {
    groups_ = {"nobody", "nobody"};
    MakeCoordinator();
    for (const uint32_t t : {0u, 1u}) Join(kTrainer[t], Role::kTrainer, t);
  }
  void Come(const std::string& name) {
    groups_[1] = name;
    Join(kWorker[1], Role::kWorker, 1);
    OfferIn(name);
    ConnectIn(name);
  }
  void ComeAndGo(const std::string& name) {
    Come(name);
    ++version_;
    for (const uint32_t t : {0u, 1u}) Publish(t, version_);
    Ready(1);
    Arrived(1);
    Shown(1);
    Gone(kWorker[1]);
    sent_.clear();
    epochs_.clear();
    recorded_.clear();
    Pass(absl::Seconds(1));
  }
  // The controller looks once more before it forgets.
  void PassLongTime() {
    Pass(absl::Hours(1));
    Pass(absl::Minutes(1));
  }

  uint64_t version_ = 0;
};

TEST_F(PassingGroupsTest, AreForgottenAndVersionsOnlyGrow) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr int kGroups = 1000;  // Ten times as slow there.
#else
  constexpr int kGroups = 10'000;
#endif
  forgotten_.reserve(kGroups + 100);  // The test's own record is not counted.
  const auto come_and_go = [&](int begin, int end) {
    const std::clock_t began = std::clock();
    for (int i = begin; i < end; ++i) ComeAndGo(absl::StrCat("pod ", i));
    const size_t memory = mallinfo2().uordblks;
    std::cout << "groups " << begin << " to " << end << ": "
              << 1'000'000 * (std::clock() - began) / CLOCKS_PER_SEC / (end - begin)
              << " us each, then " << memory / 1024 << " KiB\n";
    return memory;
  };
  const size_t of_ten = come_and_go(0, 10);
  const size_t of_ten_minutes = come_and_go(10, 700);
  EXPECT_LT(come_and_go(700, kGroups), of_ten_minutes + (64 << 10));
  // The store has what was decided in the last ten minutes, one decision a second.
  EXPECT_EQ(version_ - forgotten_.size(), 599u);
  PassLongTime();
  EXPECT_EQ(forgotten_.size(), kGroups - 1u);  // All but the newest.
  PassLongTime();
  EXPECT_EQ(forgotten_.size(), kGroups - 1u);
  EXPECT_LT(come_and_go(kGroups, kGroups + 10), of_ten + (64 << 10));
  Come("late");
  Publish(0, version_);
  EXPECT_THAT(Error(kTrainer[0], Kind::kPublishRefused),
              testing::EndsWith(" is committed, and versions only grow"));
  Gone(kWorker[1]);
  ComeAndGo("later");
  PassLongTime();
  EXPECT_EQ(forgotten_.size(), kGroups + 10u);
  EXPECT_EQ(forgotten_.back(), absl::StrCat("pod ", kGroups + 9));
}

TEST_F(PassingGroupsTest, AGroupThatComesBackIsNotForgotten) {
  ComeAndGo("a");
  ComeAndGo("b");
  Pass(absl::Minutes(5));
  ComeAndGo("a");
  ComeAndGo("b");
  Pass(absl::Minutes(6));
  EXPECT_TRUE(forgotten_.empty());
  Come("a");
  PassLongTime();
  EXPECT_TRUE(forgotten_.empty());  // Group a is here, and group b has the newest decision.
}

// Its worker has voted, and nobody knows any more for what.
TEST_F(PassingGroupsTest, AWorkerOfAForgottenGroupIsInDoubtUntilItsGroupIsWhole) {
  ComeAndGo("a");
  ComeAndGo("b");
  PassLongTime();
  ASSERT_EQ(forgotten_, std::vector<std::string>{"a"});
  groups_ = {"a", "a"};
  const auto join = [&](uint32_t w, uint64_t committed) {
    Join(kWorker[w], Role::kWorker, w, [&](proto::Join& join) {
      join.mutable_doubt()->mutable_round()->set_epoch(uint64_t{7} << kEpochCountBits);
      join.mutable_doubt()->set_version(1);
      if (committed == 0) return;
      join.clear_doubt();
      join.set_committed_version(committed);
    });
  };
  join(0, 0);
  EXPECT_EQ(Count(kWorker[0], Kind::kAbort) + Count(kWorker[0], Kind::kCommit), 0);
  join(1, 1);
  EXPECT_EQ(Count(kWorker[0], Kind::kCommit), 1);
}

TEST_F(CoordinatorTest, EveryTrainerIsToldOnceOfEachGroupThatComesAndGoes) {
  EstablishGroupA();
  EXPECT_EQ(Count(kTrainer[0], Kind::kGroupChange), 1);
  EXPECT_EQ(Last(kTrainer[0], Kind::kGroupChange)->group_change().group(), "a");
  Join(kWorker[1], Role::kWorker, 1);
  OfferIn("b");
  ConnectIn("b");
  EXPECT_EQ(Count(kTrainer[0], Kind::kGroupChange), 2);
  Gone(kWorker[1]);
  EXPECT_EQ(Last(kTrainer[0], Kind::kGroupChange)->group_change().group(), "b");
  EXPECT_FALSE(Last(kTrainer[0], Kind::kGroupChange)->group_change().here());
  for (const uint32_t w : {0, 1}) EXPECT_EQ(Count(kWorker[w], Kind::kGroupChange), 0);
}

TEST_F(CoordinatorTest, TrainersAreToldOfEachWorkerThatIsGoneWhileOthersOfItsGroupAreHere) {
  MakeCoordinator();
  Establish();
  Gone(kWorker[1]);
  const proto::ControllerMessage* lost = Last(kTrainer[0], Kind::kGroupChange);
  ASSERT_NE(lost, nullptr);
  EXPECT_EQ(lost->group_change().group(), "all");
  EXPECT_EQ(lost->group_change().lost().message(), "worker 1 is gone: its stream ended");
  sent_.clear();
  Gone(kWorker[0]);  // Nobody of the group is here any more: that is told instead.
  EXPECT_FALSE(Last(kTrainer[0], Kind::kGroupChange)->group_change().has_lost());
}

TEST_F(CoordinatorTest, WhoAsksForAnyRankGetsTheLowestThatIsFree) {
  MakeCoordinator();
  const auto any = [](proto::Join& join) { join.set_any_rank(true); };
  Join(kWorker[1], Role::kWorker, 0, any);
  EXPECT_EQ(Last(kWorker[1], Kind::kAssigned)->assigned().rank(), 0u);
  Join(kWorker[0], Role::kWorker, 1, any);
  EXPECT_EQ(Last(kWorker[0], Kind::kAssigned)->assigned().rank(), 1u);
  Join(30, Role::kWorker, 0, any);
  EXPECT_EQ(Error(30, Kind::kDismissal), "join: all 2 workers of group all are here");
  Gone(kWorker[1]);
  Join(31, Role::kWorker, 1, any);
  EXPECT_EQ(Last(31, Kind::kAssigned)->assigned().rank(), 0u);
}

TEST_F(CoordinatorTest, AVersionGoesWithoutAGroupThatIsNotWhole) {
  groups_ = {"a", "b"};
  MakeCoordinator();
  for (const uint32_t t : {0u, 1u}) Join(kTrainer[t], Role::kTrainer, t);
  Join(kWorker[0], Role::kWorker, 0);
  Join(kWorker[1], Role::kWorker, 1, [](proto::Join& join) { join.set_world(2); });
  OfferIn("a");
  ConnectIn("a");
  Publish(0, 5);
  EXPECT_EQ(Error(kTrainer[0], Kind::kOutcome),
            "group b is not whole: waiting for worker 1 of group \"b\"");
  EXPECT_EQ(Count(kWorker[0], Kind::kPrepare), 1);
}

TEST_F(CoordinatorTest, AVersionWaitsForAGroupWhoseLanesAreBeingMadeButNotForLong) {
  groups_ = {"a", "b"};
  MakeCoordinator();
  JoinAll();
  OfferIn("a");
  ConnectIn("a");
  Publish(0, 5);
  EXPECT_EQ(Count(kWorker[0], Kind::kPrepare), 0);
  Pass(absl::Seconds(5));
  EXPECT_EQ(Count(kWorker[0], Kind::kPrepare), 1);
  EXPECT_EQ(Count(kTrainer[0], Kind::kOutcome), 1);
}

TEST_F(CoordinatorTest, NoVersionGoesWithoutARequiredGroup) {
  groups_ = {"a", "b"};
  required_ = {"b"};
  MakeCoordinator();
  for (const uint32_t t : {0u, 1u}) Join(kTrainer[t], Role::kTrainer, t);
  Join(kWorker[0], Role::kWorker, 0);
  OfferIn("a");
  ConnectIn("a");
  Publish(0, 5);
  Pass(absl::Seconds(4));
  EXPECT_EQ(Count(kWorker[0], Kind::kPrepare), 0);
  Pass(absl::Seconds(1));
  EXPECT_EQ(Error(kTrainer[0], Kind::kPublishRefused),
            "publish version 5: it cannot begin without every worker of group b");
  Publish(0, 5);
  Join(kWorker[1], Role::kWorker, 1);
  OfferIn("b");
  ConnectIn("b");
  EXPECT_EQ(Count(kWorker[0], Kind::kPrepare), 1);
  EXPECT_EQ(Count(kWorker[1], Kind::kPrepare), 1);
}

TEST_F(CoordinatorTest, ASlowGroupDelaysNoOther) {
  groups_ = {"a", "b"};
  MakeCoordinator();
  Establish();
  for (const uint32_t t : {0u, 1u}) Publish(t, 5);
  for (const uint32_t w : {0u, 1u}) Ready(w);
  Arrived(0);
  Shown(0);
  EXPECT_TRUE(Last(kTrainer[0], Kind::kOutcome)->outcome().committed());
  for (const uint32_t t : {0u, 1u}) Publish(t, 6);
  EXPECT_EQ(Last(kWorker[0], Kind::kPrepare)->prepare().version(), 6u);
  EXPECT_EQ(Last(kWorker[1], Kind::kPrepare)->prepare().version(), 5u);
  Arrived(1);
  Shown(1);
  EXPECT_EQ(Last(kWorker[1], Kind::kPrepare)->prepare().version(), 6u);
}

// Found by the simulation: it began with nobody who publishes, and had no deadline.
TEST_F(CoordinatorTest, WhatWaitsForItsTurnIsGivenUpWithATrainerThatPublishesIt) {
  MakeCoordinator();
  Establish();
  Decide(5);
  Shown(0);
  Publish(0, 6);
  Publish(1, 6);
  Gone(kTrainer[0]);
  EXPECT_EQ(Error(kTrainer[1], Kind::kOutcome), "trainer 0 is gone: its stream ended");
  Shown(1);
  EXPECT_EQ(Count(kWorker[0], Kind::kPrepare), 1);
}

TEST_F(CoordinatorTest, AGroupThatDoesNotFitTheTrainersIsRefusedAlone) {
  EstablishGroupA();
  stranger_ = true;
  Join(kWorker[1], Role::kWorker, 1);
  EXPECT_EQ(closed_, std::vector<ConnectionId>{kWorker[1]});
  EXPECT_THAT(Error(kWorker[1], Kind::kDismissal), testing::HasSubstr("\"v\""));
  Publish(0, 5);
  EXPECT_EQ(Count(kWorker[0], Kind::kPrepare), 1);
}

// The user of the trainer that was told takes the version for failed.
TEST_F(CoordinatorTest, AVersionThatFailedByAnEarlierControllerIsNotCommittedByOneWhoHasNotHeard) {
  for (const bool publishes_first : {false, true}) {
    SCOPED_TRACE(publishes_first);
    MakeCoordinator();
    const auto come_back = [&] {
      Gone(kTrainer[0]);
      Join(kTrainer[0], Role::kTrainer, 0, [](proto::Join& join) { join.add_failed_versions(5); });
      OfferIn("all");
      ConnectIn("all");
    };
    Establish();
    if (publishes_first) {
      Gone(kTrainer[0]);
      Publish(1, 5);  // It waits for trainer 0.
      Join(kTrainer[0], Role::kTrainer, 0, [](proto::Join& join) { join.add_failed_versions(5); });
      OfferIn("all");
      ConnectIn("all");
    } else {
      come_back();
      Publish(1, 5);
    }
    EXPECT_THAT(Error(kTrainer[1], Kind::kPublishRefused),
                testing::HasSubstr("it failed at trainer 0"));
    // Both have heard it now.
    for (const uint32_t t : {0u, 1u}) Publish(t, 5);
    EXPECT_EQ(Count(kTrainer[1], Kind::kPublishRefused), 1);
    EXPECT_EQ(Count(kWorker[0], Kind::kPrepare), 1);
  }
}

// A trainer that asks about it was away from the group for as long.
TEST_F(PassingGroupsTest, WhatWasDecidedBeforeAGroupWasForgottenIsNotKnown) {
  ComeAndGo("a");  // Commits version 1.
  ComeAndGo("b");
  PassLongTime();
  ASSERT_EQ(forgotten_, std::vector<std::string>{"a"});
  Gone(kTrainer[1]);
  Join(kTrainer[1], Role::kTrainer, 1, [](proto::Join& join) {
    for (const uint64_t version : {1, 3, 5}) join.add_undecided_versions(version);
  });
  const auto told = [&] {
    std::vector<absl::StatusCode> codes;
    for (const auto& message : sent_[kTrainer[1]]) {
      if (message.has_outcome()) codes.push_back(DecodeError(message.outcome().error()).code());
    }
    return codes;
  };
  Come("a");
  EXPECT_EQ(told(), (std::vector{absl::StatusCode::kUnknown, absl::StatusCode::kUnavailable,
                                 absl::StatusCode::kUnavailable}));
}

TEST_F(CoordinatorTest, WhatIsOlderThanTheDecisionsThatAreKeptIsNotKnown) {
  std::vector<Decision> decisions;
  for (uint32_t i = 0; i < kDecisionsKept; ++i) decisions.push_back({3, i + 1, 6 + i, "all"});
  MakeCoordinator(decisions, /*durable=*/true);
  Join(kTrainer[0], Role::kTrainer, 0, [](proto::Join& join) {
    for (const uint64_t version : {5, 6, 10}) join.add_undecided_versions(version);
  });
  Join(kTrainer[1], Role::kTrainer, 1);
  for (const uint32_t w : {0u, 1u}) Join(kWorker[w], Role::kWorker, w);
  OfferIn("all");
  ConnectIn("all");
  std::vector<absl::StatusCode> told;
  for (const auto& message : sent_[kTrainer[0]]) {
    if (message.has_outcome()) told.push_back(DecodeError(message.outcome().error()).code());
  }
  EXPECT_EQ(told, (std::vector{absl::StatusCode::kUnknown, absl::StatusCode::kOk,
                               absl::StatusCode::kUnavailable}));
}

// --- the rest of an update ---

// A renewal reaches a trainer that is not started in the update that made it necessary, even if
// that update is over when READY comes.
TEST_F(CoordinatorTest, ARenewedBufferIsToldToEveryTrainerThatWritesToIt) {
  MakeCoordinator();
  Establish();
  Publish(0, 5, 10'000);
  const proto::Round first = round();
  const auto ready_with_renewal = [&] {
    Tell(kWorker[1], [&](auto& m) {
      *m.mutable_ready()->mutable_round() = first;
      m.mutable_ready()->set_buffer_index(1);
      m.mutable_ready()->mutable_buffer()->set_generation(3);
    });
  };
  ready_with_renewal();
  for (const uint32_t t : {0u, 1u}) {
    ASSERT_EQ(Count(kTrainer[t], Kind::kRenewed), 1) << t;
    const proto::Renewed& renewed = Last(kTrainer[t], Kind::kRenewed)->renewed();
    EXPECT_EQ(renewed.worker(), 1u);
    EXPECT_EQ(renewed.buffer_index(), 1u);
    EXPECT_EQ(renewed.buffer().generation(), 3u);
  }
  Pass(absl::Seconds(10));  // The update is given up.
  ready_with_renewal();
  for (const uint32_t t : {0u, 1u}) EXPECT_EQ(Count(kTrainer[t], Kind::kRenewed), 2) << t;
}

// A buffer renewed in an earlier epoch is in the offers of this one, and READY does not repeat it.
TEST_F(CoordinatorTest, AStartNamesTheGenerationOfABufferThatReadyDoesNotDescribe) {
  MakeCoordinator();
  Establish();
  for (const uint32_t t : {0u, 1u}) Publish(t, 5);
  for (const uint32_t w : {0u, 1u}) {
    Tell(kWorker[w], [&](auto& m) {
      *m.mutable_ready()->mutable_round() = round();
      m.mutable_ready()->set_generation(3 + w);
    });
  }
  for (const uint32_t t : {0u, 1u}) {
    ASSERT_EQ(Count(kTrainer[t], Kind::kStart), 1) << t;
    for (const proto::Target& target : Last(kTrainer[t], Kind::kStart)->start().targets()) {
      EXPECT_EQ(target.generation(), 3 + target.worker()) << t;
    }
    EXPECT_EQ(Count(kTrainer[t], Kind::kRenewed), 0) << t;
  }
}

TEST_F(CoordinatorTest, ASecondProcessGetsTheRankOnlyIfTheFirstDoesNotAnswer) {
  MakeCoordinator();
  Establish();
  constexpr ConnectionId kSecond = 31, kThird = 32;
  Join(kSecond, Role::kWorker, 1);
  EXPECT_EQ(Count(kWorker[1], Kind::kChallenge), 1);
  Tell(kWorker[1], [](auto& m) { m.mutable_alive(); });
  EXPECT_EQ(
      Error(kSecond, Kind::kDismissal),
      "join: worker 1 of job \"test\" is here already: end that process, or take another rank");
  Join(kThird, Role::kWorker, 1);
  Pass(absl::Seconds(2));
  EXPECT_EQ(closed_.back(), kWorker[1]);
  // Else it could come back to a later controller before the second does.
  EXPECT_EQ(Error(kWorker[1], Kind::kDismissal),
            "worker 1 does not answer, and another process takes its place");
  EXPECT_EQ(Count(kThird, Kind::kPlan), 1);
}

// Others of a new job may be here already, with other parts of the tensors.
// The trainers of another training, with other shards, come one after the other. Between them, what
// is here does not make up what the workers want.
TEST_F(CoordinatorTest, WorkersAreNotDismissedForWhatTrainersLackWhileTheseChange) {
  MakeCoordinator();
  Establish();
  constexpr ConnectionId kNew[] = {31, 32};
  swapped_ = true;
  Gone(kTrainer[0]);
  Join(kNew[0], Role::kTrainer, 0);  // It holds row 1, as trainer 1 does, which is the old one.
  for (const ConnectionId member : {kWorker[0], kWorker[1], kNew[0]}) {
    EXPECT_EQ(Last(member, Kind::kDismissal), nullptr) << member;
  }
  Gone(kTrainer[1]);
  sent_.clear();
  Join(kNew[1], Role::kTrainer, 1);
  EXPECT_EQ(Count(kWorker[0], Kind::kPlan), 1);
}

TEST_F(CoordinatorTest, TrainersThatDoNotFitAreDismissedOnceNobodyElseComes) {
  MakeCoordinator();
  Establish();
  constexpr ConnectionId kNew = 31;
  swapped_ = true;
  Gone(kTrainer[0]);
  Join(kNew, Role::kTrainer, 0);
  Pass(absl::Seconds(5));
  EXPECT_THAT(Error(kNew, Kind::kDismissal), testing::HasSubstr("the trainers do not hold"));
  EXPECT_EQ(Last(kWorker[0], Kind::kDismissal), nullptr);
}

TEST_F(CoordinatorTest, NoTermIsPlannedWhileATrainersPlaceIsClaimed) {
  MakeCoordinator();
  Establish();
  constexpr ConnectionId kSecond = 31, kThird = 32, kAgain = 33;
  Join(kSecond, Role::kTrainer, 1);
  Tell(kWorker[1], [](auto& m) { m.mutable_leave(); });
  Join(kAgain, Role::kWorker, 1);
  EXPECT_EQ(Count(kAgain, Kind::kPlan), 0);
  Tell(kTrainer[1], [](auto& m) { m.mutable_alive(); });
  EXPECT_NE(Last(kSecond, Kind::kDismissal), nullptr);
  EXPECT_EQ(Count(kAgain, Kind::kPlan), 1);

  Join(kThird, Role::kTrainer, 1);
  Pass(absl::Seconds(2));
  EXPECT_EQ(closed_.back(), kTrainer[1]);
  EXPECT_EQ(Count(kAgain, Kind::kPlan), 2);
}

TEST_F(CoordinatorTest, WhoeverClaimsThePlaceOfALostStreamIsNotAdmittedBesideItsProcess) {
  MakeCoordinator();
  Establish();
  constexpr ConnectionId kSecond = 31, kBack = 32;
  Join(kSecond, Role::kTrainer, 1);
  // The stream on which the challenge was sent is dead, and the process opens another.
  Join(kBack, Role::kTrainer, 1, [](proto::Join& join) {
    join.set_incarnation(kTrainer[1]);
    join.set_returning(true);
  });
  EXPECT_EQ(Count(kBack, Kind::kChallenge), 1);
  EXPECT_EQ(Count(kSecond, Kind::kDismissal), 0);
  Tell(kBack, [](auto& m) { m.mutable_alive(); });
  EXPECT_THAT(Error(kSecond, Kind::kDismissal), testing::HasSubstr("trainer 1 of job"));
  Gone(kSecond);
  EXPECT_EQ(coordinator_->Status().ranks_size(), 4);
}

TEST_F(CoordinatorTest, TheSameProcessTakesTheStreamThatItLostOver) {
  MakeCoordinator();
  Establish();
  constexpr ConnectionId kAgain = 31;
  Join(kAgain, Role::kWorker, 1, [](proto::Join& join) { join.set_incarnation(kWorker[1]); });
  EXPECT_EQ(closed_, std::vector<ConnectionId>{kWorker[1]});
  EXPECT_EQ(Count(kAgain, Kind::kPlan), 1);
}

TEST_F(CoordinatorTest, ARankThatNeverConnectsItsLanesIsHungUpOn) {
  MakeCoordinator();
  JoinAll();
  for (const ConnectionId connection : {kTrainer[0], kTrainer[1], kWorker[0]}) {
    Tell(connection, [&](proto::RankMessage& m) { m.mutable_offers()->set_epoch(epoch_); });
  }
  Pass(absl::Seconds(30));
  EXPECT_EQ(closed_, std::vector<ConnectionId>{kWorker[1]});
  EXPECT_EQ(coordinator_->Status().phase(), "gathering");
}

TEST_F(CoordinatorTest, ASizeThatNobodyHereDeclaresBindsNobody) {
  MakeCoordinator();
  Join(kWorker[0], Role::kWorker, 0, [](proto::Join& join) { join.set_world(8); });
  Gone(kWorker[0]);
  Join(kWorker[1], Role::kWorker, 1);
  EXPECT_EQ(Count(kWorker[1], Kind::kDismissal), 0);
}

TEST_F(CoordinatorTest, MessagesThatDoNotFitChangeNothing) {
  MakeCoordinator();
  Join(kTrainer[0], Role::kTrainer, 0, [](proto::Join& join) { join.mutable_doubt(); });
  EXPECT_EQ(Error(kTrainer[0], Kind::kDismissal), "join: trainer 0 cannot be in doubt");
  Join(kWorker[0], Role::kWorker, 0, [](proto::Join& join) { join.set_group("a\nb"); });
  EXPECT_EQ(Error(kWorker[0], Kind::kDismissal),
            "join: worker 0: a group's name has 1 to 256 bytes and no control characters");
  sent_.clear();
  Establish();
  Publish(0, 5);
  Publish(1, 5);
  for (const ConnectionId from : {kTrainer[0], kWorker[0]}) {
    Tell(from, [&](auto& m) {
      m.mutable_lane_failed()->set_epoch(epoch_);
      m.mutable_lane_failed()->set_peer(4'000'000);
    });
    Tell(from, [&](auto& m) { m.mutable_arrived(); });  // Of no round; from a trainer at all.
    Tell(from, [&](auto& m) { *m.mutable_arrived()->mutable_round() = round(); });  // Before READY.
    Tell(from, [&](auto& m) { m.mutable_manifest()->set_head("junk"); });
    Tell(from, [&](auto& m) { m.mutable_part()->set_deflated("junk"); });
  }
  EXPECT_EQ(Count(kWorker[1], Kind::kAbort) + Count(kWorker[1], Kind::kCommit), 0);
}

void Doubt(proto::Join& join) {
  join.set_shown_version(4);
  join.mutable_doubt()->mutable_round()->set_epoch(3);
  join.mutable_doubt()->mutable_round()->set_sequence(8);
  join.mutable_doubt()->set_version(5);
}

TEST_F(CoordinatorTest, WhatAWorkerSaysIsCommittedKeepsNothingFromBeingPublished) {
  constexpr uint64_t kHuge = ~uint64_t{0};
  MakeCoordinator();
  for (const uint32_t t : {0u, 1u}) Join(kTrainer[t], Role::kTrainer, t);
  Join(kWorker[0], Role::kWorker, 0, [](proto::Join& join) { join.set_committed_version(kHuge); });
  Join(kWorker[1], Role::kWorker, 1,
       [](proto::Join& join) { join.mutable_doubt()->set_version(kHuge); });
  Connect();
  EXPECT_EQ(coordinator_->Status().committed_version(), 0u);
  Decide(5);
  EXPECT_EQ(recorded_.back().version, 5u);
}

TEST_F(CoordinatorTest, AWorkerInDoubtCommitsAtOnceIfARecordSaysSo) {
  MakeCoordinator({{3, 8, 5, "all"}}, /*durable=*/true);
  Join(kWorker[0], Role::kWorker, 0, Doubt);
  ASSERT_EQ(Count(kWorker[0], Kind::kCommit), 1);
  EXPECT_EQ(Last(kWorker[0], Kind::kCommit)->commit().round().sequence(), 8u);
  EXPECT_EQ(coordinator_->Status().committed_version(), 5u);
}

TEST_F(CoordinatorTest, AWorkerInDoubtAbortsAtOnceIfAllDecisionsAreKnown) {
  MakeCoordinator({{3, 7, 4, "all"}}, /*durable=*/true);
  Join(kWorker[0], Role::kWorker, 0, Doubt);
  EXPECT_EQ(Count(kWorker[0], Kind::kAbort), 1);
}

TEST_F(CoordinatorTest, WithoutALogAWorkerInDoubtFollowsAMemberThatShowsTheVersion) {
  MakeCoordinator();
  Join(kTrainer[0], Role::kTrainer, 0);
  Join(kTrainer[1], Role::kTrainer, 1);
  Join(kWorker[0], Role::kWorker, 0, Doubt);
  EXPECT_EQ(Count(kWorker[0], Kind::kCommit) + Count(kWorker[0], Kind::kAbort), 0);
  Join(kWorker[1], Role::kWorker, 1, [](proto::Join& join) { join.set_shown_version(5); });
  EXPECT_EQ(Count(kWorker[0], Kind::kCommit), 1);
  // What workers say keeps nobody from publishing.
  EXPECT_EQ(coordinator_->Status().committed_version(), 0u);
}

TEST_F(CoordinatorTest, WithoutALogAWorkerInDoubtAbortsOnceEverybodyIsHereAndNobodyShowsIt) {
  MakeCoordinator();
  Join(kTrainer[0], Role::kTrainer, 0);
  Join(kTrainer[1], Role::kTrainer, 1);
  Join(kWorker[0], Role::kWorker, 0, Doubt);
  EXPECT_EQ(Count(kWorker[0], Kind::kAbort), 0);
  Join(kWorker[1], Role::kWorker, 1, [](proto::Join& join) { join.set_shown_version(4); });
  EXPECT_EQ(Count(kWorker[0], Kind::kCommit), 0);
  EXPECT_EQ(Count(kWorker[0], Kind::kAbort), 1);
}

// A controller that lives knows what it decided, with or without a log.
TEST_F(CoordinatorTest, AWorkerWhoseStreamBreaksBeforeTheCommitIsToldOfItWhenItComesBack) {
  MakeCoordinator();
  Establish();
  Publish(0, 5);
  Publish(1, 5);
  for (const uint32_t w : {0u, 1u}) Ready(w);
  hold_records_ = true;
  for (const uint32_t w : {0u, 1u}) Arrived(w);
  const proto::Round voted = round();
  Gone(kWorker[1]);
  EndRecords(Recorded::kDurable);
  Join(31, Role::kWorker, 1, [&](proto::Join& join) {
    *join.mutable_doubt()->mutable_round() = voted;
    join.mutable_doubt()->set_version(5);
  });
  EXPECT_EQ(Count(31, Kind::kCommit), 1);
  EXPECT_EQ(Count(31, Kind::kAbort), 0);
}

TEST_F(CoordinatorTest, AReturningRankBeginsAnotherEpoch) {
  MakeCoordinator();
  Establish();
  Gone(kTrainer[1]);
  Publish(0, 5);
  EXPECT_EQ(Count(kTrainer[0], Kind::kPublishRefused), 0);  // It may be back soon.
  Pass(absl::Seconds(5));
  EXPECT_EQ(Error(kTrainer[0], Kind::kPublishRefused),
            "publish version 5: it cannot begin without trainer 1: tensor \"w\": worker 0 wants "
            "[0, 2) x [0, 4), of which the trainers do not hold [1, 2) x [0, 4); they hold "
            "trainer 0 [0, 1) x [0, 4)");
  Join(kTrainer[1], Role::kTrainer, 1);
  EXPECT_EQ(coordinator_->Status().groups(0).epoch(), 2u);
  Connect();
}

// Either trainer holds all of it.
class ReplicasTest : public CoordinatorTest {
 protected:
  ReplicasTest() { MakeCoordinator(); }

  Manifest ManifestOf(Role, uint32_t) override {
    Manifest manifest;
    manifest.AddRegion("w", 16);
    manifest.AddShard(manifest.AddTensor("w", {2, 4}, Dtype::kBf16), {Dtype::kBf16},
                      Box({0, 0}, {2, 4}), {0, 0, {4, 1}});
    return manifest;
  }

  // Everybody but trainer 1 offers lanes and connects them.
  void ConnectWithoutTrainer1() {
    const std::vector<ConnectionId> term = {kTrainer[0], kWorker[0], kWorker[1]};
    for (const ConnectionId connection : term) {
      Tell(connection, [&](auto& m) { m.mutable_offers()->set_epoch(epoch_); });
    }
    for (const ConnectionId connection : term) {
      Tell(connection, [&](auto& m) { m.mutable_connected()->set_epoch(epoch_); });
    }
  }
};

TEST_F(ReplicasTest, AJobWhoseTrainersThatAreLeftHoldEverythingGoesOnWithThem) {
  Establish();
  Gone(kTrainer[1]);
  Publish(0, 5);
  Pass(absl::Seconds(5) - absl::Milliseconds(1));
  EXPECT_EQ(Last(kTrainer[0], Kind::kPlan), nullptr);  // Trainer 1 may be back soon.
  Pass(absl::Milliseconds(1));
  ConnectWithoutTrainer1();
  for (const uint32_t w : {0u, 1u}) Ready(w);
  EXPECT_EQ(Last(kTrainer[0], Kind::kStart)->start().targets_size(), 2);
  for (const uint32_t w : {0u, 1u}) Arrived(w);
  EXPECT_EQ(Count(kWorker[0], Kind::kCommit), 1);
}

// Version 5 goes from trainer 0 to worker 0 and from trainer 1 to worker 1.
class RestTest : public ReplicasTest {
 protected:
  void SetUp() override {
    Establish();
    for (const uint32_t t : {0u, 1u}) Publish(t, 5);
    for (const uint32_t w : {0u, 1u}) Ready(w);
    first_round_ = round();
  }
  void Keep(uint32_t t, bool kept) {
    Tell(kTrainer[t], [&](auto& m) {
      *m.mutable_kept()->mutable_round() = first_round_;
      m.mutable_kept()->set_kept(kept);
    });
  }
  // Nothing is here of what trainer 1 was to bring.
  void Lack() {
    Tell(kWorker[1], [&](auto& m) {
      *m.mutable_lacking()->mutable_round() = first_round_;
      m.mutable_lacking()->add_senders(1);
    });
  }
  // Trainer 1 dies, and the others say what they have.
  void LoseTrainer1() {
    Gone(kTrainer[1]);
    Keep(0, true);
    Arrived(0);
    Lack();
  }

  proto::Round first_round_;
};

TEST_F(RestTest, WhatATrainerThatDiesWasToBringComesFromItsReplica) {
  const uint64_t before = epoch_;
  Gone(kTrainer[1]);
  EXPECT_EQ(Count(kTrainer[0], Kind::kSenderLost), 1);
  EXPECT_EQ(Count(kWorker[0], Kind::kSenderLost), 0);
  EXPECT_EQ(Last(kWorker[1], Kind::kSenderLost)->sender_lost().senders(0), 1u);
  Lack();
  Keep(0, true);
  EXPECT_EQ(epoch_, before);  // Worker 0 has not got everything yet.
  Arrived(0);
  EXPECT_GT(epoch_, before);
  ConnectWithoutTrainer1();
  for (const uint32_t w : {0u, 1u}) {
    EXPECT_EQ(Last(kWorker[w], Kind::kPrepare)->prepare().continues().epoch(), before);
    Ready(w);
  }
  EXPECT_EQ(Last(kTrainer[0], Kind::kStart)->start().targets_size(), 1);
  EXPECT_EQ(Last(kTrainer[0], Kind::kStart)->start().targets(0).worker(), 1u);
  Arrived(1);
  EXPECT_EQ(recorded_.size(), 0u);  // Worker 0 votes in this round too.
  Arrived(0);
  EXPECT_EQ(recorded_.back().version, 5u);
  for (const uint32_t w : {0u, 1u}) {
    EXPECT_EQ(Count(kWorker[w], Kind::kCommit), 1);
    Shown(w);
  }
  EXPECT_TRUE(Last(kTrainer[0], Kind::kOutcome)->outcome().committed());
  EXPECT_EQ(Count(kTrainer[0], Kind::kAbort), 0);
}

// In place, a worker is not dirty after an update of which nothing has landed.
TEST_F(RestTest, WhatIsGivenUpBeforeTheRestIsStartedHasBegun) {
  LoseTrainer1();
  ConnectWithoutTrainer1();
  Refuse(1);
  for (const uint32_t w : {0u, 1u}) EXPECT_TRUE(Last(kWorker[w], Kind::kAbort)->abort().begun());
}

TEST_F(RestTest, ATrainerWhoseLaneDiesBringsTheRestByAnother) {
  Tell(kTrainer[1], [&](auto& m) {
    m.mutable_lane_failed()->set_epoch(epoch_);
    m.mutable_lane_failed()->set_peer(1);
    *m.mutable_lane_failed()->mutable_error() = EncodeError(absl::UnavailableError("torn"));
  });
  EXPECT_EQ(Last(kWorker[1], Kind::kSenderLost)->sender_lost().senders(0), 1u);
  for (const uint32_t t : {0u, 1u}) Keep(t, true);
  Arrived(0);
  Lack();
  OfferIn("all");
  ConnectIn("all");
  EXPECT_TRUE(Last(kWorker[1], Kind::kPrepare)->prepare().has_continues());
}

TEST_F(RestTest, WhatTheReplicaHasLetGoFailsTheVersionAndSaysSo) {
  Gone(kTrainer[1]);
  Keep(0, false);
  Arrived(0);
  Lack();
  EXPECT_EQ(Error(kWorker[1], Kind::kAbort),
            "trainer 1 is gone: its stream ended; tensor \"w\": worker 1 wants [0, 2) x [0, 4), no "
            "trainer holds a tensor of that name (as far as they have not changed their tensors "
            "since they sent them, which they do not while they hold the version)");
}

TEST_F(RestTest, AWorkerThatDiesWhileTheRestIsPlannedFailsTheVersion) {
  LoseTrainer1();
  Gone(kWorker[1]);
  EXPECT_EQ(Error(kWorker[0], Kind::kAbort), "worker 1 is gone: its stream ended");
  Join(kWorker[1], Role::kWorker, 1);
  Join(kTrainer[1], Role::kTrainer, 1);
  Connect();
}

TEST_F(RestTest, TheDeadlineHoldsForTheRestToo) {
  LoseTrainer1();
  Pass(absl::Minutes(1));
  EXPECT_EQ(Error(kWorker[0], Kind::kAbort),
            "version 5: the deadline is over, waiting for lanes for what is lacking");
}

TEST_F(RestTest, TheVersionIsGivenUpWithTheLastWhoHoldsIt) {
  LoseTrainer1();
  Gone(kTrainer[0]);
  EXPECT_EQ(Error(kWorker[1], Kind::kAbort), "trainer 0 is gone: its stream ended");
}

// Another process with the rank of one that held the version does not hold it.
TEST_F(RestTest, WhoTakesTheRankOfOneThatHeldTheVersionHoldsNothing) {
  for (const uint32_t t : {0u, 1u}) Keep(t, true);
  Tell(kTrainer[1], [&](auto& m) {
    m.mutable_lane_failed()->set_epoch(epoch_);
    m.mutable_lane_failed()->set_peer(1);
    *m.mutable_lane_failed()->mutable_error() = EncodeError(absl::UnavailableError("torn"));
  });
  for (const uint32_t t : {0u, 1u}) Keep(t, true);
  Arrived(0);
  Lack();
  Gone(kTrainer[0]);
  Join(12, Role::kTrainer, 0);
  sent_.clear();
  for (const ConnectionId rank : {ConnectionId{12}, kTrainer[1], kWorker[0], kWorker[1]}) {
    Tell(rank, [&](auto& m) { m.mutable_offers()->set_epoch(epoch_); });
  }
  for (const ConnectionId rank : {ConnectionId{12}, kTrainer[1], kWorker[0], kWorker[1]}) {
    Tell(rank, [&](auto& m) { m.mutable_connected()->set_epoch(epoch_); });
  }
  Tell(12, [&](auto& m) { m.mutable_publish()->set_version(5); });
  for (const uint32_t w : {0u, 1u}) Ready(w);
  EXPECT_EQ(Count(12, Kind::kStart), 0);
  EXPECT_EQ(Last(kTrainer[1], Kind::kStart)->start().targets_size(), 1);
}

TEST_F(ReplicasTest, ATrainerThatHasYetToPublishIsAwaitedInTheRestToo) {
  Establish();
  Publish(0, 5);
  for (const uint32_t w : {0u, 1u}) Ready(w);
  const proto::Round first_round = round();
  Tell(kTrainer[1], [&](auto& m) {
    m.mutable_lane_failed()->set_epoch(epoch_);
    m.mutable_lane_failed()->set_peer(1);
    *m.mutable_lane_failed()->mutable_error() = EncodeError(absl::UnavailableError("torn"));
  });
  Tell(kTrainer[0], [&](auto& m) {
    *m.mutable_kept()->mutable_round() = first_round;
    m.mutable_kept()->set_kept(true);
  });
  Arrived(0);
  Tell(kWorker[1], [&](auto& m) {
    *m.mutable_lacking()->mutable_round() = first_round;
    m.mutable_lacking()->add_senders(1);
  });
  OfferIn("all");
  ConnectIn("all");
  for (const uint32_t w : {0u, 1u}) Ready(w);
  EXPECT_EQ(Last(kTrainer[0], Kind::kStart)->start().targets(0).worker(), 1u);
  for (const uint32_t w : {0u, 1u}) Arrived(w);
  EXPECT_TRUE(recorded_.empty());
  Publish(1, 5);
  EXPECT_EQ(recorded_.size(), 1u);
}

TEST_F(RestTest, ATrainerThatComesBackMeanwhileBringsNothing) {
  LoseTrainer1();
  Join(kTrainer[1], Role::kTrainer, 1, [](proto::Join& join) { join.add_undecided_versions(5); });
  OfferIn("all");
  ConnectIn("all");
  EXPECT_EQ(Count(kTrainer[1], Kind::kOutcome), 0);  // Nobody knows yet.
  for (const uint32_t w : {0u, 1u}) Ready(w);
  EXPECT_EQ(Count(kTrainer[1], Kind::kStart), 1);  // Of the first round.
  for (const uint32_t w : {0u, 1u}) Arrived(w);
  for (const uint32_t w : {0u, 1u}) Shown(w);
  EXPECT_TRUE(Last(kTrainer[0], Kind::kOutcome)->outcome().committed());
  OfferIn("all");  // The next term is one with everybody.
  ConnectIn("all");
  EXPECT_TRUE(Last(kTrainer[1], Kind::kOutcome)->outcome().committed());
}

TEST_F(CoordinatorTest, AVersionThatNobodyElseHoldsIsGivenUpWithItsTrainerAtOnce) {
  MakeCoordinator();
  Establish();
  for (const uint32_t t : {0u, 1u}) Publish(t, 5);
  for (const uint32_t w : {0u, 1u}) Ready(w);
  Gone(kTrainer[1]);
  EXPECT_EQ(Error(kWorker[0], Kind::kAbort),
            "trainer 1 is gone: its stream ended; tensor \"w\": worker 0 wants [1, 2) x [0, 4), of "
            "which the trainers do not hold [1, 2) x [0, 4); they hold trainer 0 [0, 1) x [0, 4)");
}

TEST_F(ReplicasTest, ATrainerThatReturnsBelongsToTheNextTerm) {
  Establish();
  Gone(kTrainer[1]);
  Pass(absl::Seconds(5));
  ConnectWithoutTrainer1();
  sent_.clear();
  Join(kTrainer[1], Role::kTrainer, 1);
  EXPECT_NE(Last(kTrainer[1], Kind::kPlan), nullptr);
  Connect();
}

TEST_F(ReplicasTest, AJobThatBeginsWaitsForAllOfItsTrainers) {
  Join(kTrainer[0], Role::kTrainer, 0);
  for (const uint32_t w : {0u, 1u}) Join(kWorker[w], Role::kWorker, w);
  Pass(absl::Seconds(30));
  EXPECT_EQ(Last(kTrainer[0], Kind::kPlan), nullptr);
}

TEST_F(ReplicasTest, ANewControllerDoesNotWaitForATrainerThatDoesNotComeBack) {
  Join(kTrainer[0], Role::kTrainer, 0, [](auto& join) { join.set_returning(true); });
  for (const uint32_t w : {0u, 1u}) Join(kWorker[w], Role::kWorker, w);
  EXPECT_EQ(Last(kTrainer[0], Kind::kPlan), nullptr);
  Pass(absl::Seconds(5));
  EXPECT_NE(Last(kTrainer[0], Kind::kPlan), nullptr);
}

TEST_F(CoordinatorTest, APublishWaitsForALostRankFromWhenItWasLost) {
  MakeCoordinator();
  Establish();
  LoseALane();
  Publish(1, 6);  // Waits for the new lanes.
  Pass(absl::Seconds(10));
  Gone(kWorker[1]);
  Pass(absl::ZeroDuration());
  EXPECT_GT(coordinator_->next_deadline(), now_);
  EXPECT_EQ(Count(kTrainer[1], Kind::kPublishRefused), 0);  // It may be back soon.
  Pass(absl::Seconds(5));
  EXPECT_EQ(Error(kTrainer[1], Kind::kPublishRefused),
            "publish version 6: it cannot begin without worker 1");
}

// It was no part of a whole job, so nobody waits for it.
TEST_F(CoordinatorTest, ALatePublishEndsWithTheNewcomerThatItWaitedFor) {
  MakeCoordinator();
  JoinAll();
  Publish(0, 5);
  Pass(absl::Seconds(10));
  Gone(kWorker[1]);
  EXPECT_GT(coordinator_->next_deadline(), now_);
  EXPECT_EQ(Error(kTrainer[0], Kind::kPublishRefused),
            "publish version 5: it cannot begin without worker 1");
}

TEST_F(CoordinatorTest, TheStatusShowsEachRanksLastReport) {
  MakeCoordinator();
  Establish();
  proto::RankReport report;
  report.set_version(4);
  const auto tell = [&] {
    Tell(kWorker[0], [&](proto::RankMessage& m) { *m.mutable_report() = report; });
    return coordinator_->Status().ranks(2).report();
  };
  EXPECT_EQ(tell().version(), 4u);
  // A report that no rank makes is not kept.
  report.set_version(6);
  for (int i = 0; i < 2000; ++i) report.add_counters();
  EXPECT_EQ(tell().version(), 4u);
}

// So whoever has heard the outcome finds in the status what the update was like.
TEST_F(CoordinatorTest, SentAndShownBringReports) {
  MakeCoordinator();
  Establish();
  Decide(5);
  Tell(kTrainer[0], [&](auto& m) {
    *m.mutable_sent()->mutable_round() = round();
    m.mutable_sent()->mutable_report()->set_version(5);
  });
  EXPECT_EQ(coordinator_->Status().ranks(0).report().version(), 5u);
  Tell(kWorker[0], [&](auto& m) {
    *m.mutable_shown()->mutable_round() = round();
    m.mutable_shown()->mutable_report()->set_version(5);
  });
  EXPECT_EQ(coordinator_->Status().ranks(2).report().version(), 5u);
}

TEST_F(CoordinatorTest, WhoComesBackAndDoesNotSayWhatItHoldsIsHungUpOn) {
  MakeCoordinator();
  hold_parts_ = true;
  Join(kTrainer[0], Role::kTrainer, 0, [](proto::Join& join) { join.set_returning(true); });
  Pass(absl::Seconds(60));
  EXPECT_EQ(closed_, std::vector<ConnectionId>{kTrainer[0]});
  EXPECT_EQ(Last(kTrainer[0], Kind::kDismissal), nullptr);  // It may join again.
}

TEST_F(CoordinatorTest, WhoWasPartOfAWholeJobWaitsForTheOthers) {
  MakeCoordinator();
  Establish();
  Gone(kTrainer[1]);
  Pass(absl::Hours(1));
  EXPECT_TRUE(closed_.empty());
  // A newcomer is told in time that somebody else is missing.
  Gone(kTrainer[0]);
  Join(kTrainer[0], Role::kTrainer, 0);
  Pass(absl::Seconds(60));
  EXPECT_EQ(closed_, std::vector<ConnectionId>{kTrainer[0]});
  EXPECT_EQ(Error(kTrainer[0], Kind::kDismissal), "no group is whole: waiting for trainer 1");
}

// Messages cost what the ranks that are here do, whatever world these declare.
TEST_F(CoordinatorTest, OfManyRanksThatAreMissingTheFirstAreNamed) {
  MakeCoordinator();
  for (const uint32_t t : {0u, 1u}) Join(kTrainer[t], Role::kTrainer, t);
  Join(kWorker[1], Role::kWorker, 1, [](proto::Join& join) { join.set_world(65536); });
  Publish(0, 5);
  Pass(absl::Seconds(5));
  EXPECT_EQ(Error(kTrainer[0], Kind::kPublishRefused),
            "publish version 5: it cannot begin without worker 0, worker 2, worker 3, worker 4, "
            "worker 5, worker 6, worker 7, worker 8, worker 9, worker 10, worker 11, worker 12, "
            "worker 13, worker 14, worker 15, worker 16, 65519 more");
}

TEST_F(CoordinatorTest, AtTheJoinDeadlineTheMissingAreNamed) {
  MakeCoordinator();
  Join(kTrainer[0], Role::kTrainer, 0);
  Pass(absl::Seconds(60));
  EXPECT_EQ(Error(kTrainer[0], Kind::kDismissal),
            "no group is whole: waiting for trainer 1, every worker");
  EXPECT_EQ(closed_, std::vector<ConnectionId>{kTrainer[0]});
}

// Workers 0 and 1 are the groups "a" and "b", and version 5 waits for a trainer's word.
class HeldCommitTest : public CoordinatorTest {
 protected:
  void SetUp() override {
    groups_ = {"a", "b"};
    MakeCoordinator();
    Establish();
    for (const uint32_t t : {0u, 1u}) PublishHeld(t);
    for (const uint32_t w : {0u, 1u}) Ready(w);
  }
  void PublishHeld(uint32_t trainer, bool held = true) {
    Tell(kTrainer[trainer], [&](proto::RankMessage& m) {
      m.mutable_publish()->set_version(5);
      m.mutable_publish()->set_attempt(9);
      m.mutable_publish()->set_deadline_ms(3000);
      m.mutable_publish()->set_hold_commit(held);
    });
  }
  void Say(uint32_t trainer, const absl::Status& word, uint64_t attempt = 9) {
    Tell(kTrainer[trainer], [&](proto::RankMessage& m) {
      m.mutable_decide()->set_version(5);
      m.mutable_decide()->set_attempt(attempt);
      if (!word.ok()) *m.mutable_decide()->mutable_error() = EncodeError(word);
    });
  }
  void ArriveInBoth() {
    for (const uint32_t w : {0u, 1u}) Arrived(w);
  }
};

TEST_F(HeldCommitTest, GroupsThatHaveAllOfItWaitForAWord) {
  Arrived(0);
  EXPECT_EQ(Last(kTrainer[1], Kind::kGroupArrived)->group_arrived().group(), "a");
  EXPECT_EQ(Last(kTrainer[1], Kind::kGroupArrived)->group_arrived().attempt(), 9u);
  Arrived(1);
  Arrived(1);
  EXPECT_EQ(Count(kTrainer[0], Kind::kGroupArrived), 2);
  EXPECT_TRUE(recorded_.empty());
  EXPECT_EQ(coordinator_->Status().groups(0).waiting_for(), "commit() or abort() by a trainer");
  Say(1, absl::OkStatus(), /*attempt=*/8);  // A word on a publish that has ended.
  EXPECT_TRUE(recorded_.empty());
  Say(1, absl::OkStatus());
  EXPECT_EQ(recorded_.size(), 2u);
  for (const uint32_t w : {0u, 1u}) EXPECT_EQ(Count(kWorker[w], Kind::kCommit), 1);
}

TEST_F(HeldCommitTest, TheStatusSaysHowFarApartTheWorkersHaveSwitched) {
  ArriveInBoth();
  Say(1, absl::OkStatus());
  for (const uint32_t w : {0u, 1u}) {
    EXPECT_EQ(coordinator_->Status().switch_spread_us(), 0u);
    now_ += absl::Milliseconds(w == 0 ? 40 : 3);
    Tell(kWorker[w], [&](proto::RankMessage& m) {
      *m.mutable_shown()->mutable_round() = round(w);
      m.mutable_shown()->set_version(5);
    });
  }
  EXPECT_EQ(coordinator_->Status().switch_spread_us(), 3000u);
  now_ += absl::Seconds(9);
  Tell(kWorker[1], [&](proto::RankMessage& m) {  // Again.
    *m.mutable_shown()->mutable_round() = round(1);
    m.mutable_shown()->set_version(5);
  });
  EXPECT_EQ(coordinator_->Status().switch_spread_us(), 3000u);
}

TEST_F(HeldCommitTest, TrainersHearOfAGroupThatHasAllOfItBeforeItsWorkersVote) {
  Tell(kWorker[0], [&](proto::RankMessage& m) {
    *m.mutable_arrived()->mutable_round() = round();
    m.mutable_arrived()->set_unvoted(true);
  });
  EXPECT_TRUE(Last(kTrainer[1], Kind::kGroupArrived)->group_arrived().unvoted());
  Say(0, absl::OkStatus());
  EXPECT_TRUE(recorded_.empty());
  Arrived(0);
  EXPECT_EQ(recorded_.size(), 1u);
}

TEST_F(HeldCommitTest, AWordAgainstItEndsItBeforeItHasArrived) {
  Say(0, absl::CancelledError("the engine will not pause"));
  for (const uint32_t w : {0u, 1u}) {
    EXPECT_EQ(Error(kWorker[w], Kind::kAbort), "trainer 0: the engine will not pause");
  }
  ArriveInBoth();
  EXPECT_TRUE(recorded_.empty());
}

TEST_F(HeldCommitTest, OnlyTheFirstWordCounts) {
  ArriveInBoth();
  Say(0, absl::CancelledError("the engine will not pause"));
  Say(1, absl::OkStatus());
  EXPECT_TRUE(recorded_.empty());
  for (const uint32_t w : {0u, 1u}) {
    EXPECT_EQ(Error(kWorker[w], Kind::kAbort), "trainer 0: the engine will not pause");
  }
  EXPECT_EQ(Error(kTrainer[1], Kind::kOutcome), "trainer 0: the engine will not pause");
}

TEST_F(HeldCommitTest, WithoutAWordItEndsAtTheDeadline) {
  ArriveInBoth();
  Pass(absl::Seconds(3));
  EXPECT_EQ(Error(kWorker[0], Kind::kAbort),
            "version 5: the deadline is over, waiting for commit() or abort() by a trainer");
  EXPECT_TRUE(recorded_.empty());
}

TEST_F(HeldCommitTest, ItWaitsAsLongAsOneTrainerIsLeftThatCanSayTheWord) {
  ArriveInBoth();
  Gone(kTrainer[0]);
  for (const uint32_t w : {0u, 1u}) EXPECT_EQ(Count(kWorker[w], Kind::kAbort), 0);
  Gone(kTrainer[1]);
  for (const uint32_t w : {0u, 1u}) EXPECT_EQ(Count(kWorker[w], Kind::kAbort), 1);
}

TEST_F(HeldCommitTest, AWordForWhatHasNotArrivedHoldsWhenItHas) {
  Arrived(0);
  Say(0, absl::OkStatus());
  EXPECT_EQ(recorded_.size(), 1u);
  Arrived(1);
  EXPECT_EQ(recorded_.size(), 2u);
}

TEST_F(HeldCommitTest, AWorkerThatDiesMeanwhileEndsItInItsGroup) {
  ArriveInBoth();
  Gone(kWorker[1]);
  Say(0, absl::OkStatus());
  ASSERT_EQ(recorded_.size(), 1u);
  EXPECT_EQ(recorded_[0].group, "a");
}

TEST_F(HeldCommitTest, TrainersThatDoNotAgreeWhetherItWaitsAreRefused) {
  MakeCoordinator();
  Establish();
  PublishHeld(0);
  for (const uint32_t w : {0u, 1u}) Ready(w);
  PublishHeld(1, /*held=*/false);
  const std::string why =
      "publish version 5: trainer 1 publishes it without hold_commit, unlike others; all trainers "
      "have to do the same";
  EXPECT_EQ(Error(kTrainer[1], Kind::kPublishRefused), why);
  EXPECT_EQ(Error(kTrainer[0], Kind::kOutcome), why);
  EXPECT_EQ(Error(kWorker[0], Kind::kAbort), why);
}

TEST_F(CoordinatorTest, RanksAreToldWhatAnApproximateVersionIsMadeOf) {
  MakeCoordinator();
  Establish();
  composition_ = 77;
  Decide(5);
  for (const uint32_t w : {0u, 1u}) {
    EXPECT_EQ(Last(kWorker[w], Kind::kPrepare)->prepare().composition(), 77u);
    EXPECT_EQ(Last(kTrainer[w], Kind::kStart)->start().composition(), 77u);
    Shown(w);
  }
  proto::StatusReply status = coordinator_->Status();
  for (const proto::RankStatus& rank : status.ranks()) {
    EXPECT_EQ(rank.approximate(), rank.name().starts_with("worker")) << rank.name();
  }
  composition_ = 0;
  Decide(6);
  Shown(0);
  status = coordinator_->Status();
  for (const proto::RankStatus& rank : status.ranks()) {
    EXPECT_EQ(rank.approximate(), rank.name() == "worker 1") << rank.name();
  }
}

TEST_F(CoordinatorTest, TrainersWhoseVersionsAreMadeOfDifferentOnesAreRefused) {
  MakeCoordinator();
  Establish();
  composition_ = 77;
  Publish(0, 5);
  for (const uint32_t w : {0u, 1u}) Ready(w);
  composition_ = 0;  // It has come back, and knows no version before.
  Publish(1, 5);
  const std::string why =
      "publish version 5: trainer 1 has made it of another selection, or from other versions, than "
      "trainers before it; publish one version on all of them with neither tensors nor at_most";
  EXPECT_EQ(Error(kTrainer[1], Kind::kPublishRefused), why);
  EXPECT_EQ(Error(kTrainer[0], Kind::kOutcome), why);
  EXPECT_EQ(Error(kWorker[0], Kind::kAbort), why);
}

TEST_F(CoordinatorTest, ATensorThatNoTrainerHasIsRefusedAndOneThatSomeHaveIsNot) {
  for (const bool known : {false, true}) {
    SCOPED_TRACE(known);
    MakeCoordinator();
    Establish();
    for (const uint32_t t : {0u, 1u}) {
      Tell(kTrainer[t], [&](auto& m) {
        m.mutable_publish()->set_version(5);
        m.mutable_publish()->set_composition(77);
        m.mutable_publish()->add_unknown_tensors("only here");
        if (t == 1 && known) m.mutable_publish()->clear_unknown_tensors();
        if (t == 0) m.mutable_publish()->add_unknown_tensors("only there");
      });
    }
    EXPECT_EQ(
        Error(kTrainer[0], Kind::kOutcome),
        known ? "(no such message)" : "publish version 5: no trainer has a tensor \"only here\"");
    sent_.clear();
  }
}

// Both trainers hold both rows.
class ReplicaTest : public CoordinatorTest {
 protected:
  Manifest ManifestOf(Role /*role*/, uint32_t /*rank*/) override {
    return CoordinatorTest::ManifestOf(Role::kWorker, 0);
  }
  void SetUp() override {
    MakeCoordinator();
    Establish();
  }
  // Publishes version 5, of which the trainer's digest is `digest`.
  void PublishSampled(uint32_t trainer, uint64_t digest, uint64_t unit = 0) {
    const ReplicaUnits units(ManifestOf(Role::kTrainer, trainer));
    Tell(kTrainer[trainer], [&](proto::RankMessage& m) {
      m.mutable_publish()->set_version(5);
      m.mutable_publish()->add_sampled_units(unit == 0 ? units.TurnOf(5).at(0).key : unit);
      m.mutable_publish()->add_sampled_digests(digest);
    });
  }
  const std::string differ_ =
      "publish version 5: trainer 0 and 1 hold different bytes of tensor \"w\" [0, 2) x [0, 4); "
      "replicas have to be equal, since each sends a part of what they hold";
};

TEST_F(ReplicaTest, ThatAreEqualPublish) {
  for (const uint32_t t : {0u, 1u}) PublishSampled(t, 77);
  for (const uint32_t w : {0u, 1u}) Ready(w);
  for (const uint32_t w : {0u, 1u}) Arrived(w);
  EXPECT_EQ(recorded_.size(), 1u);
}

TEST_F(ReplicaTest, ThatDifferAreNamedAndNoWorkerShowsTheVersion) {
  PublishSampled(0, 77);
  for (const uint32_t w : {0u, 1u}) Ready(w);
  PublishSampled(1, 78);
  EXPECT_EQ(Error(kTrainer[1], Kind::kPublishRefused), differ_);
  EXPECT_EQ(Error(kTrainer[0], Kind::kOutcome), differ_);
  for (const uint32_t w : {0u, 1u}) EXPECT_EQ(Error(kWorker[w], Kind::kAbort), differ_);
  EXPECT_TRUE(recorded_.empty());
  // The next attempt is another matter.
  for (const uint32_t t : {0u, 1u}) PublishSampled(t, 79);
  for (const uint32_t w : {0u, 1u}) Ready(w);
  for (const uint32_t w : {0u, 1u}) Arrived(w);
  EXPECT_EQ(recorded_.size(), 1u);
}

// Trainer 1 sends nothing to group a, whose worker has received everything of version 5.
class IdleReplicaTest : public ReplicaTest {
 protected:
  void SetUp() override {
    EstablishGroupA();
    PublishSampled(0, 77);
    Ready(0);
    ASSERT_EQ(Last(kTrainer[0], Kind::kStart)->start().targets_size(), 1);
    Arrived(0);
    EXPECT_TRUE(recorded_.empty());
  }
};

TEST_F(IdleReplicaTest, ThatIsEqualLetsTheGroupShowTheVersion) {
  PublishSampled(1, 77);
  EXPECT_EQ(Last(kTrainer[1], Kind::kStart)->start().targets_size(), 0);
  EXPECT_EQ(recorded_.size(), 1u);
}

TEST_F(IdleReplicaTest, ThatDiffersIsFoundBeforeTheGroupShowsTheVersion) {
  PublishSampled(1, 78);
  EXPECT_EQ(Error(kWorker[0], Kind::kAbort), differ_);
  EXPECT_EQ(Error(kTrainer[1], Kind::kPublishRefused), differ_);
  EXPECT_TRUE(recorded_.empty());
}

TEST_F(IdleReplicaTest, ThatDiesIsNotAwaited) {
  Gone(kTrainer[1]);
  EXPECT_EQ(recorded_.size(), 1u);
}

TEST_F(IdleReplicaTest, ThatDoesNotPublishIsNamedAtTheDeadline) {
  Pass(absl::Minutes(1));
  EXPECT_EQ(Error(kWorker[0], Kind::kAbort),
            "version 5: the deadline is over, waiting for publish() by trainer 1");
}

TEST_F(ReplicaTest, ThatDifferAreRefusedBeforeAnyGroupIsWhole) {
  Gone(kWorker[1]);
  PublishSampled(0, 77);
  PublishSampled(1, 78);
  for (const uint32_t t : {0u, 1u}) EXPECT_EQ(Error(kTrainer[t], Kind::kPublishRefused), differ_);
}

TEST_F(ReplicaTest, AreComparedInWhatBothHaveSampled) {
  PublishSampled(0, 77);
  PublishSampled(1, 77, /*unit=*/12345);  // Nobody else's.
  EXPECT_EQ(Count(kTrainer[1], Kind::kPublishRefused), 0);
}

TEST_F(ReplicaTest, WhatIsNoUnitOfTheTrainerIsNotNamed) {
  PublishSampled(0, 77, /*unit=*/12345);
  PublishSampled(1, 78, /*unit=*/12345);
  EXPECT_THAT(Error(kTrainer[1], Kind::kPublishRefused),
              testing::HasSubstr("hold different bytes of a tensor;"));
}

// A matrix of three rows of blocks. The middle one is split between the trainers and between the
// workers: trainer 1 writes to worker 1 only, and worker 0's part needs its maxima all the same.
class TradingCoordinatorTest : public CoordinatorTest {
 protected:
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
      m.mutable_offers()->set_epoch(epoch_);
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

  void LoseLaneBetweenTrainers() { LoseLaneBetweenTrainersIn(epoch_); }
  void LoseLaneBetweenTrainersIn(uint64_t epoch) {
    Tell(kTrainer[0], [&](proto::RankMessage& m) {
      m.mutable_lane_failed()->set_epoch(epoch);
      m.mutable_lane_failed()->set_co_owner(true);
      m.mutable_lane_failed()->set_peer(1);
      *m.mutable_lane_failed()->mutable_error() = EncodeError(absl::UnavailableError("torn"));
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

// Worker 0's tensor needs maxima of trainer 1, which sends nothing to its group.
TEST_F(TradingCoordinatorTest, ATrainerThatOnlyTradesStartsWithoutTargets) {
  groups_ = {"a", "b"};
  MakeCoordinator();
  Establish();
  PublishAll(5);
  ASSERT_EQ(Count(kTrainer[1], Kind::kStart), 1);
  EXPECT_EQ(Last(kTrainer[1], Kind::kStart)->start().round().epoch(), epochs_.at("a"));
  EXPECT_EQ(Last(kTrainer[1], Kind::kStart)->start().targets_size(), 0);
  Ready(0);
  Refuse(1);
  ASSERT_EQ(Count(kTrainer[0], Kind::kStart), 1);
  Arrived(0);
  Shown(0);
  EXPECT_EQ(coordinator_->Status().committed_version(), 5u);
}

TEST_F(TradingCoordinatorTest, ALostLaneBetweenCoOwnersAbortsWhatHasNotArrivedAndLeadsToNewLanes) {
  groups_ = {"a", "b"};
  MakeCoordinator();
  Establish();
  PublishAll(5);
  Ready(0);
  Ready(1);
  Arrived(0);  // Decided: it has all that it needs.
  for (const auto& [group, epoch] : std::map(epochs_)) LoseLaneBetweenTrainersIn(epoch);
  EXPECT_EQ(Count(kWorker[0], Kind::kAbort), 0);
  EXPECT_EQ(Error(kWorker[1], Kind::kAbort), "lane between trainer 0 and trainer 1: torn");
  EXPECT_EQ(Error(kTrainer[0], Kind::kAbort), "lane between trainer 0 and trainer 1: torn");
  EXPECT_EQ(coordinator_->Status().groups(0).epoch(), 1u);  // Until the update is over.
  Shown(0);
  EXPECT_GT(coordinator_->Status().groups(0).epoch(), 2u);
  Connect();
  const proto::StatusReply status = coordinator_->Status();
  ASSERT_EQ(status.groups(0).lanes_lost_size(), 1);
  EXPECT_EQ(status.groups(0).lanes_lost(0).name(), "UNAVAILABLE");
  EXPECT_EQ(status.groups(0).lanes_lost(0).value(), 1u);
}

TEST_F(TradingCoordinatorTest, ALostLaneBetweenCoOwnersLeadsToNewLanesBetweenUpdatesToo) {
  MakeCoordinator();
  Establish();
  const uint64_t old_epoch = epoch_;
  LoseLaneBetweenTrainers();
  EXPECT_EQ(coordinator_->Status().groups(0).epoch(), 2u);
  PublishAll(5);  // Waits for the lanes.
  EXPECT_EQ(Count(kWorker[0], Kind::kPrepare), 0);
  LoseLaneBetweenTrainersIn(old_epoch);  // The other end reports it too.
  const uint64_t epoch = epoch_;
  for (const ConnectionId connection : {kTrainer[0], kTrainer[1], kWorker[0], kWorker[1]}) {
    Offer(connection, {});
  }
  for (const ConnectionId connection : {kTrainer[0], kTrainer[1], kWorker[0], kWorker[1]}) {
    Tell(connection, [&](proto::RankMessage& m) { m.mutable_connected()->set_epoch(epoch); });
  }
  EXPECT_EQ(Count(kWorker[0], Kind::kPrepare), 1);
  EXPECT_EQ(coordinator_->Status().groups(0).epoch(), 2u);
}

TEST_F(TradingCoordinatorTest, ATrainerThatIsGoneAbortsWhatIsQuantisedByItsMaxima) {
  MakeCoordinator();
  Establish();
  PublishAll(5);
  Ready(0);
  Ready(1);
  Gone(kTrainer[1]);
  for (const uint32_t w : {0u, 1u}) {
    EXPECT_EQ(Error(kWorker[w], Kind::kAbort), "trainer 1 is gone: its stream ended");
  }
}

TEST_F(TradingCoordinatorTest, ATrainerThatIsGoneAbortsNothingThatHasArrived) {
  groups_ = {"a", "b"};
  MakeCoordinator();
  Establish();
  PublishAll(5);
  Ready(0);
  Ready(1);
  Arrived(0);
  Gone(kTrainer[1]);
  EXPECT_EQ(Count(kWorker[0], Kind::kAbort), 0);
  EXPECT_EQ(Count(kWorker[0], Kind::kCommit), 1);
  EXPECT_EQ(Count(kWorker[1], Kind::kAbort), 1);
}

// Each worker gets one trainer's row from this trainer, and the other row from the other worker.
class RelaysTest : public CoordinatorTest {
 protected:
  RelaysTest() { relays_ = Relays::kAlways; }

  // A worker answers for one of its ends.
  void Offer(ConnectionId connection, bool relay) {
    Tell(connection, [&](auto& m) {
      m.mutable_offers()->set_epoch(epoch_);
      m.mutable_offers()->set_relay(relay);
    });
  }
  void ConnectEnd(ConnectionId connection, bool relay) {
    Tell(connection, [&](auto& m) {
      m.mutable_connected()->set_epoch(epoch_);
      m.mutable_connected()->set_relay(relay);
    });
  }
  void EstablishAll() {
    MakeCoordinator();
    JoinAll();
    OfferIn("all");
    for (const ConnectionId worker : kWorker) Offer(worker, /*relay=*/true);
    ConnectIn("all");
    for (const ConnectionId worker : kWorker) ConnectEnd(worker, /*relay=*/true);
    ASSERT_EQ(coordinator_->Status().phase(), "ready");
    sent_.clear();
  }
};

TEST_F(RelaysTest, AWorkerLearnsWhatItReceivesAndThenWhatItRelays) {
  MakeCoordinator();
  JoinAll();
  for (const ConnectionId trainer : kTrainer) EXPECT_EQ(Count(trainer, Kind::kPlan), 1);
  for (const ConnectionId worker : kWorker) {
    std::vector<proto::Plan> plans;
    for (const auto& message : sent_[worker]) {
      if (message.has_plan()) plans.push_back(message.plan());
    }
    ASSERT_EQ(plans.size(), 2u);
    EXPECT_FALSE(plans[0].relay());
    EXPECT_TRUE(plans[1].relay());
    // From a trainer and from the other worker; to the other worker.
    const bool first = worker == kWorker[0];
    ASSERT_EQ(plans[0].lanes_size(), 2);
    EXPECT_EQ(plans[0].lanes(1).peer(), first ? 3u : 2u);
    EXPECT_EQ(plans[0].lanes(1).role(), static_cast<uint32_t>(Role::kWorker));
    EXPECT_EQ(plans[0].lanes(1).rank(), first ? 1u : 0u);
    ASSERT_EQ(plans[1].lanes_size(), 1);
    EXPECT_EQ(plans[1].lanes(0).peer(), first ? 1u : 0u);
  }
}

// A row has 8 bytes.
TEST_F(RelaysTest, TheStatusSaysWhatEachSenderBringsIfItIsAsked) {
  EstablishAll();
  const proto::StatusReply plain = coordinator_->Status();
  for (const proto::RankStatus& rank : plain.ranks()) {
    EXPECT_EQ(rank.from_trainers_size() + rank.from_workers_size(), 0);
  }
  proto::StatusRequest request;
  request.set_traffic(true);
  const proto::StatusReply status = coordinator_->Status(request);
  uint64_t from_each_trainer[2] = {};
  for (const proto::RankStatus& rank : status.ranks()) {
    const bool worker = rank.name().starts_with("worker");
    ASSERT_EQ(rank.from_trainers_size(), worker ? 2 : 0);
    ASSERT_EQ(rank.from_workers_size(), worker ? 2 : 0);
    if (!worker) continue;
    for (const int t : {0, 1}) from_each_trainer[t] += rank.from_trainers(t);
    const bool first = rank.name() == "worker 0";
    EXPECT_EQ(rank.from_trainers(0) + rank.from_trainers(1), 8u);
    EXPECT_EQ(rank.from_workers(first ? 0 : 1), 0u);
    EXPECT_EQ(rank.from_workers(first ? 1 : 0), 8u);
  }
  for (const uint64_t bytes : from_each_trainer) EXPECT_EQ(bytes, 8u);
}

TEST_F(RelaysTest, ATermIsEstablishedOnceBothEndsOfEachWorkerAreConnected) {
  MakeCoordinator();
  JoinAll();
  OfferIn("all");
  Offer(kWorker[0], /*relay=*/true);
  EXPECT_EQ(Count(kTrainer[0], Kind::kConnect), 0);
  Offer(kWorker[1], /*relay=*/true);
  EXPECT_EQ(Count(kTrainer[0], Kind::kConnect), 1);
  EXPECT_EQ(Count(kWorker[0], Kind::kConnect), 2);
  ConnectIn("all");
  EXPECT_EQ(coordinator_->Status().phase(), "connecting");
  for (const ConnectionId worker : kWorker) ConnectEnd(worker, /*relay=*/true);
  EXPECT_EQ(coordinator_->Status().phase(), "ready");
  EXPECT_EQ(Count(kWorker[0], Kind::kEstablished), 1);
}

TEST_F(RelaysTest, AWorkerRelaysOnceEveryWorkerIsReadyWhetherOrNotTrainersHavePublished) {
  EstablishAll();
  Publish(0, 5);
  Ready(0);
  EXPECT_EQ(Count(kWorker[0], Kind::kStart) + Count(kWorker[1], Kind::kStart), 0);
  Ready(1);
  for (const uint32_t w : {0u, 1u}) {
    ASSERT_EQ(Count(kWorker[w], Kind::kStart), 1);
    const proto::Start& start = Last(kWorker[w], Kind::kStart)->start();
    ASSERT_EQ(start.targets_size(), 1);
    EXPECT_EQ(start.targets(0).worker(), 1 - w);
  }
  EXPECT_EQ(Count(kTrainer[1], Kind::kStart), 0);
}

TEST_F(RelaysTest, IfALaneDiesNothingMoreIsRelayedAndTheTrainersBringTheRest) {
  EstablishAll();
  for (const uint32_t t : {0u, 1u}) Publish(t, 5);
  for (const uint32_t w : {0u, 1u}) Ready(w);
  Tell(kWorker[0], [&](auto& m) {  // It cannot relay to worker 1.
    m.mutable_lane_failed()->set_epoch(epoch_);
    m.mutable_lane_failed()->set_peer(1);
    m.mutable_lane_failed()->set_relay(true);
    *m.mutable_lane_failed()->mutable_error() = EncodeError(absl::UnavailableError("torn"));
  });
  const auto lost = [&](ConnectionId worker) {
    std::set<uint32_t> senders;
    for (const auto& message : sent_[worker]) {
      const auto& lost = message.sender_lost().senders();
      senders.insert(lost.begin(), lost.end());
    }
    return senders;
  };
  EXPECT_EQ(lost(kWorker[0]), (std::set<uint32_t>{3}));
  EXPECT_EQ(lost(kWorker[1]), (std::set<uint32_t>{2}));
  for (const uint32_t t : {0u, 1u}) {
    EXPECT_EQ(Count(kTrainer[t], Kind::kSenderLost), 1);
    Tell(kTrainer[t], [&](auto& m) {
      *m.mutable_kept()->mutable_round() = round();
      m.mutable_kept()->set_kept(true);
    });
  }
  Arrived(0);
  const uint64_t before = epoch_;
  Tell(kWorker[1], [&](auto& m) {
    *m.mutable_lacking()->mutable_round() = round(1);
    m.mutable_lacking()->add_senders(2);
  });
  // The term that brings the rest: from a trainer to worker 1, without relays.
  EXPECT_NE(epoch_, before);
  const proto::Plan& plan = Last(kWorker[1], Kind::kPlan)->plan();
  EXPECT_FALSE(plan.relay());
  EXPECT_FALSE(Last(kWorker[0], Kind::kPlan)->plan().relay());
  OfferIn("all");
  ConnectIn("all");
  EXPECT_TRUE(Last(kWorker[1], Kind::kPrepare)->prepare().has_continues());
}

TEST_F(RelaysTest, TrainersHearOfAVersionOfWhichNobodyHoldsTheRest) {
  EstablishAll();
  for (const uint32_t t : {0u, 1u}) Publish(t, 5);
  for (const uint32_t w : {0u, 1u}) Ready(w);
  Tell(kTrainer[0], [&](auto& m) {
    m.mutable_lane_failed()->set_epoch(epoch_);
    *m.mutable_lane_failed()->mutable_error() = EncodeError(absl::UnavailableError("torn"));
  });
  for (const uint32_t t : {0u, 1u}) {
    Tell(kTrainer[t], [&](auto& m) {
      *m.mutable_kept()->mutable_round() = round();
      m.mutable_kept()->set_kept(false);
    });
  }
  Tell(kWorker[0], [&](auto& m) {
    *m.mutable_lacking()->mutable_round() = round(0);
    m.mutable_lacking()->add_senders(0);
  });
  Tell(kWorker[1], [&](auto& m) {
    *m.mutable_lacking()->mutable_round() = round(1);
    m.mutable_lacking()->add_senders(2);
  });
  for (const ConnectionId trainer : kTrainer) EXPECT_EQ(Count(trainer, Kind::kAbort), 1);
}

// A late write would reach for memory that the next update has renewed, and its lane would die.
TEST_F(RelaysTest, TheNextUpdateBeginsOnceNothingOfAnAbortedOneIsRelayed) {
  EstablishAll();
  for (const uint32_t t : {0u, 1u}) Publish(t, 5);
  for (const uint32_t w : {0u, 1u}) Ready(w);
  const proto::Round aborted = round();
  Tell(kWorker[1], [&](auto& m) {
    *m.mutable_failed()->mutable_round() = aborted;
    *m.mutable_failed()->mutable_error() = EncodeError(absl::InternalError("a digest"));
  });
  EXPECT_EQ(Error(kTrainer[0], Kind::kOutcome), "worker 1: a digest");
  for (const uint32_t t : {0u, 1u}) Publish(t, 6);
  EXPECT_EQ(Last(kWorker[0], Kind::kPrepare)->prepare().version(), 5u);
  const auto stopped = [&](uint32_t w) {
    Tell(kWorker[w], [&](auto& m) { *m.mutable_relay_stopped()->mutable_round() = aborted; });
  };
  stopped(0);
  EXPECT_EQ(Last(kWorker[0], Kind::kPrepare)->prepare().version(), 5u);
  stopped(1);
  EXPECT_EQ(Last(kWorker[0], Kind::kPrepare)->prepare().version(), 6u);
}

TEST_F(RelaysTest, AWorkerThatDoesNotStopRelayingIsHungUpOn) {
  EstablishAll();
  for (const uint32_t t : {0u, 1u}) Publish(t, 5);
  for (const uint32_t w : {0u, 1u}) Ready(w);
  Refuse(1);
  Tell(kWorker[0], [&](auto& m) { *m.mutable_relay_stopped()->mutable_round() = round(); });
  EXPECT_EQ(coordinator_->Status().waiting_for(), "the end of what is relayed by worker 1");
  Pass(absl::Seconds(5) - absl::Milliseconds(1));
  EXPECT_TRUE(closed_.empty());
  Pass(absl::Milliseconds(1));
  EXPECT_EQ(closed_, std::vector<ConnectionId>{kWorker[1]});
  Join(kWorker[1], Role::kWorker, 1);
  EXPECT_EQ(coordinator_->Status().phase(), "planned");
}

// A lane is dead, and the rest of version 5 is about to come from the trainers to worker 1.
class RelaysRestTest : public RelaysTest {
 protected:
  void SetUp() override {
    EstablishAll();
    for (const uint32_t t : {0u, 1u}) Publish(t, 5);
    for (const uint32_t w : {0u, 1u}) Ready(w);
    aborted_ = round();
    Tell(kWorker[0], [&](auto& m) {
      m.mutable_lane_failed()->set_epoch(epoch_);
      m.mutable_lane_failed()->set_peer(1);
      m.mutable_lane_failed()->set_relay(true);
      *m.mutable_lane_failed()->mutable_error() = EncodeError(absl::UnavailableError("torn"));
    });
    for (const uint32_t t : {0u, 1u}) {
      Tell(kTrainer[t], [&](auto& m) {
        *m.mutable_kept()->mutable_round() = aborted_;
        m.mutable_kept()->set_kept(true);
      });
    }
    Arrived(0);
  }
  // From now on the rest is planned, and its plan is sent by RunJobs().
  void Lack() {
    proto::RankMessage message;
    *message.mutable_lacking()->mutable_round() = aborted_;
    message.mutable_lacking()->add_senders(2);
    message.mutable_lacking()->add_senders(99);  // No sender has this number.
    coordinator_->OnMessage(kWorker[1], message, now_);
  }
  void Stopped(uint32_t w) {
    Tell(kWorker[w], [&](auto& m) { *m.mutable_relay_stopped()->mutable_round() = aborted_; });
  }

  proto::Round aborted_;
};

TEST_F(RelaysRestTest, AWorkerThatDiesEndsTheTermForIt) {
  for (const bool planned : {false, true}) {
    SCOPED_TRACE(planned);
    if (planned) {
      coordinator_.reset();
      sent_.clear();
      SetUp();
    }
    Lack();
    if (planned) RunJobs();
    const uint64_t epoch = epoch_;
    Gone(kWorker[0]);
    EXPECT_EQ(epoch_, epoch);  // The group is not whole.
    EXPECT_EQ(Error(kWorker[1], Kind::kAbort), "worker 0 is gone: its stream ended");
    Join(kWorker[0], Role::kWorker, 0);
    EXPECT_EQ(epoch_, epoch);  // Worker 1 still relays.
    Stopped(1);
    EXPECT_GT(epoch_, epoch);
    EXPECT_TRUE(Last(kWorker[1], Kind::kPlan)->plan().relay());
  }
}

TEST_F(RelaysRestTest, TheDeadlineEndsTheTermForIt) {
  Lack();
  RunJobs();
  const uint64_t epoch = epoch_;
  OfferIn("all");
  Tell(kTrainer[0], [&](auto& m) { m.mutable_connected()->set_epoch(epoch_); });
  Tell(kTrainer[1], [&](auto& m) { m.mutable_connected()->set_epoch(epoch_); });
  Tell(kWorker[0], [&](auto& m) { m.mutable_connected()->set_epoch(epoch_); });
  Pass(absl::Minutes(1));
  EXPECT_EQ(Error(kWorker[1], Kind::kAbort),
            "version 5: the deadline is over, waiting for lanes for what is lacking");
  Tell(kWorker[1], [&](auto& m) { m.mutable_connected()->set_epoch(epoch); });
  EXPECT_EQ(Count(kWorker[1], Kind::kPrepare), 1);
  for (const uint32_t w : {0u, 1u}) Stopped(w);
  EXPECT_GT(epoch_, epoch);
}

// The round is not over, because worker 1 relays.
TEST_F(RelaysTest, NothingIsPlannedForARoundThatWasGivenUpWhenATrainerGoesToo) {
  EstablishAll();
  for (const uint32_t t : {0u, 1u}) Publish(t, 5);
  for (const uint32_t w : {0u, 1u}) Ready(w);
  Gone(kWorker[0]);
  ASSERT_NE(Last(kWorker[1], Kind::kAbort), nullptr);
  coordinator_->OnGone(kTrainer[0], now_);
  EXPECT_TRUE(work_.empty());
  RunJobs();
}

TEST_F(RelaysTest, AWorkerThatIsGoneIsNotWaitedForToStop) {
  EstablishAll();
  for (const uint32_t t : {0u, 1u}) Publish(t, 5);
  for (const uint32_t w : {0u, 1u}) Ready(w);
  const proto::Round aborted = round();
  Gone(kWorker[1]);
  Tell(kWorker[0], [&](auto& m) { *m.mutable_relay_stopped()->mutable_round() = aborted; });
  Join(kWorker[1], Role::kWorker, 1);
  EXPECT_EQ(coordinator_->Status().phase(), "planned");
}

TEST_F(RelaysTest, NobodyHasAnEndThatTheTermDoesNotGiveIt) {
  relays_ = Relays::kNever;
  MakeCoordinator();
  Establish();
  for (const uint32_t t : {0u, 1u}) Publish(t, 5);
  for (const uint32_t w : {0u, 1u}) Ready(w);
  for (const ConnectionId rank : {kTrainer[0], kWorker[0]}) {
    Tell(rank, [&](auto& m) {
      m.mutable_lane_failed()->set_epoch(epoch_);
      m.mutable_lane_failed()->set_relay(true);
      *m.mutable_lane_failed()->mutable_error() = EncodeError(absl::UnavailableError("torn"));
    });
  }
  for (const uint32_t w : {0u, 1u}) Arrived(w);
  EXPECT_EQ(recorded_.size(), 1u);
}

}  // namespace
}  // namespace waybill
