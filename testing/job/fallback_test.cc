// SPDX-License-Identifier: Apache-2.0

// What becomes of a job when a path, or a NIC, dies between ranks that live.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/steady_now.h"
#include "core/control/status_json.h"
#include "core/fabric/choice/choice_fabric.h"
#include "core/fabric/tcp/tcp_fabric.h"
#include "core/fabric/verbs/bounce_limits.h"
#include "core/fabric/verbs/verbs_fabric.h"
#include "testing/cluster/quantised_model.h"
#include "testing/fake_verbs/fake_network.h"
#include "testing/job/job.h"

namespace waybill {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::StartsWith;

class FallbackTest : public testing::Test {
 protected:
  // Each rank has a host of its own with so many NICs.
  void Start(int nics, const std::optional<fake_verbs::RegistrationFault>& fault = {},
             std::shared_ptr<const ClusterModel> model = nullptr) {
    const auto make_fabric = [=, this](const std::string& rank) {
      const std::lock_guard lock(mutex_);
      for (int i = 0; i < nics; ++i) {
        const std::string name = "mlx5_" + std::to_string(i);
        network_.Host(rank).AddDevice(name);
        if (fault) network_.Host(rank).FailRegistrations(name, *fault);
      }
      std::vector<ChoiceMember> members;
      members.push_back({.fabric = *MakeVerbsFabric({.library = &network_.Host(rank)})});
      members.push_back({.fabric = *MakeTcpFabric()});
      return *MakeChoiceFabric(std::move(members), "");
    };
    job_ = std::make_unique<Job>(JobOptions{.make_fabric = make_fabric, .model = std::move(model)});
    ASSERT_EQ(job_->StartController().message(), "");
    ASSERT_EQ(job_->JoinAll().message(), "");
  }

  std::vector<std::string> PathsOf(const std::vector<LaneReport>& lanes) {
    std::vector<std::string> paths;
    for (const LaneReport& lane : lanes) paths.push_back(lane.path);
    return paths;
  }

  void PublishAndCheck(uint64_t version) {
    for (const absl::Status& status : job_->PublishAll(version)) EXPECT_EQ(status.message(), "");
    for (uint32_t t = 0; t < 2; ++t) {
      const auto outcomes = job_->trainer(t)->AwaitOutcome(absl::Seconds(20));
      ASSERT_TRUE(outcomes.ok()) << outcomes.status();
      for (const GroupOutcome& outcome : *outcomes) EXPECT_EQ(outcome.status.message(), "");
    }
    for (uint32_t w = 0; w < 2; ++w) {
      EXPECT_EQ(job_->worker(w)->AwaitShown(version, absl::Seconds(20)).message(), "");
      EXPECT_TRUE(job_->Shows(w, version));
    }
  }

  void AwaitNewLanes(uint64_t epoch) {
    Await([&] { return job_->controller().status().groups(0).epoch() > epoch; });
  }

  // And that the job is whole.
  void Await(const std::function<bool()>& done) {
    const absl::Time deadline = SteadyNow() + absl::Seconds(30);
    while (!done() || job_->controller().status().phase() != "ready") {
      ASSERT_LT(SteadyNow(), deadline) << StatusToJson(job_->controller().status());
      std::this_thread::yield();
    }
  }

