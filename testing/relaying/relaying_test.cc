// SPDX-License-Identifier: Apache-2.0

// What workers do with messages about relays, in orders that the network and the controller's peers
// can bring about.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "testing/relaying/relaying_job.h"

namespace waybill {
namespace {

using testing::HasSubstr;
using Heard = proto::ControllerMessage::KindCase;
using Said = proto::RankMessage::KindCase;

// The latest message of a kind that a rank has heard.
proto::ControllerMessage LastOf(const RelayingJob::Member& member, Heard kind) {
  for (auto message = member.heard.rbegin(); message != member.heard.rend(); ++message) {
    if (message->kind_case() == kind) return *message;
  }
  return {};
}

std::string WhyNotConnected(const RelayingJob::Member& member) {
  std::string why;
  for (const proto::RankMessage& message : member.said) {
    if (message.has_connect_failed()) why = message.connect_failed().error().message();
  }
  return why;
}

std::string WhyFailed(const RelayingJob::Member& member) {
  std::string why;
  for (const proto::RankMessage& message : member.said) {
    if (message.has_failed()) why = message.failed().error().message();
  }
  return why;
}

TEST(Relaying, EveryVersionIsShownToTheByte) {
  RelayingJob job;
  ASSERT_TRUE(job.Establish());
  for (uint64_t version = 1; version <= 4; ++version) {
    ASSERT_EQ(job.PublishAndAwait(version).ToString(), "OK");
    EXPECT_TRUE(job.AllShow(version));
  }
  EXPECT_EQ(job.worker(0).Heard(Heard::kStart), 4);
}

TEST(Relaying, ASecondPlanOfRelaysInATermIsRefusedAndTheNextTermRelays) {
  RelayingJob job;
  job.hold = [](const auto& member, const auto& message) {
    return member.id == RankId{Role::kWorker, 0, "all"} && message.has_connect();
  };
  const auto planned = [&] { return job.worker(0).Heard(Heard::kPlan) == 2; };
  ASSERT_TRUE(job.StepUntil(planned));
  const proto::ControllerMessage plan = LastOf(job.worker(0), Heard::kPlan);
  ASSERT_TRUE(plan.plan().relay());
  job.worker(0).Hear(plan, job.now());
  EXPECT_THAT(WhyNotConnected(job.worker(0)), HasSubstr("a second plan of relays in a term"));
  job.hold = nullptr;
  ASSERT_TRUE(job.Establish());
  ASSERT_EQ(job.PublishAndAwait(1).ToString(), "OK");
  EXPECT_TRUE(job.AllShow(1));
}

TEST(Relaying, APlanOfRelaysAfterReadyIsRefusedAndNothingIsShownInPart) {
  RelayingJob job;
  ASSERT_TRUE(job.Establish());
  proto::ControllerMessage plan = LastOf(job.worker(0), Heard::kPlan);
  ASSERT_TRUE(plan.plan().relay());
  ASSERT_EQ(job.PublishAndAwait(1).ToString(), "OK");
  job.hold = [](const auto&, const auto& message) { return message.has_start(); };
  job.Publish(2, absl::Milliseconds(500));
  ASSERT_TRUE(job.StepUntil([&] { return job.worker(0).Said(Said::kReady) == 2; }));
  job.worker(0).Hear(plan, job.now());
  EXPECT_THAT(WhyNotConnected(job.worker(0)), HasSubstr("a plan of relays after the term's lanes"));
  job.hold = nullptr;
  ASSERT_TRUE(job.StepUntil([&] { return !absl::IsUnknown(job.OutcomeOf(2)); }));
  EXPECT_FALSE(job.OutcomeOf(2).ok());
  EXPECT_TRUE(job.AllShow(1));
}

// Its worker would relay to itself, and not to the worker whose plan it is.
TEST(Relaying, ThePlanOfAnotherWorkersRelaysIsRefusedAndTheNextTermRelays) {
  RelayingJob job;
  proto::Plan others;
  bool changed = false;
  job.hold = [&](const auto& member, const auto& message) {  // Worker 1 hears its plan first.
    return member.id == RankId{Role::kWorker, 0, "all"} && message.plan().relay() &&
           !others.relay();
  };
  job.change = [&](const auto& member, auto& message) {
    if (!message.plan().relay()) return;
    if (member.id.rank == 1) others = message.plan();
    if (member.id.rank == 0 && !std::exchange(changed, true)) *message.mutable_plan() = others;
  };
  ASSERT_TRUE(job.Establish());
  EXPECT_THAT(WhyNotConnected(job.worker(0)), HasSubstr("the plan has no route to worker 1"));
  ASSERT_EQ(job.PublishAndAwait(1).ToString(), "OK");
  EXPECT_TRUE(job.AllShow(1));
}

class StopRelayingTest : public testing::Test {
 protected:
  // Worker 0 does not hear that what it relays of version 2 has landed, and worker 2 vetoes the
  // version.
  void StopAmidVersion2() {
    ASSERT_TRUE(job_.Establish());
    job_.Publish(1);
    ASSERT_TRUE(Until([&] { return job_.AllShow(1); }));
    for (const char* peer : {"worker 1", "worker 2"}) fabric().HoldPosts(peer);
    job_.Publish(2);
    // It sends ARRIVED twice for each version: before its user has answered, and as its vote.
    ASSERT_TRUE(Until([&] { return job_.worker(0).Said(Said::kArrived) == 4; }));
    deaf_ = true;
    for (const char* peer : {"worker 1", "worker 2"}) fabric().LetPostsGo(peer);
    ASSERT_TRUE(Until([&] { return job_.worker(0).Heard(Heard::kAbort) > 0; }));
  }
  // Users accept everything but version 2, of which worker 2's user does not.
  bool Until(const std::function<bool()>& done) {
    return job_.StepUntil([&] {
      for (uint32_t w = 0; w < RelayingJob::kWorkers; ++w) {
        RelayingJob::Member& member = job_.worker(w);
        for (; seen_[w] < member.notices.size(); ++seen_[w]) {
          const Notice notice = member.notices[seen_[w]];
          if (notice.kind != Notice::Kind::kArrived) continue;
          const bool vetoed = w == 2 && notice.version == 2;
          member.worker->Answer(
              notice.kind, notice.update,
              vetoed ? absl::FailedPreconditionError("the smoke test failed") : absl::OkStatus(),
              job_.now());
        }
      }
      const bool is_done = done();
      if (deaf_) job_.worker(0).fabric->SkipNextPoll();
      return is_done;
    });
  }
  FaultyFabric& fabric() { return *job_.worker(0).fabric; }
  bool UntilDecided(uint64_t version) {
    return Until([&] { return !absl::IsUnknown(job_.OutcomeOf(version)); });
  }

