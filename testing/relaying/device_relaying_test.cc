// SPDX-License-Identifier: Apache-2.0

// Workers that relay from a GPU's memory, which their engines give back for a while. The driver and
// the GPU are fakes.

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/fabric/local/local_fabric.h"
#include "core/fabric/verbs/verbs_fabric.h"
#include "testing/cluster/device_memory.h"
#include "testing/fake_cuda/fake_cuda.h"
#include "testing/fake_verbs/fake_network.h"
#include "testing/relaying/relaying_job.h"

namespace waybill {
namespace {

class PausedRelayTest : public testing::Test {
 protected:
  // As an engine that unmaps its memory and maps other pages.
  void Sleep() {
    for (void* memory : memory_->all()) FakeCudaRemap(memory);
  }
  void LoseALane() { job_->trainer(0).fabric->KillLanes("", absl::UnavailableError("torn")); }
  // Returns whether another term was established.
  bool NextTerm() {
    const int before = job_->worker(0).Heard(proto::ControllerMessage::kEstablished);
    LoseALane();
    return job_->StepUntil(
        [&] { return job_->worker(0).Heard(proto::ControllerMessage::kEstablished) > before; });
  }

  std::shared_ptr<DeviceMemory> memory_ = std::make_shared<DeviceMemory>();
  std::unique_ptr<RelayingJob> job_ = std::make_unique<RelayingJob>(
      RelayingOptions{.mode = Mode::kInPlace, .worker_memory = memory_, .make_fabric = [] {
                        return *MakeLocalFabric();
                      }});
};

TEST_F(PausedRelayTest, ATermBeginsWhileAWorkerThatRelaysIsPaused) {
  ASSERT_TRUE(job_->Establish());
  ASSERT_EQ(job_->PublishAndAwait(1).ToString(), "OK");
  ASSERT_TRUE(job_->AllShow(1));
  ASSERT_EQ(job_->worker(0).worker->Pause().ToString(), "OK");
  Sleep();
  ASSERT_TRUE(NextTerm());
  EXPECT_EQ(job_->PublishAndAwait(2).message(),
            "worker 0 refused: the worker is paused, and takes no update until it is resumed");
  job_->worker(0).worker->Resume(/*kept=*/false);
  ASSERT_EQ(job_->PublishAndAwait(3).ToString(), "OK");
  EXPECT_TRUE(job_->AllShow(3));
}

TEST_F(PausedRelayTest, MemoryThatIsRelayedIsNotGivenBack) {
  ASSERT_TRUE(job_->Establish());
  ASSERT_EQ(job_->PublishAndAwait(1).ToString(), "OK");
  job_->hold = [](const auto& member, const auto& message) {
    return member.id.role == Role::kTrainer && message.has_start();
  };
  job_->Publish(2);
  ASSERT_TRUE(job_->StepUntil(
      [&] { return job_->worker(0).Heard(proto::ControllerMessage::kStart) == 2; }));
  EXPECT_EQ(job_->worker(0).worker->Pause().message(),
            "version 2 is being received, or waits to be shown");
  job_->hold = nullptr;
  ASSERT_TRUE(job_->StepUntil([&] { return !absl::IsUnknown(job_->OutcomeOf(2)); }));
  EXPECT_EQ(job_->OutcomeOf(2).ToString(), "OK");
  EXPECT_TRUE(job_->AllShow(2));
}

class DeviceRelayTest : public testing::TestWithParam<std::tuple<FakeCudaWrites, bool>> {};

INSTANTIATE_TEST_SUITE_P(DigestsOff, DeviceRelayTest,
                         testing::Combine(testing::Values(kFakeCudaFlushes, kFakeCudaReadBack),
                                          testing::Bool()));

// A worker relays what a NIC has written to its GPU's memory once kernels see it. Without digests
// nothing else asks for that before.
TEST_P(DeviceRelayTest, WhatIsRelayedIsVisible) {
  const auto [writes, digests_off] = GetParam();
  FakeCudaSayOfNics(0, writes);
  fake_verbs::FakeNetwork network;
  int hosts = 0;
  RelayingJob job({.mode = Mode::kInPlace,
                   .worker_memory = std::make_shared<DeviceMemory>(),
                   .make_fabric = [&]() -> std::unique_ptr<Fabric> {
                     const std::string name = absl::StrCat("host", ++hosts);
                     network.Host(name).AddDevice("mlx5_0", {.after_read = FakeCudaNicHasRead});
                     return *MakeVerbsFabric({.library = &network.Host(name)});
                   },
                   .digests_off = digests_off});
  ASSERT_TRUE(job.Establish());
  for (uint64_t version = 1; version <= 3; ++version) {
    ASSERT_EQ(job.PublishAndAwait(version).ToString(), "OK");
    EXPECT_TRUE(job.AllShow(version));
  }
}

}  // namespace
}  // namespace waybill
