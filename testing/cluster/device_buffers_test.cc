// SPDX-License-Identifier: Apache-2.0

// Workers whose buffers are a GPU's memory, and workers whose engine gives its memory back for a
// while. The driver, the GPUs and the NICs are fakes.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>

#include "absl/strings/match.h"
#include "core/fabric/tcp/tcp_fabric.h"
#include "core/plan/chunks.h"
#include "testing/cluster/direct_test.h"

namespace waybill {
namespace {

ClusterOptions OnGpu(Mode mode, ClusterOptions options = {}) {
  options.mode = mode;
  options.arena_gpu = 0;
  options.worker_memory = std::make_shared<DeviceMemory>();
  options.user_memory = mode == Mode::kShadowCopy;
  return options;
}

class GpuBuffersTest
    : public DirectTest,
      public testing::WithParamInterface<std::tuple<DirectNetwork, Mode, Digests, FakeCudaWrites>> {
 protected:
  GpuBuffersTest() : DirectTest(std::get<0>(GetParam())) {}
  void SetUp() override { SayOfGpu(std::get<3>(GetParam())); }
  static Mode mode() { return std::get<1>(GetParam()); }
  static Digests digests() { return std::get<2>(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(
    All, GpuBuffersTest,
    testing::Combine(testing::Values(DirectNetwork::kVerbs, DirectNetwork::kLocal),
                     testing::Values(Mode::kShadow, Mode::kShadowCopy, Mode::kInPlace),
                     testing::Values(Digests::kOn, Digests::kOff),
                     testing::Values(kFakeCudaFlushes, kFakeCudaReadBack)));

// What crosses the host are the digests of both ends.
TEST_P(GpuBuffersTest, FromGpuToGpuNoWeightsCrossTheHost) {
  ClusterOptions options = OnGpu(mode(), {.trainers = 3, .workers = 2, .digests = digests()});
  options.trainer_memory = std::make_shared<DeviceMemory>();
  options.direct = true;
  Make(options);
  for (uint64_t version = 1; version <= 3; ++version) ASSERT_EQ(PublishAndCheck(version), "");
  cluster_->FillTrainers(4);
  const FakeCudaUse before = FakeCudaNow();
  ASSERT_EQ(cluster_->Publish(4).message(), "");
  EXPECT_EQ(FakeCudaNow().bytes_to_device, before.bytes_to_device);
  EXPECT_EQ(FakeCudaNow().device_waits, before.device_waits);
  uint64_t pieces = 0;
  for (uint32_t t = 0; t < 3; ++t) {
    for (const Chunk& chunk : CutIntoChunks(cluster_->tables().senders[t], 8 << 10).chunks) {
      pieces += chunk.piece_count;
    }
  }
  EXPECT_EQ(FakeCudaNow().bytes_to_host - before.bytes_to_host,
            digests() == Digests::kOn ? 2 * pieces * 8 : 0);
}

TEST_P(GpuBuffersTest, TheyAreCountedAsTheGpus) {
  Make(OnGpu(mode(), {.digests = digests()}));
  const ReceiverCounts counts = cluster_->worker(0).counts();
  EXPECT_GT(counts.gpu_buffer_bytes, 0u);
  EXPECT_EQ(counts.host_buffer_bytes, 0u);
}

TEST_P(GpuBuffersTest, AnUpdateThatWasGivenUpIsFencedByAnotherRegistration) {
  Make(OnGpu(mode(), {.digests = digests()}));
  ASSERT_EQ(PublishAndCheck(1), "");
  ASSERT_EQ(cluster_->Abandon(2).message(), "");
  ASSERT_EQ(PublishAndCheck(3), "");
  ASSERT_EQ(PublishAndCheck(4), "");
  EXPECT_EQ(cluster_->worker(0).counts().renewals, 1u);
}

TEST_P(GpuBuffersTest, NothingOfThemIsLeftWhenTheRanksAreGone) {
  Make(OnGpu(mode(), {.digests = digests()}));
  ASSERT_EQ(PublishAndCheck(1), "");
  cluster_.reset();
  EXPECT_EQ(FakeCudaNow().allocations, 0u);
  EXPECT_EQ(FakeCudaNow().streams, 0u);
}

// A worker of one region of `size_bytes` bytes.
absl::Status WhyNoWorker(Fabric* fabric, const ReceiverEngineOptions& options, int64_t size_bytes,
                         const std::vector<MemorySpan>& regions) {
  Manifest manifest;
  manifest.AddTensor("w", {size_bytes / 2}, Dtype::kBf16);
  manifest.AddRegion("memory", static_cast<uint64_t>(size_bytes));
  manifest.AddShard(0, Format{Dtype::kBf16}, Box({0}, {size_bytes / 2}), {0, 0, {1}});
  return ReceiverEngine::Create(fabric, manifest, regions, options, [](const ReceiverEvent&) {})
      .status();
}

TEST_F(LocalDirectTest, BuffersThatAGpuCannotHaveAreRefusedWithTheRemedy) {
  SayOfGpu(kFakeCudaOrders);
  const auto tcp = *MakeTcpFabric();
  EXPECT_EQ(
      WhyNoWorker(tcp.get(), {.mode = Mode::kShadow, .arena_gpu = 0}, 8, {}).ToString(),
      "FAILED_PRECONDITION: buffers on GPU 0 (GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadae00): "
      "register \"weights\": the tcp fabric reaches host memory only; without a GPU for them, "
      "updates arrive in host memory");
  const auto local = *MakeLocalFabric();
  const absl::Status full =
      WhyNoWorker(local.get(), {.mode = Mode::kShadow, .arena_gpu = 0}, int64_t{1} << 50, {});
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(full.message(), "1125899906842624 bytes of GPU 0 (")) << full;
  EXPECT_FALSE(WhyNoWorker(local.get(), {.arena_gpu = 7}, 8, {}).ok());
  DeviceMemory memory;
  const std::vector<MemorySpan> regions = {memory.Allocate(8)};
  const absl::Status other =
      WhyNoWorker(local.get(), {.mode = Mode::kShadowCopy, .arena_gpu = 1}, 8, regions);
  EXPECT_EQ(other.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(other.message(), "the engine's memory is of GPU 0 (")) << other;
  EXPECT_EQ(WhyNoWorker(local.get(), {.mode = Mode::kInPlace, .arena_gpu = 0}, 8, regions).code(),
            absl::StatusCode::kInvalidArgument);
}

class PausedTest : public DirectNetworkTest {
 protected:
  void SetUp() override { SayOfGpu(kFakeCudaOrders); }
  // As an engine that unmaps its memory and maps other pages.
  void Sleep() {
    for (void* memory : static_cast<DeviceMemory&>(*options_.worker_memory).all()) {
      FakeCudaRemap(memory);
    }
  }

  ClusterOptions options_ = InPlace({.trainers = 2, .workers = 1});
};

INSTANTIATE_TEST_SUITE_P(All, PausedTest,
                         testing::Values(DirectNetwork::kVerbs, DirectNetwork::kLocal),
                         [](const auto& info) { return NameOf(info.param); });

TEST_P(PausedTest, AWorkerTakesNoUpdateUntilItIsResumed) {
  Make(options_);
  ASSERT_EQ(PublishAndCheck(1), "");
  ASSERT_EQ(cluster_->worker(0).Pause().message(), "");
  EXPECT_EQ(cluster_->worker(0).TakeSnapshot("test").status().message(),
            "take a snapshot: the worker is paused");
  Sleep();
  cluster_->FillTrainers(2);
  EXPECT_EQ(cluster_->Publish(2).ToString(),
            "FAILED_PRECONDITION: the worker is paused, and takes no update until it is resumed");
  cluster_->worker(0).Resume(/*kept=*/false);
  EXPECT_FALSE(cluster_->worker(0).TakeSnapshot("test").ok());
  ASSERT_EQ(PublishAndCheck(3), "");
}

TEST_P(PausedTest, WhatWasKeptIsShownAgain) {
  Make(options_);
  ASSERT_EQ(PublishAndCheck(1), "");
  ASSERT_EQ(cluster_->worker(0).Pause().message(), "");
  cluster_->worker(0).Resume(/*kept=*/true);
  EXPECT_TRUE(cluster_->Shows(0, 1));
  ASSERT_EQ(PublishAndCheck(2), "");
  EXPECT_EQ(cluster_->worker(0).counts().renewals, 1u);
}

// A trainer may come or go meanwhile: its lanes are made, and the memory follows.
TEST_P(PausedTest, APlanThatIsMadeMeanwhileGetsTheMemoryLater) {
  Make(options_);
  ASSERT_EQ(PublishAndCheck(1), "");
  for (const bool kept_lanes : {false, true}) {
    ASSERT_EQ(cluster_->worker(0).Pause().message(), "");
    ASSERT_EQ(cluster_->Connect([&](uint32_t, uint32_t) { return kept_lanes; }).message(), "");
    Sleep();
    cluster_->worker(0).Resume(/*kept=*/false);
    ASSERT_EQ(PublishAndCheck(kept_lanes ? 3 : 2), "");
  }
}

TEST_P(PausedTest, NobodyMayReadOrWriteMeanwhile) {
  Make(options_);
  ASSERT_EQ(PublishAndCheck(1), "");
  {
    const auto snapshot = cluster_->worker(0).TakeSnapshot("eval");
    EXPECT_EQ(cluster_->worker(0).Pause().ToString(),
              "FAILED_PRECONDITION: what is shown is still read: snapshot of version 1 by eval");
  }
  cluster_->FillTrainers(2);
  ASSERT_EQ(cluster_->Prepare(2).message(), "");
  EXPECT_EQ(cluster_->worker(0).Pause().ToString(),
            "FAILED_PRECONDITION: version 2 is being received, or waits to be shown");
  ASSERT_EQ(cluster_->StartAndArrive().message(), "");
  ASSERT_EQ(cluster_->Commit().message(), "");
  EXPECT_TRUE(cluster_->Shows(0, 2));
  EXPECT_EQ(*cluster_->worker(0).Verify(), 2u);
}

TEST_P(PausedTest, BuffersOfWaybillStayWhereTheyAre) {
  Make(OnGpu(Mode::kShadow));
  ASSERT_EQ(PublishAndCheck(1), "");
  ASSERT_EQ(cluster_->worker(0).Pause().message(), "");
  cluster_->worker(0).Resume(/*kept=*/true);
  ASSERT_EQ(PublishAndCheck(2), "");
  EXPECT_EQ(cluster_->worker(0).counts().renewals, 0u);
}

// What keeps the pages of memory that is unmapped alive.
TEST_F(DirectTest, AWorkerThatIsPausedHasNothingRegisteredOfItsEngine) {
  SayOfGpu(kFakeCudaOrders);
  Make(InPlace({.trainers = 1, .workers = 1}));
  const fake_verbs::FakeHost& host = network_.Host("worker 0");
  const size_t regions = cluster_->worker_manifest(0).region_count();
  const size_t before = host.counts("mlx5_0").registrations;
  ASSERT_EQ(cluster_->worker(0).Pause().message(), "");
  EXPECT_EQ(host.counts("mlx5_0").registrations, before - regions);
  cluster_->worker(0).Resume(/*kept=*/true);
  ASSERT_EQ(PublishAndCheck(1), "");
  EXPECT_EQ(host.counts("mlx5_0").registrations, before);
}

}  // namespace
}  // namespace waybill
