// SPDX-License-Identifier: Apache-2.0

// Updates of a whole job: what goes wrong, and what everybody is told.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "core/base/unique_fd.h"
#include "core/control/ask_controller.h"
#include "testing/job/job.h"

namespace waybill {
namespace {

using testing::TempDir;

// The deadline of updates that are given up: their first trainer sends its part within it.
constexpr absl::Duration kTimeToSend = absl::Seconds(2);

TEST(Join, TheControllerNamesWhoNeverCame) {
  Job job({.join_timeout = absl::Milliseconds(300)});
  ASSERT_EQ(job.StartController().message(), "");
  const absl::Status status = job.JoinTrainer(0);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(testing::HasSubstr("no group is whole: waiting for"),
                             testing::HasSubstr("trainer 1, every worker")));
}

TEST(Join, AWrongTokenIsTurnedAway) {
  Job job({});
  ASSERT_EQ(job.StartController().message(), "");
  RankIdentity identity = job.Identity(0, 2);
  identity.token = "a guess of the secret";
  const absl::Status status = job.JoinAs(identity);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(status.message(), "join job \"test\" as worker 0: controller " + identity.controller +
                                  ": its token is another one; is this the job's controller, and "
                                  "is WAYBILL_TOKEN the same on both sides? Without it, each user "
                                  "has a token of their own");
}

TEST(Join, WithoutAControllerTheErrorSaysWhere) {
  const absl::Status status =
      Job({.join_timeout = absl::Milliseconds(200)}).JoinAs({.controller = "127.0.0.1:1"});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("controller 127.0.0.1:1: nobody answered"), std::string::npos)
      << status;
}

TEST(Join, ARankIsThereOnce) {
  Job job({});
  ASSERT_EQ(job.StartController().message(), "");
  ASSERT_EQ(job.JoinAll().message(), "");
  const absl::Status outsider = job.JoinAs(job.Identity(1, 2));
  EXPECT_EQ(outsider.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(outsider.message(),
            "join job \"test\" as worker 1: join: worker 1 of job \"test\" is here already: "
            "end that process, or take another rank");
}

TEST(Join, WorldsHaveToAgree) {
  Job job({});
  ASSERT_EQ(job.StartController().message(), "");
  ASSERT_EQ(job.JoinAll().message(), "");
  EXPECT_EQ(job.JoinAs(job.Identity(2, 3)).message(),
            "join job \"test\" as worker 2: join: worker 2 says there are 3 workers, the group has "
            "2");
}

TEST(Publish, AVersionThatDoesNotGrowIsRefused) {
  Job job({});
  ASSERT_EQ(job.StartController().message(), "");
  ASSERT_EQ(job.JoinAll().message(), "");
  job.PublishAll(7);
  ASSERT_TRUE(job.trainer(0)->AwaitOutcome(absl::Seconds(20)).ok());
  const absl::Status status = job.trainer(0)->Publish(7, {});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(std::string(status.message()),
            "publish version 7: version 7 was published; versions only grow");
}

TEST(Publish, ATrainerThatNeverPublishesIsNamedAtTheDeadline) {
  Job job({});
  ASSERT_EQ(job.StartController().message(), "");
  ASSERT_EQ(job.JoinAll().message(), "");
  // Its own part is sent; what becomes of the version is another matter.
  EXPECT_TRUE(job.trainer(0)->Publish(1, {.timeout = kTimeToSend}).ok());
  const auto outcomes = job.trainer(0)->AwaitOutcome(absl::Seconds(20));
  ASSERT_TRUE(outcomes.ok()) << outcomes.status();
  EXPECT_FALSE((*outcomes)[0].committed);
  EXPECT_EQ((*outcomes)[0].status.message(),
            "version 1: the deadline is over, waiting for publish() by trainer 1; ARRIVED of "
            "worker 0, 1 (its data, or its program's answer to ARRIVED)");
  // Nothing is shown, and the next update works.
  EXPECT_FALSE(job.worker(0)->TakeSnapshot("test").ok());
  for (const absl::Status& s : job.PublishAll(2)) EXPECT_EQ(s.message(), "");
  ASSERT_TRUE(job.trainer(0)->AwaitOutcome(absl::Seconds(20)).ok());
  EXPECT_TRUE(job.Shows(0, 2));
}

TEST(Publish, ALostTrainerFailsTheUpdateAndAReturningOneMendsTheJob) {
  Job job({});
  ASSERT_EQ(job.StartController().message(), "");
  ASSERT_EQ(job.JoinAll().message(), "");
  job.PublishAll(1);
  ASSERT_TRUE(job.trainer(0)->AwaitOutcome(absl::Seconds(20)).ok());
  job.trainer(1).reset();
  const absl::Status status = job.trainer(0)->Publish(2, {.timeout = absl::Seconds(20)});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  for (uint32_t w = 0; w < 2; ++w) EXPECT_TRUE(job.Shows(w, 1)) << w;

  ASSERT_EQ(job.JoinTrainer(1).message(), "");
  EXPECT_EQ(job.controller().status().groups(0).epoch(), 2u);
  for (const absl::Status& s : job.PublishAll(3)) EXPECT_EQ(s.message(), "");
  ASSERT_TRUE(job.trainer(0)->AwaitOutcome(absl::Seconds(20)).ok());
  for (uint32_t w = 0; w < 2; ++w) EXPECT_TRUE(job.Shows(w, 3)) << w;
}

TEST(Publish, WithoutAnyWorkerItSaysSoLongBeforeItsDeadline) {
  Job job({.absence_timeout = absl::Milliseconds(50)});
  ASSERT_EQ(job.StartController().message(), "");
  ASSERT_EQ(job.JoinAll().message(), "");
  job.PublishAll(1);
  ASSERT_TRUE(job.trainer(0)->AwaitOutcome(absl::Seconds(20)).ok());
  for (uint32_t w = 0; w < 2; ++w) job.worker(w).reset();
  for (const absl::Status& status : job.PublishAll(2)) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(status.message(), "publish version 2: it cannot begin without every worker");
  }
}

