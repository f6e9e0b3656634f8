// SPDX-License-Identifier: Apache-2.0

// The rules of a rank's part in a job, message by message: no sockets, no threads, no clock.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/base/deflate.h"
#include "core/base/sha256.h"
#include "core/plan/plan_codec.h"
#include "core/protocol/message_codec.h"
#include "core/protocol/trainer_session.h"
#include "core/protocol/worker_session.h"

namespace waybill {
namespace {

using Kind = proto::RankMessage::KindCase;

// The controller, the engine and the user of a session.
template <typename Host>
class FakeHost : public Host {
 public:
  void OpenStream() override { ++opened; }
  void CloseStream() override { ++closed; }
  void Send(proto::RankMessage message) override { sent.push_back(std::move(message)); }
  void Tell(Notice notice) override { told.push_back(std::move(notice)); }
  absl::StatusOr<proto::Offers> SetPlan(TermPlan) override { return proto::Offers(); }
  absl::Status Connect(const std::string&, const proto::Connect&) override {
    return absl::OkStatus();
  }

  const proto::RankMessage* Last(Kind kind) const {
    const proto::RankMessage* found = nullptr;
    for (const auto& message : sent) {
      if (message.kind_case() == kind) found = &message;
    }
    return found;
  }
  int Count(Kind kind) const {
    int count = 0;
    for (const auto& message : sent) count += message.kind_case() == kind ? 1 : 0;
    return count;
  }
  const Notice* Last(Notice::Kind kind) const {
    const Notice* found = nullptr;
    for (const Notice& notice : told) {
      if (notice.kind == kind) found = &notice;
    }
    return found;
  }

  proto::RankReport MakeReport() const override { return report; }

  int opened = 0;
  int closed = 0;
  std::vector<proto::RankMessage> sent;
  std::vector<Notice> told;
  proto::RankReport report;
  std::vector<std::string> engine;  // Commands to the engine, by name.
};

class FakeTrainerHost final : public FakeHost<TrainerHost> {
 public:
  absl::Status SetBufferAddress(const std::string&, uint32_t, uint32_t,
                                const proto::Buffer&) override {
    return absl::OkStatus();
  }
  absl::Status Start(const std::string& group, const UpdateId&, const PublishCommand&,
                     const proto::Start&) override {
    Did("start", group);
    return start_status;
  }
  void Abort(const std::string& group, const UpdateId&) override { Did("abort", group); }
  void StopNow(const std::string& group) override { Did("stop now", group); }
  void ForgetGroup(const std::string& group) override { forgotten.push_back(group); }
  // The default group goes without saying.
  void Did(const std::string& what, const std::string& group) {
    engine.push_back(group == kDefaultGroup ? what : what + " " + group);
  }
  std::vector<std::string> forgotten;
  absl::Status start_status;
};

class FakeWorkerHost final : public FakeHost<WorkerHost> {
 public:
  void Prepare(const UpdateId&, bool, absl::Time) override { engine.push_back("prepare"); }
  void Continue(const UpdateId&, const UpdateId&) override { engine.push_back("continue"); }
  void LoseSender(uint32_t sender) override {
    engine.push_back("lose trainer " + std::to_string(sender));
  }
  void Commit(const UpdateId&) override { engine.push_back("commit"); }
  void Abort(const UpdateId&, bool) override { engine.push_back("abort"); }
  uint64_t shown_version() const override { return shown; }
  absl::Status SetBufferAddress(const std::string& group, uint32_t, uint32_t,
                                const proto::Buffer&) override {
    engine.push_back("address of " + group);
    return absl::OkStatus();
  }
  absl::Status StartSending(const std::string& group, const UpdateId&,
                            const proto::Start&) override {
    engine.push_back("send to " + group);
    return send_status;
  }
  void StopRelaying(uint64_t, uint32_t) override {}
  void ForgetGroup(const std::string& group) override { engine.push_back("forget " + group); }

  uint64_t shown = 0;
  absl::Status send_status;
};

// A session in an established job of one group, "all", in epoch 9.
template <typename Session, typename Host>
class SessionTest : public testing::Test {
 protected:
  static constexpr uint64_t kEpoch = 9;
  static constexpr char kAll[] = "all";

  void Establish() {
    session().Join(1, now_ + absl::Seconds(60), now_);
    ComeBack();
    ASSERT_NE(host_.Last(Notice::Kind::kJoined), nullptr);
    ASSERT_TRUE(host_.Last(Notice::Kind::kJoined)->status.ok());
  }
  // The stream opens, and the job is whole.
  void ComeBack() {
    session().OnStreamOpen(now_);
    EstablishTerm(kAll, kEpoch);
  }
  void EstablishTerm(const std::string& group, uint64_t epoch) {
    Hear([&](auto& m) {
      m.mutable_plan()->set_group(group);
      m.mutable_plan()->set_epoch(epoch);
      m.mutable_plan()->set_plan_hash(77);
      m.mutable_plan()->set_routes(Deflate(EncodeRankPlan({}, {})));
      m.mutable_plan()->set_manifest_hash(Sha256(""));
    });
    Hear([&](auto& m) { m.mutable_established()->set_epoch(epoch); });
  }
  void Lose() { session().OnStreamEnd(absl::UnavailableError("the wire is cut"), now_); }
  // The session tries again, and is heard.
  void Reopen() {
    Pass(absl::Seconds(2));
    session().OnStreamOpen(now_);
  }
  template <typename Fill>
  void Hear(Fill fill) {
    proto::ControllerMessage message;
    fill(message);
    session().OnMessage(message, now_);
  }
  static proto::Round RoundOf(uint32_t sequence) {
    proto::Round round;
    round.set_epoch(kEpoch);
    round.set_sequence(sequence);
    return round;
  }
  UpdateId UpdateOf(uint64_t version, uint32_t sequence) const {
    return {.version = version, .sequence = sequence, .epoch = kEpoch, .plan_hash = 77};
  }
  void HearPrepare(uint64_t version, uint32_t sequence) {
    Hear([&](auto& m) {
      *m.mutable_prepare()->mutable_round() = RoundOf(sequence);
      m.mutable_prepare()->set_version(version);
      m.mutable_prepare()->set_plan_hash(77);
      m.mutable_prepare()->set_deadline_ms(10'000);
      m.mutable_prepare()->set_catch_up(catch_up_);
    });
  }
  void HearAbortOf(uint32_t sequence, uint64_t attempt, bool again = false) {
    Hear([&](auto& m) {
      m.mutable_abort()->set_attempt(attempt);
      m.mutable_abort()->set_again(again);
      *m.mutable_abort()->mutable_round() = RoundOf(sequence);
      m.mutable_abort()->set_begun(true);
      *m.mutable_abort()->mutable_error() = EncodeError(absl::UnavailableError("given up"));
    });
  }
  void Pass(absl::Duration time) {
    now_ += time;
    session().OnTime(now_);
  }
  virtual Session& session() = 0;

  Host host_;
  bool catch_up_ = false;  // PREPARE says so.
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
};

// --- trainers ---

class TrainerSessionTest : public SessionTest<TrainerSession, FakeTrainerHost> {
 protected:
  TrainerSession& session() override { return session_; }
  void Publish(uint64_t version, absl::Duration time = absl::Seconds(30)) {
    session_.Publish(version, {.version = version, .deadline = now_ + time}, now_);
  }
  uint64_t attempt() const { return host_.Last(Kind::kPublish)->publish().attempt(); }
  // Sends version 5, and comes back after the controller was lost.
  void SendAndComeBack() {
    Establish();
    Publish(5);
    Begin(5, 1);
    session_.OnSent(kAll, UpdateOf(5, 1), now_);
    Lose();
    Reopen();
  }
  void HearAccepted(const std::vector<std::string>& groups = {kAll}) {
    Hear([&](auto& m) {
      m.mutable_publish_accepted()->set_attempt(attempt());
      for (const std::string& group : groups) m.mutable_publish_accepted()->add_groups(group);
    });
  }
  void HearStart(uint64_t version, uint32_t sequence) { HearStart(version, sequence, attempt()); }
  void HearStart(uint64_t version, uint32_t sequence, uint64_t attempt, uint64_t epoch = kEpoch) {
    Hear([&](auto& m) {
      m.mutable_start()->mutable_round()->set_epoch(epoch);
      m.mutable_start()->mutable_round()->set_sequence(sequence);
      m.mutable_start()->set_attempt(attempt);
      m.mutable_start()->set_version(version);
      m.mutable_start()->set_plan_hash(77);
    });
  }
  // Version 5 is being sent to the groups "all" and "b".
  void BeginInTwoGroups() {
    Establish();
    EstablishTerm("b", 10);
    Publish(5);
    HearAccepted({kAll, "b"});
    HearStart(5, 1);
    HearStart(5, 1, attempt(), 10);
  }
  void HearAbort(uint32_t sequence) { HearAbortOf(sequence, attempt()); }
  void HearOutcome(uint64_t version, uint64_t attempt, bool committed) {
    Hear([&](auto& m) {
      m.mutable_outcome()->set_version(version);
      m.mutable_outcome()->set_group("all");
      m.mutable_outcome()->set_committed(committed);
      m.mutable_outcome()->set_attempt(attempt);
    });
  }
  void Begin(uint64_t version, uint32_t sequence) {
    HearAccepted();
    HearStart(version, sequence);
  }
  // How the publish of a version ended; nullptr while it has not.
  const Notice* Published(uint64_t version) const {
    const Notice* found = nullptr;
    for (const Notice& notice : host_.told) {
      if (notice.kind == Notice::Kind::kPublished && notice.version == version) found = &notice;
    }
    return found;
  }