  RelayingJob job_{{.asked = {Notice::Kind::kArrived}}};
  size_t seen_[RelayingJob::kWorkers] = {};
  bool deaf_ = false;  // Worker 0 hears nothing from its lanes.
};

TEST_F(StopRelayingTest, TheNextUpdateBeginsOnceTheStoppedOneHasEnded) {
  StopAmidVersion2();
  job_.Publish(3);
  int steps = 0;
  Until([&] { return ++steps > 200; });
  EXPECT_EQ(job_.worker(0).Said(Said::kRelayStopped), 0);
  EXPECT_EQ(job_.worker(1).Heard(Heard::kPrepare), 2);
  deaf_ = false;
  ASSERT_TRUE(UntilDecided(3));
  EXPECT_EQ(job_.OutcomeOf(3).ToString(), "OK");
  EXPECT_TRUE(Until([&] { return job_.AllShow(3); }));
  EXPECT_EQ(WhyFailed(job_.worker(0)), "");
}

TEST_F(StopRelayingTest, APublishThatCannotWaitForItEndsByItsDeadline) {
  StopAmidVersion2();
  job_.Publish(3, absl::Milliseconds(10));
  ASSERT_TRUE(UntilDecided(3));
  EXPECT_EQ(job_.OutcomeOf(3).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(job_.worker(1).Heard(Heard::kPrepare), 2);
  deaf_ = false;
  job_.Publish(4);
  ASSERT_TRUE(UntilDecided(4));
  EXPECT_EQ(job_.OutcomeOf(4).ToString(), "OK");
  EXPECT_TRUE(Until([&] { return job_.AllShow(4); }));
}

// The buffer is to take another update by then, and an engine's memory may be away.
TEST_F(StopRelayingTest, AStartThatComesAfterTheAbortRelaysNothing) {
  StopAmidVersion2();
  const proto::ControllerMessage start = LastOf(job_.worker(0), Heard::kStart);
  deaf_ = false;
  for (int i = 0; i < 1000; ++i) job_.Step();
  job_.worker(0).Hear(start, job_.now());
  EXPECT_EQ(WhyFailed(job_.worker(0)), "relay version 2: it shows version 1");
}

}  // namespace
}  // namespace waybill