// Trainer 1 dies before it has published what trainer 0 has sent its half of.
TEST(Publish, WhatATrainerThatDiesWasToBringComesFromItsReplicaOnce) {
  Job job({.trainers = 2, .replicas = 2, .workers = 2});
  ASSERT_EQ(job.StartController().message(), "");
  ASSERT_EQ(job.JoinAll().message(), "");
  job.Fill(1);
  ASSERT_EQ(job.trainer(0)->Publish(1, {.hold = true}).message(), "");
  const uint64_t before = job.trainer(0)->report().total.bytes;
  const uint64_t planned = job.trainer(1)->report().planned_bytes;
  ASSERT_GT(planned, 0u);
  job.trainer(1).reset();
  const auto outcomes = job.trainer(0)->AwaitOutcome(absl::Seconds(20));
  ASSERT_TRUE(outcomes.ok()) << outcomes.status();
  EXPECT_TRUE((*outcomes)[0].committed) << (*outcomes)[0].status;
  for (uint32_t w = 0; w < 2; ++w) EXPECT_TRUE(job.Shows(w, 1)) << w;
  EXPECT_EQ(job.trainer(0)->report().total.bytes - before, planned);
  // Trainer 1 cannot reach the buffer any more into which the rest went.
  EXPECT_EQ(job.worker(0)->report().counts.renewals, 0u);
  EXPECT_EQ(job.worker(1)->report().counts.renewals, 1u);
}