  TrainerSession session_{{.id = {Role::kTrainer, 0}, .manifest = {}, .nics = {}}, &host_};
};

TEST(RankSession, ARankSendsThePartThatItIsAskedFor) {
  FakeTrainerHost host;
  TrainerSession session(
      {.id = {Role::kTrainer, 0},
       .manifest = {.head = "h", .tensors = "of tensors", .holdings = "of shards"},
       .nics = {}},
      &host);
  session.Join(1, absl::InfiniteFuture(), absl::UnixEpoch());
  session.OnStreamOpen(absl::UnixEpoch());
  EXPECT_EQ(host.Last(Kind::kManifest)->manifest().head(), "h");
  for (const PartKind kind : {PartKind::kTensors, PartKind::kHoldings}) {
    proto::ControllerMessage message;
    message.mutable_part_wanted()->mutable_name()->set_kind(static_cast<uint32_t>(kind));
    message.mutable_part_wanted()->mutable_name()->set_hash("7");
    session.OnMessage(message, absl::UnixEpoch());
    const proto::RankPart& part = host.Last(Kind::kPart)->part();
    EXPECT_EQ(part.name().hash(), "7");
    EXPECT_EQ(*Inflate(part.deflated(), 100),
              kind == PartKind::kTensors ? "of tensors" : "of shards");
  }
}

// Routes name no tensors: others' bytes would land in memory that fits by its shape.
TEST_F(TrainerSessionTest, APlanForAnotherManifestIsRefused) {
  Establish();
  Hear([](auto& m) {
    m.mutable_plan()->set_group(kAll);
    m.mutable_plan()->set_epoch(kEpoch + 1);
    m.mutable_plan()->set_manifest_hash(Sha256("another head"));
    m.mutable_plan()->set_routes(Deflate(EncodeRankPlan({}, {})));
  });
  ASSERT_EQ(host_.Count(Kind::kConnectFailed), 1);
  EXPECT_EQ(host_.Last(Kind::kConnectFailed)->connect_failed().error().message(),
            "connect the lanes: the plan was made for another manifest than the one that this rank "
            "has declared");
}

TEST_F(TrainerSessionTest, APublishIsAskedForWhenTheOneBeforeItIsSent) {
  Establish();
  Publish(5);
  Publish(6);
  EXPECT_EQ(host_.Count(Kind::kPublish), 1);
  Begin(5, 1);
  session_.OnSent(kAll, UpdateOf(5, 1), now_);
  EXPECT_TRUE(Published(5)->status.ok());
  EXPECT_EQ(host_.Count(Kind::kPublish), 2);
  EXPECT_EQ(host_.Last(Kind::kPublish)->publish().version(), 6u);
}

TEST_F(TrainerSessionTest, AVersionIsLaterThanTheLastOneUnlessThatFailed) {
  Establish();
  Publish(5);
  Publish(5);
  EXPECT_EQ(Published(5)->status.message(),
            "publish version 5: version 5 was published; versions only grow");
  Hear([](auto& m) {
    m.mutable_publish_refused()->set_version(5);
    m.mutable_publish_refused()->set_attempt(1);
    *m.mutable_publish_refused()->mutable_error() = EncodeError(absl::UnavailableError("no"));
  });
  Publish(5);
  EXPECT_EQ(host_.Count(Kind::kPublish), 2);
}

TEST_F(TrainerSessionTest, WhatWaitsIsAskedForAgainWhenTheControllerIsBack) {
  Establish();
  Publish(5);
  Lose();
  EXPECT_EQ(Published(5), nullptr);
  Pass(absl::Seconds(2));
  ComeBack();
  EXPECT_EQ(host_.Count(Kind::kPublish), 2);
}

TEST_F(TrainerSessionTest, WhatAGroupHasGivenUpIsNotAskedForAgain) {
  Establish();
  Publish(5);
  EstablishTerm("b", 10);
  HearAccepted({kAll, "b"});
  HearOutcome(5, attempt(), /*committed=*/false);
  EXPECT_EQ(Published(5), nullptr);  // The other group may commit it.
  Lose();
  EXPECT_EQ(Published(5)->status.message(), "group all: it was not committed");
  Pass(absl::Seconds(2));
  ComeBack();
  EXPECT_EQ(host_.Count(Kind::kPublish), 1);
}

TEST_F(TrainerSessionTest, WhatIsBeingSentFailsWithTheControllerAndIsQuietBefore) {
  Establish();
  Publish(5);
  Begin(5, 1);
  Lose();
  EXPECT_EQ(host_.engine, (std::vector<std::string>{"start", "stop now"}));
  EXPECT_EQ(Published(5)->status.message(), "the wire is cut");
}

TEST_F(TrainerSessionTest, AnAbortedPublishEndsOnceNothingOfItCanLand) {
  Establish();
  Publish(5);
  Begin(5, 1);
  HearAbort(1);
  EXPECT_EQ(Published(5), nullptr);
  session_.OnStopped(kAll, UpdateOf(5, 1), now_);
  EXPECT_EQ(Published(5)->status.message(), "given up");
}

TEST_F(TrainerSessionTest, APublishGoesOnIfTheVersionIsSentToAGroupOnceMore) {
  Establish();
  Publish(5);
  Begin(5, 1);
  HearAbortOf(1, attempt(), /*again=*/true);
  HearStart(5, 2);  // Waits for the engine.
  EXPECT_EQ(host_.Last(Kind::kFailed), nullptr);
  session_.OnStopped(kAll, UpdateOf(5, 1), now_);
  EXPECT_EQ(host_.Last(Kind::kFailed), nullptr);
  EXPECT_EQ(Published(5), nullptr);
  session_.OnSent(kAll, UpdateOf(5, 2), now_);
  ASSERT_NE(Published(5), nullptr);
  EXPECT_TRUE(Published(5)->status.ok()) << Published(5)->status;
}

TEST_F(TrainerSessionTest, AGroupThatHadItsPartCanNeedItOnceMore) {
  BeginInTwoGroups();
  session_.OnSent(kAll, UpdateOf(5, 1), now_);
  HearAbortOf(1, attempt(), /*again=*/true);
  session_.OnSent("b", {.version = 5, .sequence = 1, .epoch = 10, .plan_hash = 77}, now_);
  EXPECT_EQ(Published(5), nullptr);
  HearStart(5, 2);
  session_.OnSent(kAll, UpdateOf(5, 2), now_);
  ASSERT_NE(Published(5), nullptr);
  EXPECT_TRUE(Published(5)->status.ok()) << Published(5)->status;
}

TEST_F(TrainerSessionTest, APublishEndsIfTheOtherStartIsGivenUpWhileTheEngineStops) {
  Establish();
  Publish(5);
  Begin(5, 1);
  HearAbortOf(1, attempt(), /*again=*/true);
  HearOutcome(5, attempt(), /*committed=*/false);
  EXPECT_EQ(Published(5), nullptr);
  session_.OnStopped(kAll, UpdateOf(5, 1), now_);
  ASSERT_NE(Published(5), nullptr);
  EXPECT_FALSE(Published(5)->status.ok());
}

TEST_F(TrainerSessionTest, AnUpdateThatDoesNotBecomeQuietHasItsLanesClosedAfterASecond) {
  Establish();
  Publish(5);
  Begin(5, 1);
  HearAbort(1);
  Pass(absl::Seconds(1));
  EXPECT_EQ(host_.engine.back(), "stop now");
  EXPECT_EQ(Published(5)->status.message(), "given up");
}

TEST_F(TrainerSessionTest, AStartThatCannotBeObeyedIsToldToTheController) {
  Establish();
  Publish(5);
  host_.start_status = absl::FailedPreconditionError("another generation");
  Begin(5, 1);
  ASSERT_NE(host_.Last(Kind::kFailed), nullptr);
  EXPECT_EQ(host_.Last(Kind::kFailed)->failed().error().message(),
            "start version 5: another generation");
  EXPECT_FALSE(Published(5)->status.ok());
}

TEST_F(TrainerSessionTest, AStartOfAPublishThatHasEndedIsToldToTheController) {
  Establish();
  Publish(5);
  HearAccepted();
  session_.Cancel(5, now_);
  EXPECT_EQ(Published(5)->status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(host_.Count(Kind::kWithdraw), 1);
  HearStart(5, 1);
  EXPECT_EQ(host_.Count(Kind::kFailed), 1);
  EXPECT_TRUE(host_.engine.empty());
}

// The answers to a publish that was withdrawn are not those to the next one of the same version.
TEST_F(TrainerSessionTest, AVersionCanBePublishedAgainAtOnceAfterItWasCancelled) {
  Establish();
  Publish(5);
  HearAccepted();
  session_.Cancel(5, now_);
  host_.told.clear();
  Publish(5);
  HearStart(5, 1, 1);
  HearAbortOf(1, 1);
  EXPECT_EQ(Published(5), nullptr);
  EXPECT_TRUE(host_.engine.empty());
  Begin(5, 2);
  EXPECT_EQ(host_.engine, (std::vector<std::string>{"start"}));
}

TEST_F(TrainerSessionTest, TheOutcomeOfAWithdrawnPublishIsNotThatOfTheNext) {
  Establish();
  Publish(5);
  HearAccepted();
  session_.Cancel(5, now_);
  host_.told.clear();
  session_.Publish(6, {.version = 5, .deadline = now_ + absl::Seconds(3), .until_committed = true},
                   now_);
  HearOutcome(5, /*attempt=*/1, /*committed=*/false);
  Begin(5, 2);
  session_.OnSent(kAll, UpdateOf(5, 2), now_);
  EXPECT_EQ(Published(5), nullptr);
  HearOutcome(5, /*attempt=*/2, /*committed=*/true);
  EXPECT_TRUE(Published(5)->status.ok());
}

TEST_F(TrainerSessionTest, AVersionIsSentOnceEveryGroupHasIt) {
  BeginInTwoGroups();
  EXPECT_EQ(host_.engine, (std::vector<std::string>{"start", "start b"}));
  session_.OnSent("b", {.version = 5, .sequence = 1, .epoch = 10, .plan_hash = 77}, now_);
  EXPECT_EQ(Published(5), nullptr);
  session_.OnSent(kAll, UpdateOf(5, 1), now_);
  EXPECT_TRUE(Published(5)->status.ok());
}

TEST_F(TrainerSessionTest, AGroupThatGivesUpStopsNoOther) {
  BeginInTwoGroups();
  HearAbort(1);
  EXPECT_EQ(host_.engine, (std::vector<std::string>{"start", "start b", "abort"}));
  session_.OnStopped(kAll, UpdateOf(5, 1), now_);
  EXPECT_EQ(Published(5), nullptr);
  session_.OnSent("b", {.version = 5, .sequence = 1, .epoch = 10, .plan_hash = 77}, now_);
  EXPECT_TRUE(Published(5)->status.ok());
}

TEST_F(TrainerSessionTest, AGroupThatIsGoneIsForgotten) {
  BeginInTwoGroups();
  session_.OnSent(kAll, UpdateOf(5, 1), now_);
  Hear([](auto& m) { m.mutable_term_over()->set_group("b"); });
  EXPECT_EQ(host_.engine, (std::vector<std::string>{"start", "start b", "stop now b"}));
  EXPECT_EQ(host_.forgotten, std::vector<std::string>{"b"});
  EXPECT_EQ(session_.groups(), std::vector<std::string>{kAll});
  EXPECT_TRUE(Published(5)->status.ok());
}

// Its outcome says so.
TEST_F(TrainerSessionTest, AGroupThatWasNotWholeFailsNoPublish) {
  Establish();
  session_.Publish(6, {.version = 5, .deadline = now_ + absl::Seconds(3), .until_committed = true},
                   now_);
  Begin(5, 1);
  Hear([&](auto& m) {
    m.mutable_outcome()->set_version(5);
    m.mutable_outcome()->set_group("b");
    m.mutable_outcome()->set_attempt(attempt());
    *m.mutable_outcome()->mutable_error() = EncodeError(absl::UnavailableError("not whole"));
  });
  session_.OnSent(kAll, UpdateOf(5, 1), now_);
  HearOutcome(5, attempt(), /*committed=*/true);
  EXPECT_TRUE(Published(5)->status.ok());
  EXPECT_EQ(host_.Last(Notice::Kind::kOutcome)->group, kAll);
}

// The others can still commit it without this trainer.
TEST_F(TrainerSessionTest, WhatOneGroupHasIsSentThoughTheControllerIsLostBeforeTheOther) {
  Establish();
  EstablishTerm("b", 10);
  Publish(5);
  HearAccepted({kAll, "b"});
  HearStart(5, 1);
  session_.OnSent(kAll, UpdateOf(5, 1), now_);
  Lose();
  EXPECT_TRUE(Published(5)->status.ok());
  EXPECT_EQ(host_.forgotten, (std::vector<std::string>{kAll, "b"}));
  Reopen();
  EXPECT_EQ(host_.Last(Kind::kJoin)->join().undecided_versions(0), 5u);
}

// A group decides without a trainer that has nothing to send to it.
TEST_F(TrainerSessionTest, AGroupThatHasDecidedNeedsNothingMore) {
  Establish();
  Publish(5);
  HearAccepted();
  HearOutcome(5, attempt(), /*committed=*/true);
  EXPECT_TRUE(Published(5)->status.ok());
}

// The workers have everything, and leave before this trainer's engine has looked.
TEST_F(TrainerSessionTest, WhatAGroupCommittedBeforeItLeftIsSent) {
  Establish();
  Publish(5);
  HearAccepted();
  HearStart(5, 1);
  HearOutcome(5, attempt(), /*committed=*/true);
  EXPECT_EQ(Published(5), nullptr);  // The engine may still read the tensors.
  Hear([](auto& m) { m.mutable_term_over()->set_group("all"); });
  EXPECT_EQ(host_.engine.back(), "stop now");
  ASSERT_NE(Published(5), nullptr);
  EXPECT_EQ(Published(5)->status.message(), "");
}

TEST_F(TrainerSessionTest, AReportIsSentIfItIsNew) {
  Establish();
  host_.report.set_version(5);
  session_.Report();
  session_.Report();
  ASSERT_EQ(host_.Count(Kind::kReport), 1);
  host_.report.set_version(6);
  session_.Report();
  ASSERT_EQ(host_.Count(Kind::kReport), 2);
  // Another controller knows nothing.
  Lose();
  session_.Report();
  EXPECT_EQ(host_.Count(Kind::kReport), 2);
  Pass(absl::Seconds(2));
  ComeBack();
  session_.Report();
  ASSERT_EQ(host_.Count(Kind::kReport), 3);
}

TEST_F(TrainerSessionTest, WhatRodeOnAnotherMessageIsNotSentAgain) {
  Establish();
  host_.report.set_version(5);
  session_.OnConnected(kAll, {{.peer = 1, .path = "tcp"}});
  const proto::Connected& connected = host_.Last(Kind::kConnected)->connected();
  EXPECT_EQ(connected.report().version(), 5u);
  EXPECT_EQ(connected.lanes(0).path(), "tcp");
  Publish(6);
  Begin(6, 1);
  host_.report.set_version(6);
  session_.OnSent(kAll, UpdateOf(6, 1), now_);
  EXPECT_EQ(host_.Last(Kind::kSent)->sent().report().version(), 6u);
  session_.Report();
  EXPECT_EQ(host_.Count(Kind::kReport), 0);
}

TEST_F(TrainerSessionTest, AMessageOfAnotherRoundIsIgnored) {
  Establish();
  Publish(5);
  HearAccepted();
  HearStart(5, 1, attempt(), kEpoch + 1);
  EXPECT_TRUE(host_.engine.empty());
  HearStart(5, 2);
  HearAbortOf(2, attempt() + 1);
  EXPECT_EQ(host_.engine, (std::vector<std::string>{"start"}));
}

TEST_F(TrainerSessionTest, APublishEndsByItsDeadlineWithoutAController) {
  Establish();
  Lose();
  Publish(5, absl::Seconds(3));
  Pass(absl::Seconds(3));
  EXPECT_EQ(Published(5)->status.message(),
            "publish version 5: not sent by its deadline; the wire is cut");
}

// The controller knows who is missing, and says so long before the publish's deadline.
TEST_F(TrainerSessionTest, APublishWhileNoGroupIsWholeGoesToTheController) {
  Establish();
  Hear([](auto& m) {  // A worker has died.
    m.mutable_plan()->set_group(kAll);
    m.mutable_plan()->set_epoch(kEpoch + 1);
  });
  Publish(5);
  EXPECT_EQ(host_.Count(Kind::kPublish), 1);
  Hear([](auto& m) { m.mutable_term_over()->set_group(kAll); });  // All workers have.
  Hear([](auto& m) {
    m.mutable_publish_refused()->set_version(5);
    m.mutable_publish_refused()->set_attempt(1);
    *m.mutable_publish_refused()->mutable_error() =
        EncodeError(absl::UnavailableError("it cannot begin without every worker"));
  });
  EXPECT_EQ(Published(5)->status.message(), "it cannot begin without every worker");
  Publish(6);
  EXPECT_EQ(host_.Count(Kind::kPublish), 2);
}

// Another trainer is lost while this one sends version 5, or has sent it.
class KeptTest : public TrainerSessionTest {
 protected:
  void SetUp() override {
    Establish();
    Publish(5);
    Begin(5, 1);
  }
  void HearSenderLost() {
    Hear([&](auto& m) {
      *m.mutable_sender_lost()->mutable_round() = RoundOf(1);
      m.mutable_sender_lost()->set_attempt(attempt());
    });
  }
};

TEST_F(KeptTest, WhatIsNotSentYetIsKeptUntilTheRestIsSent) {
  HearSenderLost();
  EXPECT_TRUE(host_.Last(Kind::kKept)->kept().kept());
  session_.OnSent(kAll, UpdateOf(5, 1), now_);
  EXPECT_EQ(Published(5), nullptr);
  HearStart(5, 2);
  EXPECT_EQ(host_.engine, (std::vector<std::string>{"start", "start"}));
  session_.OnSent(kAll, UpdateOf(5, 2), now_);
  EXPECT_TRUE(Published(5)->status.ok());
}

TEST_F(KeptTest, WhatIsKeptIsLetGoWithTheOutcome) {
  HearSenderLost();
  session_.OnSent(kAll, UpdateOf(5, 1), now_);
  HearOutcome(5, attempt(), /*committed=*/true);
  EXPECT_TRUE(Published(5)->status.ok());
}

TEST_F(KeptTest, LanesThatAreReplacedForTheRestEndNoPublish) {
  HearSenderLost();
  session_.OnStopped(kAll, UpdateOf(5, 1), now_);  // The new term's plan stopped the engine.
  EXPECT_EQ(Published(5), nullptr);
  HearStart(5, 2);
  session_.OnSent(kAll, UpdateOf(5, 2), now_);
  EXPECT_TRUE(Published(5)->status.ok());
}

TEST_F(KeptTest, WhatIsSentIsNotKept) {
  session_.OnSent(kAll, UpdateOf(5, 1), now_);
  HearSenderLost();
  EXPECT_FALSE(host_.Last(Kind::kKept)->kept().kept());
}

TEST_F(KeptTest, WhatIsKeptEndsWithTheController) {
  HearSenderLost();
  session_.OnSent(kAll, UpdateOf(5, 1), now_);
  Lose();
  EXPECT_TRUE(Published(5)->status.ok());
}

// Version 5 is sent, and group "b", which fetches and is required, shows version 3 at first.
class MaxBehindTest : public TrainerSessionTest {
 protected:
  void PublishBounded(uint64_t max_behind, bool until_committed = false) {
    Establish();
    HearOldest("b", 3);
    session_.Publish(5,
                     {.version = 5,
                      .deadline = now_ + absl::Seconds(3),
                      .until_committed = until_committed,
                      .max_behind = max_behind},
                     now_);
    Begin(5, 1);
    session_.OnSent(kAll, UpdateOf(5, 1), now_);
  }
  void HearOldest(const std::string& group, uint64_t version) {
    Hear([&](auto& m) {
      m.mutable_oldest_shown()->set_group(group);
      m.mutable_oldest_shown()->set_version(version);
    });
  }
  void HearCommitted() {
    Hear([&](auto& m) {
      m.mutable_outcome()->set_version(5);
      m.mutable_outcome()->set_group(kAll);
      m.mutable_outcome()->set_committed(true);
      m.mutable_outcome()->set_attempt(attempt());
    });
  }
};

TEST_F(MaxBehindTest, APublishEndsOnceTheGroupShowsAVersionThatIsNewEnough) {
  PublishBounded(1);
  EXPECT_EQ(Published(5), nullptr);
  HearCommitted();
  EXPECT_EQ(Published(5), nullptr);
  HearOldest("b", 4);
  EXPECT_TRUE(Published(5)->status.ok());
  EXPECT_EQ(host_.Last(Notice::Kind::kDecided)->version, 5u);
}

TEST_F(MaxBehindTest, ItDoesNotWaitForAGroupThatIsNewEnough) {
  PublishBounded(2);
  EXPECT_TRUE(Published(5)->status.ok());
}

TEST_F(MaxBehindTest, ItDoesNotWaitForAGroupThatIsGone) {
  PublishBounded(1);
  HearOldest("", 0);
  EXPECT_TRUE(Published(5)->status.ok());
}

TEST_F(MaxBehindTest, ItWaitsForDecisionsTooIfAsked) {
  PublishBounded(1, /*until_committed=*/true);
  HearOldest("b", 5);
  EXPECT_EQ(Published(5), nullptr);
  HearCommitted();
  EXPECT_TRUE(Published(5)->status.ok());
  EXPECT_EQ(host_.Last(Notice::Kind::kDecided), nullptr);
}

TEST_F(MaxBehindTest, ItsDeadlineNamesTheGroup) {
  PublishBounded(1);
  HearCommitted();
  Pass(absl::Seconds(5));
  EXPECT_EQ(Published(5)->status.message(),
            "publish version 5: group b is 2 versions behind, at version 3, and max_behind is 1");
}

TEST_F(MaxBehindTest, AVersionThatFailsIsNotWaitedFor) {
  PublishBounded(1);
  Hear([&](auto& m) {
    m.mutable_outcome()->set_version(5);
    m.mutable_outcome()->set_group(kAll);
    m.mutable_outcome()->set_attempt(attempt());
  });
  EXPECT_EQ(Published(5)->status.message(), "group all: it was not committed");
}

TEST_F(MaxBehindTest, ACancelledPublishWaitsNoLonger) {
  PublishBounded(1);
  session_.Cancel(5, now_);
  EXPECT_TRUE(absl::IsCancelled(Published(5)->status));
}

TEST_F(MaxBehindTest, TheNextControllerIsNotAskedAboutAVersionThatIsDecided) {
  PublishBounded(1);
  HearCommitted();
  Lose();
  Reopen();
  EXPECT_EQ(host_.Last(Kind::kJoin)->join().undecided_versions_size(), 0);
}

// A version that is sent, and held.
class HoldTest : public TrainerSessionTest {
 protected:
  void SetUp() override {
    Establish();
    session_.Publish(5, {.version = 5, .deadline = now_ + absl::Seconds(30), .hold = true}, now_);
    Begin(5, 1);
    session_.OnSent(kAll, UpdateOf(5, 1), now_);
    ASSERT_TRUE(Published(5)->status.ok());
    host_.engine.clear();
  }
  const Notice* Released() const { return host_.Last(Notice::Kind::kReleased); }
};

TEST_F(HoldTest, AHeldVersionIsSentAgainToAGroupThatMissedIt) {
  EXPECT_EQ(host_.Last(Kind::kHeld)->held().version(), 5u);
  EXPECT_EQ(host_.Last(Kind::kHeld)->held().attempt(), attempt());
  HearStart(5, 2);
  EXPECT_EQ(host_.engine, (std::vector<std::string>{"start"}));
  session_.OnSent(kAll, UpdateOf(5, 2), now_);
  EXPECT_EQ(host_.Last(Kind::kSent)->sent().round().sequence(), 2u);
  session_.Release(9, now_);
  EXPECT_EQ(Released()->token, 9u);
  EXPECT_EQ(host_.Last(Kind::kHeld)->held().version(), 0u);
  HearStart(5, 3);
  EXPECT_EQ(host_.engine, (std::vector<std::string>{"start"}));
  EXPECT_EQ(host_.Last(Kind::kFailed)->failed().round().sequence(), 3u);
}

TEST_F(HoldTest, WhatIsHeldIsKeptForTheRestOfAVersion) {
  Hear([&](auto& m) {
    *m.mutable_sender_lost()->mutable_round() = RoundOf(1);
    m.mutable_sender_lost()->set_attempt(attempt());
  });
  EXPECT_TRUE(host_.Last(Kind::kKept)->kept().kept());
}

TEST_F(HoldTest, AReleaseEndsOnceNothingReadsTheTensors) {
  HearStart(5, 2);
  session_.Release(9, now_);
  EXPECT_EQ(host_.engine, (std::vector<std::string>{"start", "abort"}));
  EXPECT_EQ(host_.Last(Kind::kFailed)->failed().round().sequence(), 2u);
  EXPECT_EQ(Released(), nullptr);
  session_.OnStopped(kAll, UpdateOf(5, 2), now_);
  EXPECT_NE(Released(), nullptr);
}

TEST_F(HoldTest, AReleaseTakesNoLongerThanASecond) {
  HearStart(5, 2);
  session_.Release(9, now_);
  Pass(absl::Seconds(1));
  EXPECT_EQ(host_.engine, (std::vector<std::string>{"start", "abort", "stop now"}));
  EXPECT_NE(Released(), nullptr);
}

TEST_F(HoldTest, NothingIsPublishedWhileAVersionIsHeld) {
  Publish(6);
  EXPECT_EQ(Published(6)->status.message(),
            "publish version 6: version 5 is held; release it first");
  session_.Release(9, now_);
  host_.told.clear();
  Publish(6);
  EXPECT_EQ(Published(6), nullptr);
}

TEST_F(HoldTest, TheNextControllerIsToldWhatIsHeld) {
  HearStart(5, 2);
  Lose();
  EXPECT_EQ(host_.engine, (std::vector<std::string>{"start", "stop now"}));
  Reopen();
  EXPECT_EQ(host_.Last(Kind::kJoin)->join().held().version(), 5u);
}

TEST_F(TrainerSessionTest, ThePlaceInATraceTravelsWithThePublish) {
  Establish();
  session_.Publish(5, {.version = 5, .deadline = now_ + absl::Seconds(3), .traceparent = "00-a"},
                   now_);
  EXPECT_EQ(host_.Last(Kind::kPublish)->publish().traceparent(), "00-a");
}

TEST_F(TrainerSessionTest, WhatAVersionIsMadeOfIsToldWithThePublishAndTheHold) {
  Establish();
  session_.Publish(5,
                   {.version = 5,
                    .deadline = now_ + absl::Seconds(3),
                    .hold = true,
                    .composition = 77,
                    .unknown_tensors = {"nope"}},
                   now_);
  EXPECT_EQ(host_.Last(Kind::kPublish)->publish().composition(), 77u);
  EXPECT_EQ(host_.Last(Kind::kPublish)->publish().unknown_tensors(0), "nope");
  Begin(5, 1);
  session_.OnSent(kAll, UpdateOf(5, 1), now_);
  EXPECT_EQ(host_.Last(Kind::kHeld)->held().composition(), 77u);
  Lose();
  Reopen();
  EXPECT_EQ(host_.Last(Kind::kJoin)->join().held().composition(), 77u);
}

// Version 5 goes to the groups "all" and "b", and waits for its word.
class HoldCommitTest : public TrainerSessionTest {
 protected:
  void SetUp() override {
    Establish();
    EstablishTerm("b", 10);
    session_.Publish(
        5, {.version = 5, .deadline = now_ + absl::Seconds(3), .hold = true, .hold_commit = true},
        now_);
    EXPECT_TRUE(host_.Last(Kind::kPublish)->publish().hold_commit());
    HearAccepted({kAll, "b"});
    HearStart(5, 1);
    HearStart(5, 1, attempt(), 10);
  }
  void Send() {
    session_.OnSent(kAll, UpdateOf(5, 1), now_);
    UpdateId update = UpdateOf(5, 1);
    update.epoch = 10;
    session_.OnSent("b", update, now_);
  }
  void HearArrived(const std::string& group, uint64_t attempt) {
    Hear([&](auto& m) {
      m.mutable_group_arrived()->set_version(5);
      m.mutable_group_arrived()->set_group(group);
      m.mutable_group_arrived()->set_attempt(attempt);
    });
  }
};

TEST_F(HoldCommitTest, TheUserIsAskedOnceAllGroupsHaveAllOfIt) {
  HearArrived("b", attempt());  // Before this trainer has noticed that all is sent.
  Send();
  HearArrived(kAll, attempt() + 1);  // A message about another publish.
  EXPECT_EQ(host_.Last(Notice::Kind::kArrived), nullptr);
  session_.Decide(5, absl::OkStatus(), now_);
  EXPECT_EQ(host_.Count(Kind::kDecide), 0);
  HearArrived(kAll, attempt());
  ASSERT_NE(host_.Last(Notice::Kind::kArrived), nullptr);
  EXPECT_EQ(host_.Last(Notice::Kind::kArrived)->version, 5u);
  session_.Decide(4, absl::OkStatus(), now_);
  EXPECT_EQ(host_.Count(Kind::kDecide), 0);
  session_.Decide(5, absl::OkStatus(), now_);
  EXPECT_EQ(host_.Last(Kind::kDecide)->decide().attempt(), attempt());
  EXPECT_FALSE(host_.Last(Kind::kDecide)->decide().has_error());
}

TEST_F(HoldCommitTest, TheUserHearsThatAllHaveItBeforeTheirWorkersHaveVoted) {
  Send();
  HearArrived("b", attempt());
  EXPECT_EQ(host_.Last(Notice::Kind::kReceived), nullptr);
  Hear([&](auto& m) {
    m.mutable_group_arrived()->set_version(5);
    m.mutable_group_arrived()->set_group(kAll);
    m.mutable_group_arrived()->set_attempt(attempt());
    m.mutable_group_arrived()->set_unvoted(true);
  });
  ASSERT_NE(host_.Last(Notice::Kind::kReceived), nullptr);
  EXPECT_EQ(host_.Last(Notice::Kind::kArrived), nullptr);
  host_.told.clear();
  HearArrived(kAll, attempt());
  EXPECT_NE(host_.Last(Notice::Kind::kArrived), nullptr);
  EXPECT_EQ(host_.Last(Notice::Kind::kReceived), nullptr);
}

TEST_F(HoldCommitTest, TheNextControllerHearsThatItIsHeldOnceAGroupHasCommittedIt) {
  Send();
  HearArrived("b", attempt());
  HearArrived(kAll, attempt());
  EXPECT_EQ(host_.Count(Kind::kHeld), 1);
  Lose();
  Reopen();
  EXPECT_EQ(host_.Last(Kind::kJoin)->join().held().version(), 0u);
  HearOutcome(5, attempt(), /*committed=*/true);
  EXPECT_EQ(host_.Count(Kind::kHeld), 2);
  EXPECT_EQ(host_.Last(Kind::kHeld)->held().version(), 5u);
}

TEST_F(HoldCommitTest, ItIsHeldForTheNextControllerIfAGroupHasCommittedIt) {
  Send();
  HearArrived("b", attempt());
  HearArrived(kAll, attempt());
  HearOutcome(5, attempt(), /*committed=*/true);
  Lose();
  Reopen();
  EXPECT_EQ(host_.Last(Kind::kJoin)->join().held().version(), 5u);
}

TEST_F(HoldCommitTest, AGroupThatHasGivenItUpIsNotWaitedFor) {
  Send();
  HearArrived("b", attempt());
  EXPECT_EQ(host_.Last(Notice::Kind::kArrived), nullptr);
  HearOutcome(5, attempt(), /*committed=*/false);
  EXPECT_NE(host_.Last(Notice::Kind::kArrived), nullptr);
  session_.Decide(5, absl::CancelledError("the engine will not pause"), now_);
  EXPECT_EQ(host_.Last(Kind::kDecide)->decide().error().message(), "the engine will not pause");
}

TEST_F(HoldCommitTest, ATrainerMayGiveItUpBeforeItHasArrived) {
  const absl::Status why = absl::FailedPreconditionError("the engine will not pause");
  Send();
  session_.Decide(4, why, now_);
  EXPECT_EQ(host_.Count(Kind::kDecide), 0);
  session_.Decide(5, why, now_);
  EXPECT_EQ(host_.Last(Kind::kDecide)->decide().error().message(), "the engine will not pause");
}

TEST_F(HoldCommitTest, ATrainerMayGiveItUpBeforeItIsSent) {
  session_.Decide(5, absl::OkStatus(), now_);
  EXPECT_EQ(host_.Last(Kind::kWithdraw), nullptr);
  session_.Decide(5, absl::FailedPreconditionError("the engine will not pause"), now_);
  EXPECT_EQ(host_.Last(Kind::kWithdraw)->withdraw().error().message(),
            "publish version 5: the engine will not pause");
}

TEST_F(HoldCommitTest, NobodyIsAskedIfAllGroupsHaveGivenItUp) {
  Send();
  HearArrived(kAll, attempt());  // Then a worker of it dies.
  HearOutcome(5, attempt(), /*committed=*/false);
  Hear([&](auto& m) {
    m.mutable_outcome()->set_version(5);
    m.mutable_outcome()->set_group("b");
    m.mutable_outcome()->set_attempt(attempt());
  });
  EXPECT_EQ(host_.Last(Notice::Kind::kArrived), nullptr);
  EXPECT_NE(host_.Last(Notice::Kind::kDecided), nullptr);
}

TEST_F(TrainerSessionTest, APublishThatWaitsIsAskedForWhenItMayProceed) {
  Establish();
  session_.Publish(5,
                   {.version = 5,
                    .deadline = now_ + absl::Seconds(3),
                    .waits_for = "GPU 0 has not reached its event"},
                   now_);
  EXPECT_EQ(host_.Count(Kind::kPublish), 0);
  session_.Proceed(5, absl::OkStatus(), now_);
  EXPECT_EQ(host_.Count(Kind::kPublish), 1);
  session_.Publish(6,
                   {.version = 6,
                    .deadline = now_ + absl::Seconds(3),
                    .waits_for = "GPU 0 has not reached its event"},
                   now_);
  Pass(absl::Seconds(3));
  EXPECT_EQ(Published(6)->status.message(),
            "publish version 6: not sent by its deadline; GPU 0 has not reached its event");
}

TEST_F(TrainerSessionTest, APublishEndsWhenWhatItWaitsForFails) {
  Establish();
  session_.Publish(5,
                   {.version = 5,
                    .deadline = now_ + absl::Seconds(3),
                    .waits_for = "GPU 0 has not reached its event"},
                   now_);
  session_.Proceed(5, absl::InternalError("wait for an event on GPU 0: error 719"), now_);
  EXPECT_EQ(host_.Count(Kind::kPublish), 0);
  EXPECT_EQ(Published(5)->status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(Published(5)->status.message(),
            "publish version 5: wait for an event on GPU 0: error 719");
}

TEST_F(TrainerSessionTest, UntilCommittedEndsWithTheLastGroup) {
  Establish();
  session_.Publish(5, {.version = 5, .deadline = now_ + absl::Seconds(3), .until_committed = true},
                   now_);
  Begin(5, 1);
  session_.OnSent(kAll, UpdateOf(5, 1), now_);
  EXPECT_EQ(Published(5), nullptr);
  HearOutcome(5, attempt(), /*committed=*/true);
  EXPECT_TRUE(Published(5)->status.ok());
}

TEST_F(TrainerSessionTest, ATrainerThatComesBackAsksWhatBecameOfWhatItSent) {
  SendAndComeBack();
  EXPECT_EQ(host_.Last(Kind::kJoin)->join().undecided_versions(0), 5u);
  EXPECT_TRUE(host_.Last(Kind::kJoin)->join().returning());
}

TEST_F(TrainerSessionTest, ATrainerThatComesBackSaysWhatItKnowsToHaveFailed) {
  Establish();
  const auto fail = [&](uint64_t version) {
    Publish(version);
    HearAccepted();
    HearOutcome(version, attempt(), /*committed=*/false);
  };
  const auto said = [&] {
    Lose();
    Reopen();
    const auto& versions = host_.Last(Kind::kJoin)->join().failed_versions();
    return std::vector<uint64_t>(versions.begin(), versions.end());
  };
  fail(5);
  EXPECT_EQ(said(), std::vector<uint64_t>{5});
  EstablishTerm(kAll, 11);
  for (uint64_t version = 6; version <= 9; ++version) fail(version);
  EXPECT_EQ(said(), (std::vector<uint64_t>{6, 7, 8, 9}));
  EstablishTerm(kAll, 12);
  Publish(8);
  HearAccepted();
  HearOutcome(8, attempt(), /*committed=*/true);
  EXPECT_EQ(said(), std::vector<uint64_t>{9});
}

// The controller answers again for a group that comes back.
TEST_F(TrainerSessionTest, AnAnswerIsToldOnce) {
  SendAndComeBack();
  HearOutcome(5, /*attempt=*/0, /*committed=*/false);
  ASSERT_NE(host_.Last(Notice::Kind::kOutcome), nullptr);
  host_.told.clear();
  HearOutcome(5, /*attempt=*/0, /*committed=*/true);
  EXPECT_EQ(host_.Last(Notice::Kind::kOutcome), nullptr);
}

TEST_F(TrainerSessionTest, ALostStreamIsOpenedAgainAtGrowingDistances) {
  Establish();
  absl::Duration before = absl::ZeroDuration();
  for (int i = 0; i < 6; ++i) {
    Lose();
    const absl::Duration distance = session_.next_deadline() - now_;
    EXPECT_GT(distance, before);
    EXPECT_LE(distance, absl::Seconds(2));
    before = i < 4 ? distance : absl::ZeroDuration();
    const int opened = host_.opened;
    Pass(distance);
    EXPECT_EQ(host_.opened, opened + 1);
    session_.OnStreamOpen(now_);
  }
  int told = 0;
  for (const Notice& notice : host_.told) told += notice.kind == Notice::Kind::kDisconnected;
  EXPECT_EQ(told, 1);
}

TEST_F(TrainerSessionTest, ADismissalEndsEverythingAndNothingIsTriedAgain) {
  Establish();
  Publish(5);
  Hear([](auto& m) {
    *m.mutable_dismissal()->mutable_error() = EncodeError(absl::AlreadyExistsError("another"));
  });
  EXPECT_EQ(Published(5)->status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(host_.Last(Notice::Kind::kEnded)->status.message(), "another");
  EXPECT_EQ(session_.next_deadline(), absl::InfiniteFuture());
}

TEST_F(TrainerSessionTest, AJoinEndsByItsDeadlineAndSaysWhyNobodyAnswered) {
  session_.Join(1, now_ + absl::Seconds(2), now_);
  session_.OnStreamOpen(now_);
  Lose();
  Pass(absl::Seconds(3));
  EXPECT_EQ(host_.Last(Notice::Kind::kJoined)->status.message(),
            "join job \"waybill\" as trainer 0: the wire is cut");
}

TEST_F(TrainerSessionTest, TheUserIsToldOfGroupsThatComeAndGo) {
  const auto count = [&](Notice::Kind kind, const std::string& group) {
    return std::count_if(host_.told.begin(), host_.told.end(), [&](const Notice& notice) {
      return notice.kind == kind && notice.group == group;
    });
  };
  const auto hear = [&](const std::string& group, bool here) {
    Hear([&](auto& m) {
      m.mutable_group_change()->set_group(group);
      m.mutable_group_change()->set_here(here);
    });
  };
  Establish();
  hear("b", true);
  EXPECT_EQ(count(Notice::Kind::kGroupJoined, "b"), 1);
  hear("b", false);
  EXPECT_EQ(count(Notice::Kind::kGroupLeft, "b"), 1);
  Hear([&](auto& m) {
    m.mutable_group_change()->set_group("b");
    *m.mutable_group_change()->mutable_lost() = EncodeError(absl::UnavailableError("gone"));
  });
  EXPECT_EQ(host_.Last(Notice::Kind::kWorkerLost)->status.message(), "gone");
  EXPECT_EQ(count(Notice::Kind::kWorkerLost, "b"), 1);
}

TEST_F(TrainerSessionTest, AProcessThatAskedForAnyRankKeepsTheOneThatItGot) {
  TrainerSession session({.id = {Role::kTrainer, 0}, .any_rank = true, .manifest = {}, .nics = {}},
                         &host_);
  session.Join(1, now_ + absl::Seconds(2), now_);
  session.OnStreamOpen(now_);
  EXPECT_TRUE(host_.Last(Kind::kJoin)->join().any_rank());
  proto::ControllerMessage message;
  message.mutable_assigned()->set_rank(3);
  session.OnMessage(message, now_);
  session.OnStreamEnd(absl::UnavailableError("the wire is cut"), now_);
  session.OnTime(now_ + absl::Seconds(1));
  session.OnStreamOpen(now_ + absl::Seconds(1));
  EXPECT_FALSE(host_.Last(Kind::kJoin)->join().any_rank());
  EXPECT_EQ(host_.Last(Kind::kJoin)->join().rank(), 3u);
}

// --- workers ---

class WorkerSessionTest : public SessionTest<WorkerSession, FakeWorkerHost> {
 protected:
  WorkerSession& session() override { return session_; }
  void HearAbort(uint32_t sequence) { HearAbortOf(sequence, 0); }
  void Vote(uint64_t version, uint32_t sequence) {
    HearPrepare(version, sequence);
    session_.OnReady(UpdateOf(version, sequence), {});
    session_.OnArrived(UpdateOf(version, sequence));
    ASSERT_EQ(host_.Last(Kind::kArrived)->arrived().round().sequence(), sequence);
  }
  void HearCommit(uint32_t sequence) {
    Hear([&](auto& m) { *m.mutable_commit()->mutable_round() = RoundOf(sequence); });
  }

  explicit WorkerSessionTest(std::set<Notice::Kind> asked = {}, bool fetches = false)
      : session_({.id = {Role::kWorker, 0, "all"}, .fetches = fetches, .manifest = {}, .nics = {}},
                 std::move(asked), &host_) {}

  WorkerSession session_;
};

class CommitAskedTest : public WorkerSessionTest {
 protected:
  CommitAskedTest() : WorkerSessionTest({Notice::Kind::kCommit}) {}
};

TEST_F(CommitAskedTest, WhatCannotBeUsedIsReportedAsFailedAndNotAsShown) {
  Establish();
  Vote(5, 1);
  HearCommit(1);
  session_.OnShown(UpdateOf(5, 1), absl::ZeroDuration(), /*unchanged=*/false, now_);
  session_.Answer(Notice::Kind::kCommit, UpdateOf(5, 1), absl::FailedPreconditionError("no room"));
  EXPECT_EQ(host_.Last(Kind::kFailed)->failed().error().message(), "no room");
  session_.Answer(Notice::Kind::kCommit, UpdateOf(5, 1), absl::OkStatus());
  EXPECT_EQ(host_.Count(Kind::kFailed), 1);
  EXPECT_EQ(host_.Count(Kind::kShown), 0);
  Lose();
  Reopen();
  EXPECT_EQ(host_.Last(Kind::kJoin)->join().unusable().version(), 5u);
  EXPECT_EQ(host_.Last(Kind::kJoin)->join().unusable().error().message(), "no room");
}

TEST_F(WorkerSessionTest, AVoteIsInDoubtUntilTheDecisionIsHeard) {
  Establish();
  Vote(5, 1);
  Lose();
  EXPECT_TRUE(session_.in_doubt());
  EXPECT_EQ(host_.engine, (std::vector<std::string>{"prepare"}));  // What arrived is kept.
  Reopen();
  const proto::Join join = host_.Last(Kind::kJoin)->join();
  EXPECT_EQ(join.doubt().round().sequence(), 1u);
  EXPECT_EQ(join.doubt().version(), 5u);
  HearCommit(1);
  EXPECT_EQ(host_.engine.back(), "commit");
  EXPECT_FALSE(session_.in_doubt());
}

TEST_F(WorkerSessionTest, TellsWhatTheShownVersionIsMadeOfNowAndWhenItComesBack) {
  Establish();
  EXPECT_TRUE(session_.exact());
  UpdateId update = UpdateOf(5, 1);
  update.composition = 77;
  Hear([&](auto& m) {
    *m.mutable_prepare()->mutable_round() = RoundOf(1);
    m.mutable_prepare()->set_version(5);
    m.mutable_prepare()->set_plan_hash(update.plan_hash);
    m.mutable_prepare()->set_composition(77);
    m.mutable_prepare()->set_deadline_ms(1000);
  });
  session_.OnReady(update, {});
  session_.OnArrived(update);
  HearCommit(1);
  EXPECT_TRUE(session_.exact());
  session_.OnShown(update, absl::ZeroDuration(), /*unchanged=*/false, now_);
  EXPECT_FALSE(session_.exact());
  EXPECT_EQ(host_.Last(Kind::kShown)->shown().composition(), 77u);
  Lose();
  Reopen();
  EXPECT_EQ(host_.Last(Kind::kJoin)->join().shown_composition(), 77u);
}

class FetchingSessionTest : public WorkerSessionTest {
 protected:
  FetchingSessionTest() : WorkerSessionTest({}, /*fetches=*/true) {}
  absl::Time Soon() const { return now_ + absl::Seconds(5); }
};

TEST_F(FetchingSessionTest, AFetchEndsWhenTheControllerSaysThatTheGroupShowsTheNewestVersion) {
  Establish();
  EXPECT_TRUE(host_.Last(Kind::kJoin)->join().fetches());
  session_.Fetch(/*token=*/7, /*at_least=*/5, Soon(), now_);
  EXPECT_EQ(host_.Last(Kind::kFetch)->fetch_at_least(), 5u);
  EXPECT_EQ(host_.Last(Kind::kFetch)->fetch(), 1u);
  Vote(5, 1);
  HearCommit(1);
  host_.shown = 5;
  session_.OnShown(UpdateOf(5, 1), absl::ZeroDuration(), /*unchanged=*/false, now_);
  EXPECT_EQ(host_.Last(Notice::Kind::kFetched), nullptr);
  Hear([](auto& m) { m.set_shows_newest(1); });
  EXPECT_EQ(host_.Last(Notice::Kind::kFetched)->token, 7u);
  EXPECT_EQ(host_.Last(Notice::Kind::kFetched)->version, 5u);
  session_.Fetch(8, 0, Soon(), now_);
  EXPECT_EQ(host_.Last(Kind::kFetch)->fetch(), 2u);
  Hear([](auto& m) { m.set_shows_newest(1); });  // The answer to the first, once more.
  EXPECT_EQ(host_.Last(Notice::Kind::kFetched)->token, 7u);
}

TEST_F(FetchingSessionTest, AFetchEndsWithWhatKeepsTheVersionFromBeingUsed) {
  Establish();
  session_.Fetch(7, 0, Soon(), now_);
  Vote(5, 1);
  HearCommit(1);
  session_.OnFailed(UpdateOf(5, 1), absl::InternalError("no room"), /*wrong_base=*/false, now_);
  EXPECT_EQ(host_.Last(Notice::Kind::kFetched)->status.message(), "fetch: no room");
  EXPECT_EQ(host_.Last(Kind::kFetch)->fetch(), 0u);
}

TEST_F(FetchingSessionTest, AFetchEndsAtItsDeadlineAndTheControllerHearsOfIt) {
  Establish();
  session_.Fetch(7, 0, Soon(), now_);
  EXPECT_EQ(session_.next_deadline(), Soon());
  now_ = Soon();
  session_.OnTime(now_);
  EXPECT_EQ(host_.Last(Notice::Kind::kFetched)->status.message(),
            "fetch: no version can be had yet, or other workers of the group have not asked");
  EXPECT_EQ(host_.Last(Kind::kFetch)->fetch(), 0u);
}

TEST_F(FetchingSessionTest, AFetchSurvivesTheControllerAndEndsWithTheMembership) {
  Establish();
  session_.Fetch(7, 0, Soon(), now_);
  Lose();
  Reopen();
  EXPECT_EQ(host_.Last(Kind::kJoin)->join().fetch(), 1u);
  session_.Leave(8, now_);
  EXPECT_EQ(host_.Last(Notice::Kind::kFetched)->status.code(), absl::StatusCode::kCancelled);
}

TEST_F(FetchingSessionTest, ASecondFetchTakesThePlaceOfTheOneThatWaits) {
  Establish();
  session_.Fetch(7, 0, Soon(), now_);
  session_.Fetch(8, 0, Soon(), now_);
  EXPECT_EQ(host_.Last(Notice::Kind::kFetched)->token, 7u);
  EXPECT_EQ(host_.Last(Notice::Kind::kFetched)->status.message(),
            "fetch: another one has taken its place");
  Hear([](auto& m) { m.set_shows_newest(1); });
  EXPECT_EQ(host_.Last(Notice::Kind::kFetched)->token, 7u);
  Hear([](auto& m) { m.set_shows_newest(2); });
  EXPECT_EQ(host_.Last(Notice::Kind::kFetched)->token, 8u);
}

TEST_F(WorkerSessionTest, AWorkerToWhichVersionsArePushedFetchesNone) {
  Establish();
  session_.Fetch(7, 0, now_ + absl::Seconds(5), now_);
  EXPECT_EQ(host_.Last(Notice::Kind::kFetched)->status.message(),
            "fetch: versions come to this worker as they are published");
}

TEST_F(WorkerSessionTest, AJoinSaysWhetherTheWorkerCatchesUp) {
  Establish();
  EXPECT_TRUE(host_.Last(Kind::kJoin)->join().catch_up());
}

TEST_F(WorkerSessionTest, WhatAnotherGroupSentIsToldAsCaughtUpAfterItsCommit) {
  Establish();
  Vote(5, 1);
  HearCommit(1);
  session_.OnShown(UpdateOf(5, 1), absl::ZeroDuration(), /*unchanged=*/false, now_);
  EXPECT_EQ(host_.Last(Notice::Kind::kCaughtUp), nullptr);
  EXPECT_FALSE(session_.catching_up());
  Hear([&](auto& m) {
    m.mutable_plan()->set_group(kAll);
    m.mutable_plan()->set_epoch(kEpoch);
    m.mutable_plan()->set_plan_hash(77);
    m.mutable_plan()->set_lender("b");
    m.mutable_plan()->set_routes(Deflate(EncodeRankPlan({}, {})));
    m.mutable_plan()->set_manifest_hash(Sha256(""));
  });
  EXPECT_TRUE(session_.catching_up());
  catch_up_ = true;
  Vote(6, 2);
  HearCommit(2);
  EstablishTerm(kAll, kEpoch + 1);  // The next term may begin before it is shown.
  EXPECT_FALSE(session_.catching_up());
  session_.OnShown(UpdateOf(6, 2), absl::ZeroDuration(), /*unchanged=*/false, now_);
  EXPECT_EQ(host_.told.back().kind, Notice::Kind::kCaughtUp);
  EXPECT_EQ(host_.told.back().version, 6u);
  EXPECT_EQ(host_.told[host_.told.size() - 2].kind, Notice::Kind::kCommit);
}

// A round of version 5 is continued in another.
class ContinueTest : public WorkerSessionTest {
 protected:
  void SetUp() override { Establish(); }
  void HearContinue(uint32_t from, uint32_t to) {
    Hear([&](auto& m) {
      *m.mutable_prepare()->mutable_round() = RoundOf(to);
      *m.mutable_prepare()->mutable_continues() = RoundOf(from);
      m.mutable_prepare()->set_version(5);
      m.mutable_prepare()->set_plan_hash(77);
      m.mutable_prepare()->set_deadline_ms(10'000);
    });
  }
};

TEST_F(ContinueTest, WhatHasArrivedIsKeptAndTheUserIsAskedOnce) {
  HearPrepare(5, 1);
  Hear([&](auto& m) {
    *m.mutable_sender_lost()->mutable_round() = RoundOf(1);
    m.mutable_sender_lost()->add_senders(3);
  });
  session_.OnLacking(UpdateOf(5, 1), {3});
  EXPECT_EQ(host_.Last(Kind::kLacking)->lacking().senders(0), 3u);
  HearContinue(1, 2);
  EXPECT_EQ(host_.engine, (std::vector<std::string>{"prepare", "lose trainer 3", "continue"}));
  session_.OnReady(UpdateOf(5, 2), {});
  EXPECT_EQ(host_.Last(Kind::kReady)->ready().round().sequence(), 2u);
  session_.OnArrived(UpdateOf(5, 2));
  EXPECT_EQ(host_.Last(Kind::kArrived)->arrived().round().sequence(), 2u);
  HearCommit(2);
  EXPECT_EQ(host_.engine.back(), "commit");
  int asked = 0;
  for (const Notice& notice : host_.told) asked += notice.kind == Notice::Kind::kPrepare ? 1 : 0;
  EXPECT_EQ(asked, 1);
}

TEST_F(ContinueTest, AVoteIsOneForTheRoundThatContinues) {
  Vote(5, 1);
  HearContinue(1, 2);
  EXPECT_EQ(host_.Last(Kind::kArrived)->arrived().round().sequence(), 2u);
  Lose();
  Reopen();
  EXPECT_EQ(host_.Last(Kind::kJoin)->join().doubt().round().sequence(), 2u);
}

TEST_F(ContinueTest, AWorkerThatHasNothingOfItRefuses) {
  HearContinue(1, 2);
  EXPECT_EQ(host_.Last(Kind::kRefused)->refused().round().sequence(), 2u);
  EXPECT_TRUE(host_.engine.empty());
}

// Another group's term, in which this worker sends.
class LenderTest : public WorkerSessionTest {
 protected:
  static constexpr uint64_t kLoan = 12;

  void SetUp() override {
    Establish();
    BeginLoan();
  }
  void BeginLoan() {
    Hear([&](auto& m) {
      m.mutable_plan()->set_group("b");
      m.mutable_plan()->set_epoch(kLoan);
      m.mutable_plan()->set_lender("all");
      m.mutable_plan()->set_lent_version(5);
      m.mutable_plan()->set_routes(Deflate(EncodeRankPlan({}, {})));
      m.mutable_plan()->set_manifest_hash(Sha256(""));
    });
    host_.engine.clear();
  }
  void HearStart() {
    Hear([&](auto& m) {
      m.mutable_start()->mutable_round()->set_epoch(kLoan);
      m.mutable_start()->mutable_round()->set_sequence(1);
      m.mutable_start()->set_version(5);
    });
  }
  using Commands = std::vector<std::string>;
};

TEST_F(LenderTest, AStartSendsWhatIsLentUntilTheTermIsOver) {
  HearStart();
  EXPECT_EQ(host_.engine, (Commands{"send to b"}));
  Hear([&](auto& m) { m.mutable_term_over()->set_group("b"); });
  EXPECT_EQ(host_.engine, (Commands{"send to b", "forget b"}));
  HearStart();
  EXPECT_EQ(host_.engine.size(), 2u);
}

TEST_F(LenderTest, ARenewedBufferIsToldToWhoeverLends) {
  Hear([&](auto& m) { m.mutable_renewed()->set_epoch(kLoan); });
  EXPECT_EQ(host_.engine, (Commands{"address of b"}));
}

TEST_F(LenderTest, WhatCannotBeLentFailsTheRound) {
  host_.send_status = absl::FailedPreconditionError("no lanes");
  HearStart();
  EXPECT_EQ(host_.Last(Kind::kFailed)->failed().round().epoch(), kLoan);
  EXPECT_EQ(host_.Last(Kind::kFailed)->failed().error().message(), "lend version 5: no lanes");
}

TEST_F(LenderTest, ALenderGoesOnWithItsOwnUpdates) {
  HearStart();
  Vote(6, 1);
  HearCommit(1);
  EXPECT_EQ(host_.engine, (Commands{"send to b", "prepare", "commit"}));
}

TEST_F(LenderTest, NothingIsLentByAWorkerThatLeavesOnceItHasShownWhatIsCommitted) {
  Vote(6, 1);
  HearCommit(1);
  session_.Leave(9, now_);
  HearStart();
  EXPECT_EQ(host_.engine, (Commands{"prepare", "commit", "forget b"}));
}

TEST_F(LenderTest, LoansEndWithTheStreamAndWhenTheWorkerLeaves) {
  Lose();
  EXPECT_EQ(host_.engine, (Commands{"forget b"}));
  Reopen();
  BeginLoan();
  session_.Leave(9, now_);
  EXPECT_EQ(host_.engine, (Commands{"forget b"}));
}

TEST_F(WorkerSessionTest, WhatWasNotVotedForIsGivenUpWithTheStream) {
  Establish();
  HearPrepare(5, 1);
  Lose();
  EXPECT_EQ(host_.engine.back(), "abort");
  EXPECT_EQ(host_.Last(Notice::Kind::kAbort)->status.message(), "the wire is cut");
  EXPECT_FALSE(session_.in_doubt());
}

TEST_F(WorkerSessionTest, NothingUndoesACommit) {
  Establish();
  Vote(5, 1);
  HearCommit(1);
  HearAbort(1);
  Lose();
  Reopen();
  EXPECT_EQ(host_.engine, (std::vector<std::string>{"prepare", "commit"}));
  EXPECT_EQ(host_.Last(Kind::kJoin)->join().committed_version(), 5u);
  EXPECT_FALSE(host_.Last(Kind::kJoin)->join().has_doubt());
}

TEST_F(WorkerSessionTest, ACommitOfAnotherRoundIsIgnored) {
  Establish();
  Vote(5, 2);
  HearCommit(1);
  EXPECT_EQ(host_.engine.back(), "prepare");
}

TEST_F(WorkerSessionTest, ALeavingWorkerShowsWhatIsCommittedFirst) {
  Establish();
  Vote(5, 1);
  HearCommit(1);
  session_.Leave(3, now_);
  EXPECT_EQ(host_.Last(Notice::Kind::kLeft), nullptr);
  session_.OnShown(UpdateOf(5, 1), absl::ZeroDuration(), /*unchanged=*/false, now_);
  Lose();
  EXPECT_NE(host_.Last(Notice::Kind::kLeft), nullptr);
  EXPECT_EQ(host_.Last(Kind::kShown)->shown().version(), 5u);
}

TEST_F(WorkerSessionTest, AReaderThatNeverEndsHoldsLeavingUpTenSecondsAtMost) {
  Establish();
  Vote(5, 1);
  HearCommit(1);
  session_.Leave(3, now_);
  Pass(absl::Seconds(10));
  Lose();
  EXPECT_NE(host_.Last(Notice::Kind::kLeft), nullptr);
}

TEST_F(WorkerSessionTest, AControllerWithAnotherTokenEndsAJoinAtOnce) {
  session_.Join(1, now_ + absl::Seconds(60), now_);
  session_.OnStreamEnd(absl::UnauthenticatedError("another token"), now_);
  EXPECT_EQ(host_.Last(Notice::Kind::kJoined)->status.code(), absl::StatusCode::kUnauthenticated);
}

TEST_F(WorkerSessionTest, EachAddressIsTriedBeforeAPauseThatStaysShort) {
  FakeWorkerHost host;
  WorkerSession session({.id = {Role::kWorker, 0, kAll}, .controllers = 3}, {}, &host);
  session.Join(1, now_ + absl::Seconds(60), now_);
  ASSERT_EQ(host.opened, 1);
  for (int round = 1; round <= 10; ++round) {
    for (int address = 1; address < 3; ++address) {
      session.OnStreamEnd(absl::UnavailableError("connection refused"), now_);
      EXPECT_EQ(session.next_deadline(), now_);
      session.OnTime(now_);
      EXPECT_EQ(host.opened, 3 * (round - 1) + 1 + address);
    }
    session.OnStreamEnd(absl::UnavailableError("connection refused"), now_);
    EXPECT_GT(session.next_deadline(), now_);
    EXPECT_LE(session.next_deadline(), now_ + absl::Milliseconds(400));
    now_ = session.next_deadline();
    session.OnTime(now_);
  }
}

TEST_F(WorkerSessionTest, WhoeverListensWhileTheControllerIsAwayEndsNoMember) {
  Establish();
  session_.OnStreamEnd(absl::UnavailableError("gone"), now_);
  Pass(absl::Seconds(3));
  session_.OnStreamEnd(absl::UnauthenticatedError("another token"), now_);
  EXPECT_EQ(host_.Last(Notice::Kind::kEnded), nullptr);
  const int opened = host_.opened;
  Pass(absl::Seconds(3));
  EXPECT_EQ(host_.opened, opened + 1);
}

// Else a process that ends when it is told so takes with it what has not left its machine.
TEST_F(WorkerSessionTest, ARankHasLeftOnceTheControllerHasEndedItsStream) {
  Establish();
  session_.Leave(3, now_);
  EXPECT_EQ(host_.Count(Kind::kLeave), 1);
  EXPECT_EQ(host_.closed, 0);
  EXPECT_EQ(host_.Last(Notice::Kind::kLeft), nullptr);
  Lose();
  EXPECT_EQ(host_.Last(Notice::Kind::kLeft)->token, 3u);
  EXPECT_EQ(host_.Last(Notice::Kind::kDisconnected), nullptr);
}

TEST_F(WorkerSessionTest, AControllerThatDoesNotAnswerHoldsLeavingUpForTheMarginOfAnAnswer) {
  Establish();
  session_.Leave(3, now_);
  Pass(kAnswerMargin);
  EXPECT_EQ(host_.Last(Notice::Kind::kLeft)->token, 3u);
  EXPECT_EQ(host_.closed, 1);
}

TEST_F(WorkerSessionTest, ARankThatHasLostTheControllerLeavesAtOnce) {
  Establish();
  Lose();
  session_.Leave(3, now_);
  EXPECT_EQ(host_.Last(Notice::Kind::kLeft)->token, 3u);
}

TEST_F(WorkerSessionTest, WhatARankHearsOnceItLeavesDoesNothing) {
  Establish();
  session_.Leave(3, now_);
  HearPrepare(5, 1);
  EXPECT_TRUE(host_.engine.empty());
}

TEST_F(WorkerSessionTest, AChallengeIsAnswered) {
  Establish();
  Hear([](auto& m) { m.mutable_challenge(); });
  EXPECT_EQ(host_.Count(Kind::kAlive), 1);
}

class AskedWorkerSessionTest : public WorkerSessionTest {
 protected:
  WorkerSession& session() override { return asked_; }
  WorkerSession asked_{{.id = {Role::kWorker, 0, "all"}, .manifest = {}, .nics = {}},
                       {Notice::Kind::kPrepare, Notice::Kind::kArrived, Notice::Kind::kCommit},
                       &host_};
};

TEST_F(AskedWorkerSessionTest, TheEngineWaitsForTheUser) {
  Establish();
  HearPrepare(5, 1);
  EXPECT_TRUE(host_.engine.empty());
  asked_.Answer(Notice::Kind::kPrepare, UpdateOf(5, 1), absl::OkStatus());
  EXPECT_EQ(host_.engine, (std::vector<std::string>{"prepare"}));
  asked_.OnArrived(UpdateOf(5, 1));
  EXPECT_EQ(host_.Count(Kind::kArrived), 1);
  EXPECT_TRUE(host_.Last(Kind::kArrived)->arrived().unvoted());
  asked_.Answer(Notice::Kind::kArrived, UpdateOf(5, 1), absl::AbortedError("bad loss"));
  EXPECT_EQ(host_.Last(Kind::kFailed)->failed().error().message(), "vetoed: bad loss");
}

class AskedContinueTest : public ContinueTest {
 protected:
  WorkerSession& session() override { return asked_; }
  WorkerSession asked_{{.id = {Role::kWorker, 0, "all"}, .manifest = {}, .nics = {}},
                       {Notice::Kind::kArrived},
                       &host_};
};

// Its user may take long to answer, and others lose lanes meanwhile.
TEST_F(AskedContinueTest, AnAnswerGivenInTheRoundThatContinuesIsAVoteInIt) {
  HearPrepare(5, 1);
  asked_.OnReady(UpdateOf(5, 1), {});
  asked_.OnArrived(UpdateOf(5, 1));
  HearContinue(1, 2);
  EXPECT_EQ(host_.Last(Kind::kReady)->ready().round().sequence(), 2u);
  EXPECT_EQ(host_.Last(Kind::kArrived)->arrived().round().sequence(), 2u);
  EXPECT_TRUE(host_.Last(Kind::kArrived)->arrived().unvoted());
  asked_.Answer(Notice::Kind::kArrived, UpdateOf(5, 1), absl::OkStatus());
  EXPECT_EQ(host_.Last(Kind::kArrived)->arrived().round().sequence(), 2u);
  EXPECT_FALSE(host_.Last(Kind::kArrived)->arrived().unvoted());
  HearCommit(2);
  EXPECT_EQ(host_.engine.back(), "commit");
}

TEST_F(AskedWorkerSessionTest, WhileUpdatesAreRefusedNobodyIsAsked) {
  Establish();
  HearPrepare(5, 1);
  EXPECT_EQ(host_.told.back().kind, Notice::Kind::kPrepare);
  EXPECT_EQ(host_.Last(Kind::kRefused), nullptr);
  asked_.RefuseUpdates(absl::FailedPreconditionError("paused"));
  EXPECT_EQ(host_.Last(Kind::kRefused)->refused().round().sequence(), 1u);
  host_.told.clear();
  HearPrepare(6, 2);
  EXPECT_EQ(host_.Last(Kind::kRefused)->refused().error().message(), "paused");
  EXPECT_EQ(host_.Last(Notice::Kind::kPrepare), nullptr);
  asked_.RefuseUpdates(absl::OkStatus());
  HearPrepare(7, 3);
  EXPECT_EQ(host_.told.back().version, 7u);
  EXPECT_EQ(host_.Count(Kind::kRefused), 2);
  EXPECT_EQ(host_.Count(Kind::kReady), 0);
}

TEST_F(AskedWorkerSessionTest, AnAnswerAboutAnUpdateThatWasGivenUpDoesNothing) {
  Establish();
  HearPrepare(5, 1);
  HearAbort(1);
  asked_.Answer(Notice::Kind::kPrepare, UpdateOf(5, 1), absl::OkStatus());
  EXPECT_EQ(host_.engine, (std::vector<std::string>{"abort"}));
  HearPrepare(6, 2);
  asked_.Answer(Notice::Kind::kPrepare, UpdateOf(5, 1), absl::OkStatus());
  EXPECT_EQ(host_.engine, (std::vector<std::string>{"abort"}));
}

TEST_F(AskedWorkerSessionTest, WhatIsShownIsSaidWhenTheUserHasAnsweredOrLeaves) {
  Establish();
  HearPrepare(5, 1);
  asked_.Answer(Notice::Kind::kPrepare, UpdateOf(5, 1), absl::OkStatus());
  asked_.OnArrived(UpdateOf(5, 1));
  asked_.Answer(Notice::Kind::kArrived, UpdateOf(5, 1), absl::OkStatus());
  HearCommit(1);
  asked_.OnShown(UpdateOf(5, 1), absl::ZeroDuration(), /*unchanged=*/false, now_);
  EXPECT_EQ(host_.Count(Kind::kShown), 0);
  asked_.Leave(3, now_);
  EXPECT_EQ(host_.Count(Kind::kShown), 1);
}

}  // namespace
}  // namespace waybill
