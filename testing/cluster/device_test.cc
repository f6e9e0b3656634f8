// SPDX-License-Identifier: Apache-2.0

// Tests of failures between updates and GPUs, and of what they leave. The driver is a fake one.

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "core/fabric/local/local_fabric.h"
#include "testing/cluster/device_memory.h"
#include "testing/cluster/fault_cluster.h"
#include "testing/cluster/quantised_cases.h"
#include "testing/fake_cuda/fake_cuda.h"

namespace waybill {
namespace {

// Each byte once, and with each piece its digest of 8.
TEST(Device, WhatLeavesTheGpuIsWhatGoesToTheWire) {
  FaultCluster cluster(Network::kPosted, FromDevice(OptionsFor(With(kBlocks, Rows({48}, 40)))));
  ASSERT_EQ(cluster->Connect().message(), "");
  ASSERT_EQ(cluster.PublishAndCheck(1), "");
  const FakeCudaUse before = FakeCudaNow();
  ASSERT_EQ(cluster.PublishAndCheck(2), "");
  const uint64_t elements = 48 * 40, maxima = 3 * 3 * 4, digests = 2 * 8;
  EXPECT_EQ(FakeCudaNow().bytes_to_host - before.bytes_to_host, elements + maxima + digests);
  EXPECT_EQ(FakeCudaNow().device_waits, before.device_waits);
}

TEST(Device, AFencedBufferIsPinnedAnewAndTakesTheNextVersion) {
  ClusterOptions options = FromDevice({});
  options.mode = Mode::kShadowCopy;
  options.user_memory = true;
  options.worker_memory = std::make_shared<DeviceMemory>(1);
  Cluster cluster(options, [](const std::string&) { return *MakeLocalFabric(); });
  ASSERT_EQ(cluster.Connect().message(), "");
  EXPECT_EQ(FakeCudaNow().pinned,
            8u);  // Two rings, two arenas, the digests of two threads of each trainer.
  const uint64_t waits = FakeCudaNow().device_waits;
  cluster.FillTrainers(1);
  ASSERT_EQ(cluster.Publish(1).message(), "");
  EXPECT_EQ(FakeCudaNow().device_waits, waits);
  cluster.FillTrainers(2);
  ASSERT_EQ(cluster.Abandon(2).message(), "");
  ASSERT_EQ(cluster.Prepare(2).message(), "");
  EXPECT_EQ(FakeCudaNow().pinned, 8u);
  ASSERT_EQ(cluster.StartAndArrive().message(), "");
  ASSERT_EQ(cluster.Commit().message(), "");
  for (uint32_t w = 0; w < 2; ++w) {
    EXPECT_TRUE(cluster.Shows(w, 2)) << w;
    EXPECT_EQ(*cluster.worker(w).Verify(), 2u) << w;
  }
}

TEST(Device, AGpuThatFailsFailsTheUpdateAndNothingIsShown) {
  for (const int64_t after : {0, 1, 2, 3, 4, 5}) {
    FaultCluster cluster(Network::kPosted, FromDevice(OptionsFor(With(kBlocks, Rows({48}, 40)))));
    ASSERT_EQ(cluster->Connect().message(), "");
    ASSERT_EQ(cluster.PublishAndCheck(1), "");
    cluster->FillTrainers(2);
    FakeCudaFail(after);
    const absl::Status status = cluster->Publish(2);
    FakeCudaFail(-1);
    EXPECT_NE(std::string(status.message()).find("stage from a GPU: "), std::string::npos)
        << status;
    EXPECT_TRUE(cluster.AllShow(1));
    ASSERT_EQ(cluster.PublishAndCheck(3), "");
  }
}

TEST(Device, AWorkerWhoseGpuFailsShowsNothingUntilTheNextVersion) {
  ClusterOptions options;
  options.mode = Mode::kShadowCopy;
  options.user_memory = true;
  options.worker_memory = std::make_shared<DeviceMemory>();
  FaultCluster cluster(Network::kPosted, options);
  ASSERT_EQ(cluster->Connect().message(), "");
  ASSERT_EQ(cluster.PublishAndCheck(1), "");
  cluster->FillTrainers(2);
  ASSERT_EQ(cluster->Prepare(2).message(), "");
  ASSERT_EQ(cluster->StartAndArrive().message(), "");
  FakeCudaFail(0);
  EXPECT_FALSE(cluster->Commit().ok());
  FakeCudaFail(-1);
  const absl::Status status = cluster->worker_events(0).back().status;
  EXPECT_EQ(std::string(status.message()).rfind("copy to region \"fused\": copy: ", 0), 0u)
      << status;
  EXPECT_TRUE(cluster->worker(0).dirty());
  EXPECT_FALSE(cluster->worker(0).TakeSnapshot("test").ok());
  ASSERT_EQ(cluster.PublishAndCheck(3), "");
}

TEST(Device, NothingOfItIsLeftWhenTheRanksAreGone) {
  {
    ClusterOptions options = FromDevice(OptionsFor(With(kBlocks, Rows({21, 48}, 40))));
    FaultCluster cluster(Network::kPosted, options);
    ASSERT_EQ(cluster->Connect().message(), "");
    ASSERT_EQ(cluster->Connect().message(), "");  // Another plan: the first one's is freed.
    ASSERT_EQ(cluster.PublishAndCheck(1), "");
  }
  EXPECT_EQ(FakeCudaNow().allocations, 0u);
  EXPECT_EQ(FakeCudaNow().pinned, 0u);
  EXPECT_EQ(FakeCudaNow().streams, 0u);
}

}  // namespace
}  // namespace waybill
