// SPDX-License-Identifier: Apache-2.0

// Updates from and to the memory of GPUs: on the fake driver's (:device_updates_test), whose memory
// ends who touches it from the host, and on a real one (:gpu_updates).

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "core/base/status.h"
#include "core/device/device.h"
#include "core/fabric/local/local_fabric.h"
#include "core/fabric/tcp/tcp_fabric.h"
#include "testing/cluster/device_memory.h"
#include "testing/cluster/fault_cluster.h"
#include "testing/cluster/quantised_cases.h"
#include "testing/gpu/segment.h"

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

// Memory as torch's expandable segments are. What is allocated lies across two allocations at
// least.
class SegmentMemory final : public ClusterMemory {
 public:
  MemorySpan Allocate(size_t size_bytes) override {
    const size_t before = size_bytes / 2 / 256 * 256;
    segments_.push_back(*Segment::Create(size_bytes + 2 * kPartBytes, kPartBytes));
    return {MemoryKind::kDevice, segments_.back()->data() + kPartBytes - before, size_bytes};
  }
  void Write(const MemorySpan& to, const std::byte* from) override { copies_.Write(to, from); }
  void Read(const MemorySpan& from, std::byte* to) override { copies_.Read(from, to); }
  absl::Status Remap() {
    for (const auto& segment : segments_) WAYBILL_RETURN_IF_ERROR(segment->Remap());
    return absl::OkStatus();
  }

 private:
  static constexpr uint64_t kPartBytes = 2 << 20;
  DeviceMemory copies_;
  std::vector<std::unique_ptr<Segment>> segments_;
};

// From GPU to GPU over the local fabric, where tensors are sent from where they are.
class LocalFromDeviceTest : public DeviceUpdates, public testing::WithParamInterface<Mode> {
 protected:
  ClusterOptions Options(std::shared_ptr<ClusterMemory> trainers,
                         std::shared_ptr<ClusterMemory> workers) const {
    ClusterOptions options = {.trainers = 2, .workers = 2, .mode = GetParam()};
    options.user_memory = GetParam() != Mode::kShadow;
    if (GetParam() != Mode::kInPlace) options.arena_gpu = 0;  // Buffers of Waybill, on the GPU.
    options.trainer_memory = std::move(trainers);
    options.worker_memory = std::move(workers);
    options.direct = true;
    options.trainer.direct_run_bytes = 1;
    return options;
  }
  void Make(const ClusterOptions& options) {
    cluster_ =
        std::make_unique<Cluster>(options, [](const std::string&) { return *MakeLocalFabric(); });
    ASSERT_EQ(cluster_->Connect().message(), "");
  }
  std::string PublishAndCheck(uint64_t version) {
    cluster_->FillTrainers(version);
    if (absl::Status status = cluster_->Publish(version); !status.ok()) return status.ToString();
    for (uint32_t w = 0; w < 2; ++w) {
      if (!cluster_->Shows(w, version)) return "it is not shown to the byte";
    }
    return "";
  }

  std::unique_ptr<Cluster> cluster_;
};

INSTANTIATE_TEST_SUITE_P(All, LocalFromDeviceTest,
                         testing::Values(Mode::kShadow, Mode::kShadowCopy, Mode::kInPlace));

TEST_P(LocalFromDeviceTest, EveryWorkerShowsEveryVersionToTheByteAlsoAfterOneWasGivenUp) {
  Make(Options(std::make_shared<DeviceMemory>(), std::make_shared<DeviceMemory>()));
  for (uint64_t version = 1; version <= 2; ++version) ASSERT_EQ(PublishAndCheck(version), "");
  ASSERT_EQ(cluster_->Abandon(3).message(), "");
  for (uint64_t version = 4; version <= 5; ++version) ASSERT_EQ(PublishAndCheck(version), "");
}

TEST_P(LocalFromDeviceTest, TensorsOfTheHostArriveToo) {
  Make(Options(MakeHostMemory(), std::make_shared<DeviceMemory>()));
  for (uint64_t version = 1; version <= 2; ++version) ASSERT_EQ(PublishAndCheck(version), "");
}

TEST_P(LocalFromDeviceTest, MemoryThatHasMovedIsReadAndWrittenWhereItIsNow) {
  const auto tensors = std::make_shared<SegmentMemory>();
  const auto engine = std::make_shared<SegmentMemory>();
  Make(Options(tensors, engine));
  ASSERT_EQ(PublishAndCheck(1), "");
  ASSERT_EQ(tensors->Remap().message(), "");
  ASSERT_EQ(engine->Remap().message(), "");
  ASSERT_EQ(PublishAndCheck(2), "");
  ASSERT_EQ(PublishAndCheck(3), "");
}

