// SPDX-License-Identifier: Apache-2.0

// Immediates of old sequences, twice, too early: what the engines make of them over real lanes.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "testing/cluster/cluster.h"
#include "testing/fault_drills/network.h"
#include "testing/faulty_fabric/faulty_fabric.h"

namespace waybill::drills {
namespace {

class GateDrill : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    cluster_ = std::make_unique<Cluster>(ClusterOptions{}, [](const std::string& name) {
      // "worker 0": trainers on the first node, workers on the second.
      return std::make_unique<FaultyFabric>(MakeFabric(GetParam(), name[0] == 'w' ? 1 : 0));
    });
    ASSERT_EQ(cluster_->Connect().message(), "");
    PublishAndCheck(1);
  }

  static uint32_t Data(uint32_t sequence) {
    return Immediate{Immediate::Kind::kData, sequence}.Pack();
  }
  FaultyFabric& worker(uint32_t w) {
    return static_cast<FaultyFabric&>(cluster_->worker_fabric(w));
  }
  void ExpectShown(uint64_t version) {
    for (uint32_t w = 0; w < 2; ++w) EXPECT_TRUE(cluster_->Shows(w, version)) << w;
  }
  void PublishAndCheck(uint64_t version) {
    cluster_->FillTrainers(version);
    EXPECT_EQ(cluster_->Publish(version).message(), "");
    ExpectShown(version);
  }

  std::unique_ptr<Cluster> cluster_;
};

TEST_P(GateDrill, WithoutTheLastImmediateOfOneLaneNothingNewIsShown) {
  cluster_->FillTrainers(2);
  ASSERT_EQ(cluster_->Prepare(2).message(), "");
  worker(0).DropImmediate("trainer 1", 1);
  EXPECT_EQ(cluster_->StartAndArrive().message(), "not everything arrives");
  EXPECT_EQ(worker(0).faults(), 1u);
  cluster_->Abort(/*begun=*/true);
  EXPECT_TRUE(cluster_->UntilStopped());
  ExpectShown(1);
  PublishAndCheck(3);
}

TEST_P(GateDrill, AnOldSequenceDoesNotCount) {
  PublishAndCheck(2);
  cluster_->FillTrainers(3);
  ASSERT_EQ(cluster_->Prepare(3).message(), "");
  worker(0).InjectImmediate("trainer 0", Data(1));
  worker(1).InjectImmediate("trainer 1", Data(1));
  EXPECT_EQ(cluster_->StartAndArrive().message(), "");
  EXPECT_EQ(cluster_->Commit().message(), "");
  ExpectShown(3);
  for (uint32_t w = 0; w < 2; ++w) EXPECT_EQ(cluster_->worker(w).counts().stragglers, 1u);
}

TEST_P(GateDrill, ASecondOneDoesNotCountForAnotherLane) {
  worker(0).DuplicateImmediate("trainer 0", 1);
  worker(1).DuplicateImmediate("trainer 1", 1);
  PublishAndCheck(2);
  for (uint32_t w = 0; w < 2; ++w) {
    cluster_->Step();
    EXPECT_EQ(worker(w).faults(), 1u);
    EXPECT_EQ(cluster_->worker(w).counts().repeats, 1u);
  }
  PublishAndCheck(3);
}

TEST_P(GateDrill, OneThatIsTooEarlyShowsNothingThatIsNotThere) {
  worker(0).InjectImmediate("trainer 0", Data(cluster_->update().sequence + 1));
  cluster_->Step();
  cluster_->FillTrainers(2);
  const absl::Status status = cluster_->Publish(2);
  if (status.ok()) {
    ExpectShown(2);
  } else {
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    ExpectShown(1);
  }
  PublishAndCheck(3);
}

INSTANTIATE_TEST_SUITE_P(All, GateDrill, testing::ValuesIn(NetworksHere()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace waybill::drills