TEST(Publish, ReplicasThatDifferAreNamedAndNothingIsShown) {
  Job job({.trainers = 2, .replicas = 2, .workers = 2});
  ASSERT_EQ(job.StartController().message(), "");
  ASSERT_EQ(job.JoinAll().message(), "");
  for (const absl::Status& s : job.PublishAll(1)) EXPECT_EQ(s.message(), "");
  ASSERT_TRUE(job.trainer(0)->AwaitOutcome(absl::Seconds(20)).ok());

  job.FillTrainer(0, 2);
  job.FillTrainer(1, 3);
  // The first trainer sends its part before the second one publishes.
  ASSERT_EQ(job.trainer(0)->Publish(2, {.timeout = absl::Seconds(20)}).message(), "");
  const std::string differ = "trainer 0 and 1 hold different bytes of tensor \"w\" [0, 64)";
  EXPECT_THAT(std::string(job.trainer(1)->Publish(2, {.timeout = absl::Seconds(20)}).message()),
              testing::HasSubstr(differ));
  const auto outcomes = job.trainer(0)->AwaitOutcome(absl::Seconds(20));
  ASSERT_TRUE(outcomes.ok()) << outcomes.status();
  EXPECT_FALSE((*outcomes)[0].committed);
  EXPECT_THAT(std::string((*outcomes)[0].status.message()), testing::HasSubstr(differ));
  for (uint32_t w = 0; w < 2; ++w) EXPECT_TRUE(job.Shows(w, 1)) << w;

  for (const absl::Status& s : job.PublishAll(3)) EXPECT_EQ(s.message(), "");
  ASSERT_TRUE(job.trainer(0)->AwaitOutcome(absl::Seconds(20)).ok());
  for (uint32_t w = 0; w < 2; ++w) EXPECT_TRUE(job.Shows(w, 3)) << w;
}

// The job goes on with the trainer that is left, and takes the other one in when it returns.
TEST(Publish, WithReplicasAJobGoesOnWithTheTrainersThatAreLeft) {
  Job job({.trainers = 2, .replicas = 2, .workers = 2, .absence_timeout = absl::Milliseconds(50)});
  ASSERT_EQ(job.StartController().message(), "");
  ASSERT_EQ(job.JoinAll().message(), "");
  job.trainer(1).reset();
  for (const absl::Status& s : job.PublishAll(1)) EXPECT_EQ(s.message(), "");
  ASSERT_TRUE(job.trainer(0)->AwaitOutcome(absl::Seconds(20)).ok());
  for (uint32_t w = 0; w < 2; ++w) EXPECT_TRUE(job.Shows(w, 1)) << w;
  ASSERT_EQ(job.JoinTrainer(1).message(), "");
  for (const absl::Status& s : job.PublishAll(2)) EXPECT_EQ(s.message(), "");
  ASSERT_TRUE(job.trainer(0)->AwaitOutcome(absl::Seconds(20)).ok());
  for (uint32_t w = 0; w < 2; ++w) EXPECT_TRUE(job.Shows(w, 2)) << w;
  EXPECT_GT(job.trainer(1)->report().total.bytes, 0u);
}

TEST(Controller, BeyondLoopbackItWantsAToken) {
  Job job({.token = ""});
  EXPECT_EQ(job.StartController("0.0.0.0:0").message(),
            "controller: listening on 0.0.0.0:0 lets others in; give a token, or listen on "
            "127.0.0.1");
}

TEST(Controller, APortIsListenedOnOnce) {
  Job job({});
  ASSERT_EQ(job.StartController().message(), "");
  const std::string address = job.controller().address();
  EXPECT_EQ(Job({}).StartController(address).message(),
            "controller: listen on " + address + ": Address already in use (errno 98)");
}

// gRPC's own listener would close for good.
TEST(Controller, LetsRanksInAgainAfterItHadNoDescriptorLeft) {
  Job job({});
  ASSERT_EQ(job.StartController().message(), "");
  const std::string address = job.controller().address();
  const UniqueFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{.sin_family = AF_INET};
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  uint32_t port = 0;
  ASSERT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
  to.sin_port = htons(static_cast<uint16_t>(port));
  const UniqueFd lowest_free(dup(client.get()));
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none{static_cast<rlim_t>(lowest_free.get()), before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none);
  const int connected = connect(client.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to));
  pollfd answer{client.get(), POLLIN, 0};
  EXPECT_EQ(poll(&answer, 1, /*timeout=*/300), 0);  // It was not let in.
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(connected, 0);
  EXPECT_EQ(FetchStatus(address, "a secret of the job", absl::Seconds(20)).status().message(), "");
}