TEST_P(LocalFromDeviceTest, ATensorThatWasFreedFailsTheUpdateByName) {
  const auto tensors = std::make_shared<DeviceMemory>();
  Make(Options(tensors, std::make_shared<DeviceMemory>()));
  ASSERT_EQ(PublishAndCheck(1), "");
  ASSERT_TRUE(cluster_->Prepare(2).ok());
  tensors->FreeFirst();
  const absl::Status status = cluster_->Start(0);
  EXPECT_TRUE(absl::StrContains(status.message(), "read region \"weights\": ")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "is no memory of a GPU any more")) << status;
}

TEST_P(LocalFromDeviceTest, AWorkerThatIsPausedTakesNoUpdateUntilItIsResumed) {
  Make(Options(std::make_shared<DeviceMemory>(), std::make_shared<DeviceMemory>()));
  ASSERT_EQ(PublishAndCheck(1), "");
  ASSERT_EQ(cluster_->worker(0).Pause().message(), "");
  cluster_->FillTrainers(2);
  EXPECT_EQ(cluster_->Publish(2).ToString(),
            "FAILED_PRECONDITION: the worker is paused, and takes no update until it is resumed");
  cluster_->worker(0).Resume(/*kept=*/false);
  ASSERT_EQ(PublishAndCheck(3), "");
}

// What is refused: `why` returns it.
struct Refusal {
  const char* name;
  absl::Status (*why)();
  absl::StatusCode code;
  const char* says;
};

absl::Status WhyNoWorker(std::unique_ptr<Fabric> fabric, const ReceiverEngineOptions& options,
                         int64_t size_bytes, const std::vector<MemorySpan>& regions) {
  Manifest manifest;
  manifest.AddTensor("w", {size_bytes / 2}, Dtype::kBf16);
  manifest.AddRegion("memory", static_cast<uint64_t>(size_bytes));
  manifest.AddShard(0, Format{Dtype::kBf16}, Box({0}, {size_bytes / 2}), {0, 0, {1}});
  return ReceiverEngine::Create(fabric.get(), manifest, regions, options,
                                [](const ReceiverEvent&) {})
      .status();
}

const Refusal kRefusals[] = {
    {"in_place_by_a_network_that_does_not_reach_gpus",
     [] {
       DeviceMemory memory;
       return WhyNoWorker(*MakeTcpFabric(), {.mode = Mode::kInPlace}, 8, {memory.Allocate(8)});
     },
     absl::StatusCode::kFailedPrecondition, "use shadow-copy"},
    {"buffers_on_a_gpu_that_the_network_does_not_reach",
     [] { return WhyNoWorker(*MakeTcpFabric(), {.mode = Mode::kShadow, .arena_gpu = 0}, 8, {}); },
     absl::StatusCode::kFailedPrecondition, "the tcp fabric reaches host memory only"},
    {"buffers_that_are_larger_than_the_gpu",
     [] {
       return WhyNoWorker(*MakeLocalFabric(), {.mode = Mode::kShadow, .arena_gpu = 0},
                          int64_t{1} << 50, {});
     },
     absl::StatusCode::kResourceExhausted, "1125899906842624 bytes of GPU 0 ("},
    {"buffers_beside_the_engines_memory",
     [] {
       DeviceMemory memory;
       return WhyNoWorker(*MakeLocalFabric(), {.mode = Mode::kInPlace, .arena_gpu = 0}, 8,
                          {memory.Allocate(8)});
     },
     absl::StatusCode::kInvalidArgument, ""},
    {"host_memory_that_is_said_to_be_a_gpus",
     [] {
       std::vector<std::byte> host(4096);
       return FindDevice(host.data(), host.size()).status();
     },
     absl::StatusCode::kInvalidArgument, "no memory of a GPU"},
    {"pinned_host_memory",
     []() -> absl::Status {
       WAYBILL_ASSIGN_OR_RETURN(const auto device, Device::Open(0));
       alignas(4096) static std::byte host[4096];
       WAYBILL_RETURN_IF_ERROR(device->Pin(host, sizeof(host)));
       const absl::Status status = FindDevice(host, sizeof(host)).status();
       device->Unpin(host);
       return status;
     },
     absl::StatusCode::kInvalidArgument, "it is host memory, pinned for GPU 0"},
    {"memory_that_ends_beyond_its_allocation",
     [] {
       DeviceMemory memory;
       constexpr size_t kSize = size_t{64} << 20;
       return FindDevice(memory.Allocate(kSize).data, size_t{1} << 50).status();
     },
     absl::StatusCode::kInvalidArgument, "no memory of a GPU"},
};

class RefusalTest : public DeviceUpdates, public testing::WithParamInterface<Refusal> {};

TEST_P(RefusalTest, IsRefusedWithTheReason) {
  const absl::Status status = GetParam().why();
  EXPECT_EQ(status.code(), GetParam().code) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), GetParam().says)) << status;
}

INSTANTIATE_TEST_SUITE_P(All, RefusalTest, testing::ValuesIn(kRefusals),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace waybill