  std::mutex mutex_;
  fake_verbs::FakeNetwork network_;
  std::unique_ptr<Job> job_;
};

TEST_F(FallbackTest, WhereRdmaWorksItCarriesEveryLane) {
  Start(/*nics=*/2);
  PublishAndCheck(1);
  for (uint32_t t = 0; t < 2; ++t) {
    EXPECT_THAT(PathsOf(job_->trainer(t)->report().lanes),
                AllOf(testing::SizeIs(4), Each(StartsWith("verbs: mlx5_"))));
  }
  const proto::StatusReply status = job_->controller().status();
  for (const proto::RankStatus& rank : status.ranks()) {
    EXPECT_EQ(CounterOf(rank.report(), "fallbacks"), 0u);
    EXPECT_EQ(rank.nics_size(), 2);
    EXPECT_EQ(rank.lanes_size(), 4);
  }
}

// The path may be replaced before the update needs it, or the update fails: that is not the test's
// to choose.
TEST_F(FallbackTest, APathThatDiesLeavesTheUpdateWholeAndTheNextEpochUsesWhatStillWorks) {
  Start(/*nics=*/1);
  PublishAndCheck(1);
  const uint64_t epoch = job_->controller().status().groups(0).epoch();
  network_.Cut({"trainer 0", "mlx5_0"}, {"worker 1", "mlx5_0"});
  job_->Fill(2);
  bool failed = false;
  for (const absl::Status& status : job_->PublishAll(2)) failed = failed || !status.ok();
  const auto outcome = job_->trainer(0)->AwaitOutcome(absl::Seconds(20));
  failed = failed || !outcome.ok() || !outcome->at(0).status.ok();
  for (uint32_t w = 0; w < 2; ++w) {
    if (!failed) {
      EXPECT_EQ(job_->worker(w)->AwaitShown(2, absl::Seconds(20)).message(), "");
    }
    EXPECT_TRUE(job_->Shows(w, failed ? 1 : 2)) << w;
  }

  AwaitNewLanes(epoch);
  PublishAndCheck(3);
  // Between those two by tcp, between all others as before.
  std::vector<std::string> to_worker_1;
  for (const LaneReport& lane : job_->trainer(0)->report().lanes) {
    if (lane.peer == 1) to_worker_1.push_back(lane.path);
  }
  EXPECT_THAT(to_worker_1, Each(AllOf(StartsWith("tcp: "), HasSubstr("not verbs"))));
  EXPECT_THAT(PathsOf(job_->trainer(1)->report().lanes), Each(StartsWith("verbs: ")));
  const proto::StatusReply status = job_->controller().status();
  EXPECT_EQ(LanesLost(status.groups(0)), 1u);
  uint64_t fallbacks = 0;
  for (const proto::RankStatus& rank : status.ranks())
    fallbacks += CounterOf(rank.report(), "fallbacks");
  EXPECT_EQ(fallbacks, 2u);  // One at each end.
}

TEST_F(FallbackTest, ANicThatDiesIsPlannedAroundAndTakenInAgain) {
  Start(/*nics=*/2);
  PublishAndCheck(1);
  const auto on_trainer_0 = [&](const std::string& nic) {
    int lanes = 0;
    for (const std::string& path : PathsOf(job_->trainer(0)->report().lanes)) {
      lanes += path.starts_with("verbs: " + nic) ? 1 : 0;
    }
    return lanes;
  };
  network_.Host("trainer 0").SetPort("mlx5_1", 1, /*active=*/false);
  // Every NIC of the workers still has a lane; none is on the dead one.
  Await([&] { return on_trainer_0("mlx5_0") == 4; });
  PublishAndCheck(2);
  const proto::StatusReply status = job_->controller().status();
  for (const proto::RankStatus& rank : status.ranks()) {
    EXPECT_EQ(rank.nics_size(), rank.name() == "trainer 0" ? 1 : 2) << rank.name();
  }
  network_.Host("trainer 0").SetPort("mlx5_1", 1, /*active=*/true);
  Await([&] { return on_trainer_0("mlx5_0") == 2 && on_trainer_0("mlx5_1") == 2; });
  PublishAndCheck(3);
}

// Two trainers whose rows meet in a block.
std::shared_ptr<const ClusterModel> TradingModel() {
  return MakeQuantisedModel({.trainers = {{Box({0, 0}, {21, 40})}, {Box({21, 0}, {48, 40})}}});
}

TEST_F(FallbackTest, APathBetweenCoOwnersThatDiesFailsTheUpdateAndMaximaGoByWhatStillWorks) {
  Start(/*nics=*/1, {}, TradingModel());
  PublishAndCheck(1);
  const uint64_t epoch = job_->controller().status().groups(0).epoch();
  network_.Cut({"trainer 0", "mlx5_0"}, {"trainer 1", "mlx5_0"});
  for (const absl::Status& status : job_->PublishAll(2)) {
    EXPECT_THAT(std::string(status.message()), HasSubstr("between trainer"));
  }
  for (uint32_t w = 0; w < 2; ++w) EXPECT_TRUE(job_->Shows(w, 1)) << w;

  AwaitNewLanes(epoch);
  PublishAndCheck(3);
  PublishAndCheck(4);
  EXPECT_EQ(LanesLost(job_->controller().status().groups(0)), 1u);
  // What is between trainers and workers is as before.
  for (uint32_t t = 0; t < 2; ++t) {
    for (const LaneReport& lane : job_->trainer(t)->report().lanes) {
      EXPECT_THAT(lane.path, StartsWith(lane.co_owner ? "tcp: " : "verbs: "));
    }
  }
}

TEST_F(FallbackTest, WhicheverNicOfACoOwnerDiesBetweenUpdatesTheNextOneIsRight) {
  Start(/*nics=*/2, {}, TradingModel());
  PublishAndCheck(1);
  uint64_t version = 1;
  for (const char* nic : {"mlx5_0", "mlx5_1"}) {
    for (const bool active : {false, true}) {
      const uint64_t epoch = job_->controller().status().groups(0).epoch();
      network_.Host("trainer 0").SetPort(nic, 1, active);
      AwaitNewLanes(epoch);
      PublishAndCheck(++version);
    }
  }
}

// ENOMEM: the translation table, or the limit on locked memory, is full.
TEST_F(FallbackTest, MemoryThatCannotBeRegisteredIsReachedByCopiesAndStatusSaysWhy) {
  Start(/*nics=*/1, fake_verbs::RegistrationFault{
                        .error = ENOMEM, .spared_bytes = verbs::BounceLimits{}.ring_bytes()});
  PublishAndCheck(1);
  PublishAndCheck(2);
  const proto::StatusReply status = job_->controller().status();
  for (const proto::RankStatus& rank : status.ranks()) {
    EXPECT_EQ(CounterOf(rank.report(), "fallbacks"), 0u);
    for (const proto::LaneReport& lane : rank.lanes()) {
      EXPECT_THAT(lane.path(), AllOf(StartsWith("verbs: "), HasSubstr("with copies here: register"),
                                     HasSubstr("limit on locked memory")));
    }
  }
}

TEST_F(FallbackTest, WhereNotEvenRingsCanBeRegisteredTcpCarriesAllAndStatusSaysWhy) {
  Start(/*nics=*/1, fake_verbs::RegistrationFault{.error = ENOMEM});
  PublishAndCheck(1);
  const proto::StatusReply status = job_->controller().status();
  for (const proto::RankStatus& rank : status.ranks()) {
    for (const proto::LaneReport& lane : rank.lanes()) {
      EXPECT_THAT(lane.path(), AllOf(StartsWith("tcp: "), HasSubstr("register"),
                                     HasSubstr("limit on locked memory")));
    }
  }
}

}  // namespace
}  // namespace waybill
