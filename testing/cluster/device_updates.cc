// Updates from and to the memory of GPUs: on the fake driver's (:device_updates_test), whose memory
// ends who touches it from the host, and on a real one (:gpu_updates).

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>

#include "core/device/device.h"
#include "testing/cluster/device_memory.h"
#include "testing/cluster/fault_cluster.h"
#include "testing/cluster/quantised_cases.h"

namespace waybill {
namespace {

// A machine without a GPU says so, and skips.
class DeviceUpdates : public testing::Test {
 protected:
  void SetUp() override {
    const absl::Status gpu = FindGpu();
    if (!gpu.ok()) GTEST_SKIP() << gpu.message();
  }
};

class QuantisedFromDeviceTest
    : public DeviceUpdates,
      public testing::WithParamInterface<std::tuple<Network, QuantisedCase>> {};

TEST_P(QuantisedFromDeviceTest, WhatIsShownIsWhatOnePlaceWouldHaveGiven) {
  const auto& [network, c] = GetParam();
  FaultCluster cluster(network, FromDevice(OptionsFor(c.model)));
  ASSERT_EQ(cluster->Connect().message(), "");
  for (uint64_t version = 1; version <= 2; ++version) {
    ASSERT_EQ(cluster.PublishAndCheck(version), "");
  }
}

INSTANTIATE_TEST_SUITE_P(All, QuantisedFromDeviceTest,
                         testing::Combine(testing::Values(Network::kPosted, Network::kLocal,
                                                          Network::kTcp),
                                          testing::ValuesIn(QuantisedCases())),
                         [](const auto& info) {
                           return NameOf(std::get<0>(info.param)) + "_" +
                                  std::get<1>(info.param).name;
                         });

class PlainFromDeviceTest : public DeviceUpdates,
                            public testing::WithParamInterface<std::tuple<Network, Dtype, Mode>> {};

// Rows, fused rows, columns, and a transposed part.
TEST_P(PlainFromDeviceTest, EveryWorkerShowsEveryVersionToTheByte) {
  const auto& [network, dtype, mode] = GetParam();
  ClusterOptions options = FromDevice({.trainers = 3, .workers = 2, .trainer_dtype = dtype});
  options.mode = mode;
  if (mode == Mode::kShadowCopy) {
    options.user_memory = true;
    options.worker_memory = std::make_shared<DeviceMemory>();
  }
  FaultCluster cluster(network, options);
  ASSERT_EQ(cluster->Connect().message(), "");
  for (uint64_t version = 1; version <= 3; ++version) {
    ASSERT_EQ(cluster.PublishAndCheck(version), "");
  }
}

INSTANTIATE_TEST_SUITE_P(All, PlainFromDeviceTest,
                         testing::Combine(testing::Values(Network::kPosted, Network::kMapped,
                                                          Network::kLocal, Network::kTcp),
                                          testing::Values(Dtype::kBf16, Dtype::kF32),
                                          testing::Values(Mode::kShadow, Mode::kShadowCopy,
                                                          Mode::kInPlace)));

TEST_F(DeviceUpdates, WithoutDigestsTheBytesAreTheSame) {
  ClusterOptions options = FromDevice({});
  options.digests = Digests::kOff;
  FaultCluster cluster(Network::kPosted, options);
  ASSERT_EQ(cluster->Connect().message(), "");
  ASSERT_EQ(cluster.PublishAndCheck(1), "");
}

TEST_F(DeviceUpdates, NaNsAndInfinitiesAreKeptAndCounted) {
  QuantisedModelOptions model = With(kBlocks, Rows({21, 48}, 40));
  model.nonfinite_from = 2;
  FaultCluster cluster(Network::kPosted, FromDevice(OptionsFor(model)));
  ASSERT_EQ(cluster->Connect().message(), "");
  ASSERT_EQ(cluster.PublishAndCheck(1), "");
  EXPECT_TRUE(cluster->trainer(0).FindNonFinite().empty());
  ASSERT_EQ(cluster.PublishAndCheck(2), "");
  const std::vector<NonFinite> found = cluster->trainer(0).FindNonFinite();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].elements, 2u);
}

}  // namespace
}  // namespace waybill
