// Updates of a whole job: what goes wrong, and what everybody is told.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "testing/job/job.h"

namespace waybill {
namespace {

using testing::TempDir;

TEST(Join, TheControllerNamesWhoNeverCame) {
  Job job({.join_timeout = absl::Milliseconds(300)});
  ASSERT_EQ(job.StartController().message(), "");
  const absl::Status status = job.JoinTrainer(0);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(testing::HasSubstr("is not whole after 300ms"),
                             testing::HasSubstr("trainer 1, every worker")));
}

TEST(Join, AWrongTokenIsTurnedAway) {
  Job job({});
  ASSERT_EQ(job.StartController().message(), "");
  RankIdentity identity = job.Identity(0, 2);
  identity.token = "guess";
  const absl::Status status = job.JoinAs(identity);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(status.message(),
            "join job \"test\" as worker 0: join: the token is not that of job \"test\"");
}

TEST(Join, WithoutAControllerTheErrorSaysWhere) {
  const absl::Status status =
      Job({}).JoinAs({.controller = "127.0.0.1:1", .join_timeout = absl::Milliseconds(200)});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("controller 127.0.0.1:1: nobody answered for"), std::string::npos)
      << status;
}

TEST(Join, ARankIsThereOnce) {
  Job job({});
  ASSERT_EQ(job.StartController().message(), "");
  ASSERT_EQ(job.JoinAll().message(), "");
  const absl::Status outsider = job.JoinAs(job.Identity(1, 2));
  EXPECT_EQ(outsider.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(outsider.message(),
            "join job \"test\" as worker 1: join: worker 1 of job \"test\" is here already");
}

TEST(Join, WorldsHaveToAgree) {
  Job job({});
  ASSERT_EQ(job.StartController().message(), "");
  ASSERT_EQ(job.JoinAll().message(), "");
  EXPECT_EQ(job.JoinAs(job.Identity(2, 3)).message(),
            "join job \"test\" as worker 2: join: worker 2 says there are 3 workers, the job has "
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
  EXPECT_EQ(status.message(), "publish version 7: version 7 is committed, and versions only grow");
}

TEST(Publish, ATrainerThatNeverPublishesIsNamedAtTheDeadline) {
  Job job({});
  ASSERT_EQ(job.StartController().message(), "");
  ASSERT_EQ(job.JoinAll().message(), "");
  // Its own part is sent; what becomes of the version is another matter.
  EXPECT_TRUE(job.trainer(0)->Publish(1, {.timeout = absl::Milliseconds(200)}).ok());
  const auto outcomes = job.trainer(0)->AwaitOutcome(absl::Seconds(20));
  ASSERT_TRUE(outcomes.ok()) << outcomes.status();
  EXPECT_FALSE((*outcomes)[0].committed);
  EXPECT_EQ((*outcomes)[0].status.message(),
            "version 1: the deadline is over, waiting for publish() by trainer 1; ARRIVED of "
            "worker 0, 1");
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
  EXPECT_EQ(job.controller().status().epoch(), 2u);
  for (const absl::Status& s : job.PublishAll(3)) EXPECT_EQ(s.message(), "");
  ASSERT_TRUE(job.trainer(0)->AwaitOutcome(absl::Seconds(20)).ok());
  for (uint32_t w = 0; w < 2; ++w) EXPECT_TRUE(job.Shows(w, 3)) << w;
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
            "controller: cannot listen on " + address + " (in use, or not an address)");
}

TEST(Controller, AWorkerInDoubtLearnsTheRecordedDecision) {
  const std::string log = TempDir() + "/doubt/decisions";
  Job job({.trainers = 1, .workers = 1, .decision_log = log});
  ASSERT_EQ(job.StartController().message(), "");
  const std::string address = job.controller().address();
  ASSERT_EQ(job.JoinAll().message(), "");
  job.PublishAll(1);
  ASSERT_TRUE(job.trainer(0)->AwaitOutcome(absl::Seconds(20)).ok());
  job.StopController();
  EXPECT_FALSE(job.worker(0)->AwaitEnd(absl::Seconds(20)).ok());
  EXPECT_TRUE(job.Shows(0, 1));  // Goes on with what it has.
  EXPECT_FALSE(job.worker(0)->in_doubt());

  // A new controller with the same log knows the version, and goes on from there.
  ASSERT_EQ(job.StartController(address).message(), "");
  EXPECT_EQ(job.controller().status().committed_version(), 1u);
  EXPECT_EQ(job.controller().status().epoch(), 1u);
}

}  // namespace
}  // namespace waybill