TEST(Controller, InsideAnotherProgramItsStateIsAFile) {
  const absl::Status status = Job({.state = "etcd://127.0.0.1:2379"}).StartController();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message().substr(0, 56),
            "controller: state etcd://127.0.0.1:2379 is not a file; a");
}

// Publishes until it succeeds, as a training loop would; returns how many attempts that took.
int PublishUntilCommitted(Job& job, uint64_t& version, int most_attempts) {
  for (int attempt = 1; attempt <= most_attempts; ++attempt) {
    bool all = true;
    for (const absl::Status& status : job.PublishAll(++version)) all = all && status.ok();
    if (!all) continue;
    const auto outcomes = job.trainer(0)->AwaitOutcome(absl::Seconds(20));
    if (!outcomes.ok()) continue;
    for (const GroupOutcome& outcome : *outcomes) all = all && outcome.status.ok();
    if (all) return attempt;
  }
  return 0;
}

TEST(Controller, RanksComeBackByThemselvesToOneThatReplacesIt) {
  Job job({.state = TempDir() + "/replaced/decisions"});
  ASSERT_EQ(job.StartController().message(), "");
  const std::string address = job.controller().address();
  ASSERT_EQ(job.JoinAll().message(), "");
  uint64_t version = 0;
  ASSERT_EQ(PublishUntilCommitted(job, version, 1), 1);
  for (int restart = 0; restart < 3; ++restart) {
    job.StopController();
    for (uint32_t w = 0; w < 2; ++w) EXPECT_TRUE(job.Shows(w, version)) << w;
    ASSERT_EQ(job.StartController(address).message(), "");
    EXPECT_EQ(job.controller().status().committed_version(), version);
    // Nobody joins again by hand.
    ASSERT_EQ(PublishUntilCommitted(job, version, 1), 1) << restart;
    for (uint32_t w = 0; w < 2; ++w) EXPECT_TRUE(job.Shows(w, version)) << w;
  }
}

// A worker renews its buffer after an update that was aborted; the trainer that took no part in
// that update has to learn the new address all the same.
TEST(Publish, ATrainerThatMissedARenewalWritesToTheNewBuffer) {
  Job job({});
  ASSERT_EQ(job.StartController().message(), "");
  ASSERT_EQ(job.JoinAll().message(), "");
  uint64_t version = 0;
  ASSERT_EQ(PublishUntilCommitted(job, version, 1), 1);
  for (int round = 0; round < 3; ++round) {
    // Only one of them publishes: READY comes, and the update is given up at the deadline.
    job.Fill(++version);
    const uint32_t publisher = static_cast<uint32_t>(round % 2);
    EXPECT_TRUE(job.trainer(publisher)->Publish(version, {.timeout = kTimeToSend}).ok());
    const auto outcomes = job.trainer(publisher)->AwaitOutcome(absl::Seconds(20));
    ASSERT_TRUE(outcomes.ok()) << outcomes.status();
    EXPECT_FALSE((*outcomes)[0].committed);
  }
  ASSERT_EQ(PublishUntilCommitted(job, version, 1), 1);
  for (uint32_t w = 0; w < 2; ++w) EXPECT_TRUE(job.Shows(w, version)) << w;

  // The offers of a new epoch name the renewed buffers, and READY need not.
  job.trainer(1).reset();
  ASSERT_EQ(job.JoinTrainer(1).message(), "");
  for (int update = 0; update < 3; ++update) {  // Into each of the buffers.
    ASSERT_EQ(PublishUntilCommitted(job, version, 1), 1) << update;
    for (uint32_t w = 0; w < 2; ++w) EXPECT_TRUE(job.Shows(w, version)) << w;
  }
}

}  // namespace
}  // namespace waybill
