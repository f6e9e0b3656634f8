// SPDX-License-Identifier: Apache-2.0

// Updates during which a GPU is lost. The driver, the GPUs and the NICs are fakes.

#include <gtest/gtest.h>

#include <memory>
#include <tuple>

#include "absl/strings/match.h"
#include "testing/cluster/direct_test.h"

namespace waybill {
namespace {

class LostGpuTest : public DirectTest,
                    public testing::WithParamInterface<std::tuple<DirectNetwork, Mode>> {
 protected:
  LostGpuTest() : DirectTest(std::get<0>(GetParam())) {}
};

INSTANTIATE_TEST_SUITE_P(
    All, LostGpuTest,
    testing::Combine(testing::Values(DirectNetwork::kVerbs, DirectNetwork::kLocal),
                     testing::Values(Mode::kShadow, Mode::kShadowCopy, Mode::kInPlace)));

// The GPU is lost at each call of an update in turn, at either end.
TEST_P(LostGpuTest, WhateverItFailsFailsTheUpdateAndTheNextOneIsRight) {
  SayOfGpu(kFakeCudaFlushes);
  ClusterOptions options = IntoGpu(std::get<1>(GetParam()), {.trainers = 1, .workers = 1});
  options.trainer_memory = std::make_shared<DeviceMemory>();
  options.direct = true;
  Make(options);
  ASSERT_EQ(PublishAndCheck(1), "");
  uint64_t shown = 1;
  for (int64_t after = 0;; ++after) {
    cluster_->FillTrainers(shown + 1);
    FakeCudaFail(after);
    const absl::Status status = cluster_->Publish(shown + 1);
    FakeCudaFail(-1);
    if (status.ok()) {
      EXPECT_TRUE(cluster_->Shows(0, shown + 1));
      EXPECT_GT(after, 15) << "calls";
      return;
    }
    EXPECT_TRUE(absl::StrContains(status.message(), "the fake driver was told to fail")) << status;
    EXPECT_TRUE(cluster_->worker(0).dirty() || cluster_->Shows(0, shown)) << after;
    // A local lane dies with a copy that fails.
    ASSERT_EQ(cluster_->Connect().message(), "");
    shown += 2;
    ASSERT_EQ(PublishAndCheck(shown), "") << after;
  }
}

}  // namespace
}  // namespace waybill
