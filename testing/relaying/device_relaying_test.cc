// Workers that relay from a GPU's memory, which their engines give back for a while. The driver and
// the GPU are fakes.

#include <gtest/gtest.h>

#include <memory>

#include "core/fabric/local/local_fabric.h"
#include "testing/cluster/device_memory.h"
#include "testing/fake_cuda/fake_cuda.h"
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

}  // namespace
}  // namespace waybill
