// SPDX-License-Identifier: Apache-2.0

// Groups that come and go while a job goes on.

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "core/control/ask_controller.h"
#include "core/control/status_json.h"
#include "core/fabric/choice/make_fabric.h"
#include "core/fabric/local/local_fabric.h"
#include "testing/cluster/quantised_model.h"
#include "testing/faulty_fabric/faulty_fabric.h"
#include "testing/job/job.h"

namespace waybill {
namespace {

// How many lanes each rank has ever had, by "group rank".
std::map<std::string, uint64_t> LanesOf(const proto::StatusReply& status) {
  std::map<std::string, uint64_t> lanes;
  for (const proto::RankStatus& rank : status.ranks()) {
    lanes[rank.group() + " " + rank.name()] = CounterOf(rank.report(), "local.lanes");
  }
  return lanes;
}

std::unique_ptr<Fabric> MakeAnyFabric(const std::string& /*name*/) {
  return *MakeFabric({.host = "127.0.0.1"});
}

void PublishToAll(Job& job, uint64_t version) {
  for (const absl::Status& status : job.PublishAll(version)) EXPECT_EQ(status.message(), "");
  ASSERT_TRUE(job.trainer(0)->AwaitOutcome(absl::Seconds(20)).ok());
}

void ExpectShown(Job& job, uint32_t w, uint64_t version) {
  EXPECT_EQ(job.worker(w)->AwaitShown(version, absl::Seconds(20)).message(), "");
  EXPECT_TRUE(job.Shows(w, version)) << w;
}

// Starts a job of two trainers and worker 0.
void StartWithWorker0(Job& job) {
  ASSERT_EQ(job.StartController().message(), "");
  std::thread other([&] { ASSERT_EQ(job.JoinTrainer(1).message(), ""); });
  std::thread worker([&] { ASSERT_EQ(job.JoinWorker(0).message(), ""); });
  ASSERT_EQ(job.JoinTrainer(0).message(), "");
  other.join();
  worker.join();
}

TEST(Groups, AGroupThatJoinsOpensItsOwnLanesAndNoOthers) {
  Job job({.make_fabric = MakeAnyFabric, .trainers = 2, .workers = 3, .groups = {"a", "b", "b"}});
  StartWithWorker0(job);
  PublishToAll(job, 1);
  const auto before = LanesOf(job.controller().status());
  ASSERT_EQ(before.at("a worker 0"), 2u);
  const uint64_t epoch = job.controller().status().groups(0).epoch();

  std::thread first([&] { ASSERT_EQ(job.JoinWorker(1).message(), ""); });
  ASSERT_EQ(job.JoinWorker(2).message(), "");
  first.join();
  for (uint32_t w = 1; w < 3; ++w) ExpectShown(job, w, 1);
  PublishToAll(job, 2);
  for (uint32_t w = 0; w < 3; ++w) EXPECT_TRUE(job.Shows(w, 2)) << w;
  const auto after = LanesOf(job.controller().status());
  EXPECT_EQ(job.controller().status().groups(0).epoch(), epoch);
  EXPECT_EQ(after.at("a worker 0"), before.at("a worker 0") + 2);  // By which it lent version 1.
  for (const std::string trainer : {" trainer 0", " trainer 1"}) {
    EXPECT_EQ(after.at(trainer), before.at(trainer) + 2) << trainer;
  }
}

TEST(Groups, ATrainerThatComesBackOpensItsOwnLanesAndNoOthers) {
  Job job({.make_fabric = MakeAnyFabric, .trainers = 2, .workers = 3, .groups = {"a", "b", "b"}});
  ASSERT_EQ(job.StartController().message(), "");
  ASSERT_EQ(job.JoinAll().message(), "");
  PublishToAll(job, 1);
  const auto before = LanesOf(job.controller().status());
  job.trainer(1).reset();
  ASSERT_EQ(job.JoinTrainer(1).message(), "");
  PublishToAll(job, 2);
  for (uint32_t w = 0; w < 3; ++w) EXPECT_TRUE(job.Shows(w, 2)) << w;
  auto expected = before;
  for (const std::string worker : {"a worker 0", "b worker 0", "b worker 1"}) ++expected.at(worker);
  EXPECT_EQ(LanesOf(job.controller().status()), expected);
}

TEST(Groups, AWorkerThatComesBackOpensItsOwnLanesAndNoOthers) {
  Job job({.make_fabric = MakeAnyFabric, .trainers = 2, .workers = 2, .groups = {"b", "b"}});
  ASSERT_EQ(job.StartController().message(), "");
  ASSERT_EQ(job.JoinAll().message(), "");
  PublishToAll(job, 1);
  const auto before = LanesOf(job.controller().status());
  job.worker(1).reset();
  ASSERT_EQ(job.JoinWorker(1).message(), "");
  PublishToAll(job, 2);
  for (uint32_t w = 0; w < 2; ++w) EXPECT_TRUE(job.Shows(w, 2)) << w;
  auto expected = before;
  for (const std::string trainer : {" trainer 0", " trainer 1"}) ++expected.at(trainer);
  EXPECT_EQ(LanesOf(job.controller().status()), expected);
}

// Trainer 1 dies before it has sent what trainer 0 holds too. For the rest of the version trainer 0
// needs lanes to the workers that trainer 1 has sent to.
TEST(Groups, LanesThatTheRestOfAVersionDoesNotNeedGoOnAfterIt) {
  Job job({.make_fabric = MakeAnyFabric, .trainers = 2, .replicas = 2, .workers = 2});
  ASSERT_EQ(job.StartController().message(), "");
  ASSERT_EQ(job.JoinAll().message(), "");
  PublishToAll(job, 1);
  const auto before = LanesOf(job.controller().status());
  job.Fill(2);
  ASSERT_EQ(job.trainer(0)->Publish(2, {.hold = true}).message(), "");
  job.trainer(1).reset();
  ASSERT_TRUE(job.trainer(0)->AwaitOutcome(absl::Seconds(20)).ok());
  ASSERT_EQ(job.trainer(0)->Release().message(), "");
  ASSERT_EQ(job.JoinTrainer(1).message(), "");
  PublishToAll(job, 3);
  for (uint32_t w = 0; w < 2; ++w) EXPECT_TRUE(job.Shows(w, 3)) << w;
  auto expected = before;
  ++expected.at(" trainer 0");       // To worker 1.
  expected.at("all worker 1") += 2;  // From trainer 0, and from the one that came back.
  EXPECT_EQ(LanesOf(job.controller().status()), expected);
}

TEST(Groups, AGroupThatDiesFailsNoPublishAndIsThereAgainWhenItComesBack) {
  Job job({.trainers = 2, .workers = 2, .groups = {"a", "b"}});
  ASSERT_EQ(job.StartController().message(), "");
  ASSERT_EQ(job.JoinAll().message(), "");
  PublishToAll(job, 1);
  job.worker(1).reset();
  PublishToAll(job, 2);
  EXPECT_TRUE(job.Shows(0, 2));
  ASSERT_EQ(job.JoinWorker(1).message(), "");
  ExpectShown(job, 1, 2);
  PublishToAll(job, 3);
  for (uint32_t w = 0; w < 2; ++w) EXPECT_TRUE(job.Shows(w, 3)) << w;
}

TEST(Groups, AVersionThatWaitsForItsWordIsShownByAllGroupsOrByNone) {
  Job job({.trainers = 2, .workers = 2, .groups = {"a", "b"}});
  ASSERT_EQ(job.StartController().message(), "");
  ASSERT_EQ(job.JoinAll().message(), "");
  PublishToAll(job, 1);
  for (const absl::Status& status : job.PublishAll(2, {.hold_commit = true})) {
    EXPECT_EQ(status.message(), "");
  }
  for (uint32_t t = 0; t < 2; ++t) {
    EXPECT_EQ(job.trainer(t)->AwaitArrived(absl::Seconds(20)).message(), "");
  }
  for (uint32_t w = 0; w < 2; ++w) EXPECT_TRUE(job.Shows(w, 1)) << w;
  job.trainer(1)->Decide(absl::OkStatus());
  for (uint32_t w = 0; w < 2; ++w) ExpectShown(job, w, 2);
  for (const absl::Status& status : job.PublishAll(3, {.hold_commit = true})) {
    EXPECT_EQ(status.message(), "");
  }
  EXPECT_EQ(job.trainer(0)->AwaitArrived(absl::Seconds(20)).message(), "");
  job.trainer(0)->Decide(absl::CancelledError("the engine will not pause"));
  const auto outcomes = job.trainer(1)->AwaitOutcome(absl::Seconds(20));
  ASSERT_TRUE(outcomes.ok()) << outcomes.status();
  for (const GroupOutcome& outcome : *outcomes) {
    EXPECT_EQ(outcome.status.message(), "trainer 0: the engine will not pause") << outcome.group;
  }
  for (uint32_t w = 0; w < 2; ++w) EXPECT_TRUE(job.Shows(w, 2)) << w;
  PublishToAll(job, 4);
}

TEST(Groups, WhatAGroupThatIsNotWholeMissesIsToldByName) {
  Job job({.trainers = 1, .workers = 3, .groups = {"a", "b", "b"}});
  ASSERT_EQ(job.StartController().message(), "");
  ASSERT_EQ(job.JoinAll().message(), "");
  job.worker(2).reset();
  for (const absl::Status& status : job.PublishAll(1)) EXPECT_EQ(status.message(), "");
  const auto outcomes = job.trainer(0)->AwaitOutcome(absl::Seconds(20));
  ASSERT_TRUE(outcomes.ok()) << outcomes.status();
  ASSERT_EQ(outcomes->size(), 2u);
  EXPECT_TRUE((*outcomes)[0].committed);
  EXPECT_EQ((*outcomes)[1].group, "b");
  EXPECT_EQ((*outcomes)[1].status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ((*outcomes)[1].status.message(),
            "group b is not whole: waiting for worker 1 of group \"b\"");
}

TEST(Groups, AGroupThatIsRemovedIsToldSoAndOthersGoOn) {
  Job job({.trainers = 1, .workers = 2, .groups = {"a", "b"}});
  ASSERT_EQ(job.StartController().message(), "");
  ASSERT_EQ(job.JoinAll().message(), "");
  const std::string address = job.controller().address();
  EXPECT_EQ(*RemoveGroup(address, "a secret of the job", "b", absl::Seconds(20)), 1u);
  EXPECT_EQ(job.worker(1)->AwaitShown(1, absl::Seconds(20)).message(), "group b was removed");
  EXPECT_EQ(RemoveGroup(address, "a secret of the job", "b", absl::Seconds(20)).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(RemoveGroup(address, "guess", "a", absl::Seconds(20)).status().code(),
            absl::StatusCode::kUnauthenticated);
  PublishToAll(job, 1);
  EXPECT_TRUE(job.Shows(0, 1));
}

TEST(Groups, AGroupThatComesBackAloneGetsWhatTheTrainersHold) {
  Job job({.trainers = 2, .workers = 1});
  StartWithWorker0(job);
  for (const absl::Status& status : job.PublishAll(1, {.hold = true})) {
    EXPECT_EQ(status.message(), "");
  }
  ASSERT_TRUE(job.trainer(0)->AwaitOutcome(absl::Seconds(20)).ok());
  job.worker(0).reset();
  ASSERT_EQ(job.JoinWorker(0).message(), "");
  ExpectShown(job, 0, 1);
  EXPECT_EQ(job.trainer(0)->Publish(2, {}).message(),
            "publish version 2: version 1 is held; release it first");
  for (uint32_t t = 0; t < 2; ++t) EXPECT_EQ(job.trainer(t)->Release().message(), "");
  PublishToAll(job, 2);
  EXPECT_TRUE(job.Shows(0, 2));
}

// Two groups, of which the second joins late; its workers have the other half of the columns.
class CatchUp : public testing::TestWithParam<Mode> {
 protected:
  static JobOptions Options() {
    return {.trainers = 2, .workers = 3, .groups = {"a", "b", "b"}, .mode = GetParam()};
  }
  void SetUp() override {
    StartWithWorker0(job_);
    PublishToAll(job_, 1);
    job_.Fill(2);  // The trainers do not hold version 1 any more.
  }
  void JoinB() {
    std::thread first([&] { ASSERT_EQ(job_.JoinWorker(1).message(), ""); });
    ASSERT_EQ(job_.JoinWorker(2).message(), "");
    first.join();
  }

  Job job_{Options()};
};

TEST_P(CatchUp, AGroupThatJoinsShowsWhatItHasMissed) {
  JoinB();
  for (uint32_t w = 0; w < 3; ++w) ExpectShown(job_, w, 1);
  PublishToAll(job_, 2);
  for (uint32_t w = 0; w < 3; ++w) EXPECT_TRUE(job_.Shows(w, 2)) << w;
}

TEST_P(CatchUp, AWorkerThatComesBackCatchesUpAndTheOthersOfItsGroupKeepWhatTheyShow) {
  JoinB();
  PublishToAll(job_, 2);
  job_.Fill(3);
  job_.worker(2).reset();
  ASSERT_EQ(job_.JoinWorker(2).message(), "");
  for (uint32_t w = 0; w < 3; ++w) ExpectShown(job_, w, 2);
}

INSTANTIATE_TEST_SUITE_P(Modes, CatchUp, testing::Values(Mode::kShadow, Mode::kShadowCopy),
                         [](const auto& mode) {
                           return mode.param == Mode::kShadow ? "Shadow" : "ShadowCopy";
                         });

// A snapshot that outlives its loan keeps the buffer of the next version but one.
TEST(CatchUpFault, ALenderThatGetsNoMemoryForTheLoanTakesLaterVersions) {
  const auto make_fabric = [](const std::string& rank) -> std::unique_ptr<Fabric> {
    auto fabric = std::make_unique<FaultyFabric>(*MakeLocalFabric());
    if (rank == "worker 0") {
      for (uint64_t nth = 1; nth <= 10; ++nth) {
        fabric->FailCall(FabricCall::kAllocate, "ledgers to be sent", nth,
                         absl::ResourceExhaustedError("no memory"));
      }
    }
    return fabric;
  };
  Job job({.make_fabric = make_fabric, .trainers = 2, .workers = 2, .groups = {"a", "b"}});
  StartWithWorker0(job);
  PublishToAll(job, 1);
  job.Fill(2);  // The trainers do not hold version 1 any more.
  ASSERT_EQ(job.JoinWorker(1).message(), "");
  for (const uint64_t version : {2, 3, 4}) PublishToAll(job, version);
  EXPECT_TRUE(job.Shows(0, 4));
}

TEST(CatchUpQuantised, WhatIsServedQuantisedIsLentAsItLies) {
  Job job({.trainers = 2,
           .workers = 2,
           .groups = {"a", "b"},
           .model = MakeQuantisedModel(
               {.trainers = {{Box({0, 0}, {20, 40})}, {Box({20, 0}, {48, 40})}}, .workers = 1})});
  ASSERT_EQ(job.StartController().message(), "");
  ASSERT_EQ(job.JoinAll().message(), "");
  PublishToAll(job, 1);
  job.Fill(2);
  job.worker(1).reset();
  ASSERT_EQ(job.JoinWorker(1).message(), "");
  for (uint32_t w = 0; w < 2; ++w) ExpectShown(job, w, 1);
  PublishToAll(job, 2);
  for (uint32_t w = 0; w < 2; ++w) EXPECT_TRUE(job.Shows(w, 2)) << w;
}

}  // namespace
}  // namespace waybill
