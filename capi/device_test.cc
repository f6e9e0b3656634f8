// SPDX-License-Identifier: Apache-2.0

// Memory of GPUs through the C ABI. The driver is a fake one, whose GPUs run the kernels that were
// compiled for the host, and whose memory ends who touches it from there.

#include "core/device/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "capi/testing/job.h"
#include "capi/waybill.h"
#include "testing/fake_cuda/fake_cuda.h"
#include "testing/fake_cuda/held_stream.h"

namespace waybill::capi {
namespace {

using testing::HasSubstr;

class GpuMemory final : public JobMemory {
 public:
  explicit GpuMemory(int ordinal = 0) {
    device_ = *Device::Open(ordinal);
    stream_ = *device_->MakeStream();
  }
  ~GpuMemory() override {
    for (void* memory : all_) device_->Free(memory);
    device_->DestroyStream(stream_);
  }
  void* Allocate(uint64_t size_bytes) override {
    return all_.emplace_back(*device_->Allocate(size_bytes));
  }
  void Copy(void* to, const void* from, uint64_t size_bytes) override {
    EXPECT_EQ(device_->Copy(to, from, size_bytes, stream_).message(), "");
    EXPECT_EQ(device_->Finish(stream_).message(), "");
  }

 private:
  std::shared_ptr<Device> device_;
  Stream stream_ = nullptr;
  std::vector<void*> all_;
};

waybill_status_t PublishAfter(Job& job, uint64_t version, void* event, int64_t deadline_ns,
                              waybill_update_t** update, waybill_error_t** error) {
  waybill_publish_options_t options = WAYBILL_PUBLISH_OPTIONS_INIT;
  options.version = version;
  options.after_event = event;
  options.deadline_ns = deadline_ns;
  return waybill_trainer_publish(job.trainers[0], &options, version, update, error);
}

TEST(Device, VersionsGoFromGpuToGpu) {
  GpuMemory memory;
  Job job({.trainers = 2, .workers = 2, .mode = WAYBILL_MODE_SHADOW_COPY, .device = &memory});
  job.Join();
  for (uint64_t version = 1; version <= 3; ++version) {
    job.Publish(version);
    job.AwaitCommitted(version);
    for (uint32_t w = 0; w < 2; ++w) EXPECT_TRUE(job.Shows(w, version)) << w;
  }
}

TEST(Device, BuffersThatWaybillAllocatesMayBeAGpus) {
  FakeCudaSayOfNics(0, kFakeCudaOrders, /*exports_dmabuf=*/false);
  GpuMemory memory;
  for (const uint32_t mode : {WAYBILL_MODE_SHADOW, WAYBILL_MODE_SHADOW_COPY}) {
    Job job({.mode = mode, .fabric = "local", .gpu = 1, .device = &memory});
    job.Join();
    const uint64_t copied = FakeCudaNow().bytes_to_host;
    for (uint64_t version = 1; version <= 3; ++version) {
      job.Publish(version);
      job.AwaitCommitted(version);
    }
    EXPECT_LT(FakeCudaNow().bytes_to_host - copied, 1000u);  // Digests.
    EXPECT_TRUE(job.Shows(0, 3));
  }
}

TEST(Device, AGpuThatTheProcessDoesNotSeeIsRefused) {
  Job job;
  waybill_worker_options_t options = WAYBILL_WORKER_OPTIONS_INIT;
  waybill_rank_options_t rank = WAYBILL_RANK_OPTIONS_INIT;
  waybill_manifest_t* manifest = MakeManifest(0, Job::kRows);
  options.rank = &rank;
  options.manifest = manifest;
  options.queue = job.queue;
  options.gpu = 3;
  waybill_worker_t* worker = nullptr;
  waybill_error_t* error = nullptr;
  const waybill_status_t status = waybill_worker_create(job.context, &options, &worker, &error);
  EXPECT_EQ(status, WAYBILL_INVALID_ARGUMENT);
  EXPECT_THAT(TakeError(status, error).message,
              HasSubstr("open GPU 2: this process sees 2 GPUs, from 0 on"));
  waybill_manifest_destroy(manifest);
}

// As an engine that unmaps its weights while it sleeps.
TEST(Device, AWorkerThatIsPausedTakesNoUpdateAndShowsNothing) {
  FakeCudaSayOfNics(0, kFakeCudaOrders, /*exports_dmabuf=*/false);
  GpuMemory memory;
  Job job({.mode = WAYBILL_MODE_IN_PLACE, .fabric = "local", .device = &memory});
  EXPECT_EQ(waybill_worker_pause(job.workers[0], nullptr), WAYBILL_FAILED_PRECONDITION);
  job.Join();
  job.Publish(1);
  job.AwaitCommitted(1);
  ASSERT_EQ(waybill_worker_pause(job.workers[0], nullptr), WAYBILL_OK);
  waybill_snapshot_t* snapshot = nullptr;
  EXPECT_EQ(waybill_worker_snapshot(job.workers[0], "test", &snapshot, nullptr),
            WAYBILL_FAILED_PRECONDITION);
  job.Publish(2);
  waybill_event_t event = job.Await(WAYBILL_EVENT_OUTCOME);
  EXPECT_EQ(event.status, WAYBILL_FAILED_PRECONDITION);
  EXPECT_THAT(waybill_error_message(event.error), HasSubstr("the worker is paused"));
  waybill_event_release(&event);
  event = job.Await(WAYBILL_EVENT_PUBLISHED);
  waybill_event_release(&event);
  ASSERT_EQ(waybill_worker_resume(job.workers[0], 1, nullptr), WAYBILL_OK);
  EXPECT_TRUE(job.Shows(0, 1));
  job.Publish(3);
  job.AwaitCommitted(3);
  EXPECT_TRUE(job.Shows(0, 3));
}

TEST(Device, ARankSaysWhichDeviceItIsOn) {
  GpuMemory memory;
  Job job({.mode = WAYBILL_MODE_SHADOW_COPY, .device = &memory});
  waybill_blob_t* json = nullptr;
  const std::string device =
      R"("device":{"name":"Fake GPU","ordinal":0,"uuid":"GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadae00"})";
  ASSERT_EQ(waybill_trainer_describe(job.trainers[0], &json, nullptr), WAYBILL_OK);
  EXPECT_THAT(TakeBlob(json), HasSubstr(device));
  ASSERT_EQ(waybill_worker_describe(job.workers[0], &json, nullptr), WAYBILL_OK);
  EXPECT_THAT(TakeBlob(json), HasSubstr(device));
}

TEST(Device, APublishWaitsForItsEventAndForNothingElseOfTheDevice) {
  GpuMemory memory;
  Job job({.device = &memory});
  job.Join();
  waybill_event_t event = job.Await(WAYBILL_EVENT_GROUP_JOINED);
  waybill_event_release(&event);
  HeldStream busy, other;  // Neither ends before it is told to.
  ASSERT_EQ(PublishAfter(job, 7, busy.RecordedEvent(), 0, nullptr, nullptr), WAYBILL_OK);
  // As the optimizer's last kernels would.
  job.Fill(7);
  EXPECT_EQ(waybill_queue_poll(job.queue, &event, nullptr), WAYBILL_NOT_FOUND);
  busy.Release();
  job.AwaitCommitted(7);
  EXPECT_TRUE(job.Shows(0, 7));
  other.Release();
}

TEST(Device, APublishWhoseEventDoesNotComeEndsAtItsDeadline) {
  GpuMemory memory;
  Job job({.device = &memory});
  job.Join();
  HeldStream busy;
  ASSERT_EQ(
      PublishAfter(job, 1, busy.RecordedEvent(), waybill_now_ns() + 50'000'000, nullptr, nullptr),
      WAYBILL_OK);
  waybill_event_t event = job.Await(WAYBILL_EVENT_PUBLISHED);
  EXPECT_EQ(event.status, WAYBILL_DEADLINE_EXCEEDED);
  EXPECT_THAT(waybill_error_message(event.error),
              HasSubstr("publish version 1: not sent by its deadline; GPU 0 "
                        "(GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadae00) has not reached its event"));
  waybill_event_release(&event);
  busy.Release();
  job.Publish(1);  // It was not published, so it still can be.
  job.AwaitCommitted(1);
}

// The driver may report such an event before the publish has reached the trainer's thread.
TEST(Device, APublishWhoseEventIsReachedAlreadyIsNotHeld) {
  GpuMemory memory;
  Job job({.device = &memory});
  job.Join();
  HeldStream done;
  CUevent_st* const reached = done.RecordedEvent();
  done.Release();
  for (uint64_t version = 1; version <= 20; ++version) {
    ASSERT_EQ(PublishAfter(job, version, reached, 0, nullptr, nullptr), WAYBILL_OK);
    job.AwaitCommitted(version);
  }
}

TEST(Device, APublishThatWaitsForAnEventCanBeCancelled) {
  GpuMemory memory;
  Job job({.device = &memory});
  job.Join();
  HeldStream busy;
  waybill_update_t* update = nullptr;
  ASSERT_EQ(PublishAfter(job, 1, busy.RecordedEvent(), 0, &update, nullptr), WAYBILL_OK);
  ASSERT_EQ(waybill_update_cancel(update, nullptr), WAYBILL_OK);
  waybill_event_t event = job.Await(WAYBILL_EVENT_PUBLISHED);
  EXPECT_EQ(event.status, WAYBILL_CANCELLED);
  waybill_event_release(&event);
  waybill_update_destroy(update);
  busy.Release();
}

TEST(Device, AnEventWithoutMemoryOfADeviceIsRefused) {
  Job job;
  job.Join();
  HeldStream stream;
  waybill_error_t* error = nullptr;
  const waybill_status_t status = PublishAfter(job, 1, stream.RecordedEvent(), 0, nullptr, &error);
  const CallResult result = TakeError(status, error);
  EXPECT_EQ(result.status, WAYBILL_INVALID_ARGUMENT);
  EXPECT_THAT(result.message, HasSubstr("no region is memory of a device"));
  stream.Release();
}

TEST(Device, AnEventOfAStreamThatIsCapturedIsRefusedAndNothingIsPublished) {
  GpuMemory memory;
  Job job({.device = &memory});
  job.Join();
  HeldStream captured;
  FakeCudaCapture(captured.stream(), true);
  waybill_error_t* error = nullptr;
  const waybill_status_t status =
      PublishAfter(job, 1, captured.RecordAnotherEvent(), 0, nullptr, &error);
  const CallResult result = TakeError(status, error);
  EXPECT_EQ(result.status, WAYBILL_FAILED_PRECONDITION);
  EXPECT_THAT(result.message, HasSubstr("a stream that is being captured into a CUDA graph"));
  FakeCudaCapture(captured.stream(), false);
  job.Publish(1);  // It was not published, so it still can be.
  job.AwaitCommitted(1);
}

TEST(Device, MemoryOfTwoDevicesIsOfTwoRanks) {
  GpuMemory first(0), second(1);
  waybill_context_t* context = nullptr;
  waybill_queue_t* queue = nullptr;
  waybill_manifest_t* manifest = nullptr;
  ASSERT_EQ(waybill_context_create(nullptr, &context, nullptr), WAYBILL_OK);
  ASSERT_EQ(waybill_queue_create(context, &queue, nullptr), WAYBILL_OK);
  ASSERT_EQ(waybill_manifest_create(&manifest, nullptr), WAYBILL_OK);
  waybill_region_t* regions[2] = {};
  for (int i = 0; i < 2; ++i) {
    const int64_t shape[] = {32};
    const int64_t begin[] = {0};
    waybill_shard_t shard = WAYBILL_SHARD_INIT;
    shard.tensor_index = shard.region_index = static_cast<uint32_t>(i);
    shard.dimensions = 1;
    shard.begin = begin;
    shard.end = shape;
    const char* name = i == 0 ? "a" : "b";
    ASSERT_EQ(waybill_manifest_add_region(manifest, name, 64, nullptr, nullptr), WAYBILL_OK);
    ASSERT_EQ(waybill_manifest_add_tensor(manifest, name, WAYBILL_BF16, shape, 1, nullptr, nullptr),
              WAYBILL_OK);
    ASSERT_EQ(waybill_manifest_add_shard(manifest, &shard, nullptr, nullptr), WAYBILL_OK);
    waybill_region_options_t options = WAYBILL_REGION_OPTIONS_INIT;
    options.data = (i == 0 ? first : second).Allocate(64);
    options.size_bytes = 64;
    options.kind = WAYBILL_MEMORY_DEVICE;
    options.name = i == 0 ? "first" : "second";
    ASSERT_EQ(waybill_region_create(context, &options, &regions[i], nullptr), WAYBILL_OK);
  }
  waybill_rank_options_t rank = WAYBILL_RANK_OPTIONS_INIT;
  rank.controller = "127.0.0.1:1";
  rank.job = "capi";
  rank.world = 1;
  waybill_trainer_options_t options = WAYBILL_TRAINER_OPTIONS_INIT;
  options.rank = &rank;
  options.manifest = manifest;
  options.regions = regions;
  options.region_count = 2;
  options.queue = queue;
  waybill_trainer_t* trainer = nullptr;
  waybill_error_t* error = nullptr;
  const waybill_status_t status = waybill_trainer_create(context, &options, &trainer, &error);
  const CallResult result = TakeError(status, error);
  EXPECT_EQ(result.status, WAYBILL_INVALID_ARGUMENT);
  EXPECT_THAT(result.message, AllOf(HasSubstr("\"first\" is memory of GPU 0 (GPU-a0"),
                                    HasSubstr(", and \"second\" of GPU 1 (GPU-a0")));
  waybill_context_destroy(context);
  waybill_manifest_destroy(manifest);
}

TEST(Device, MemoryThatIsNotWhatItIsSaidToBeIsRefused) {
  waybill_context_t* context = nullptr;
  ASSERT_EQ(waybill_context_create(nullptr, &context, nullptr), WAYBILL_OK);
  std::vector<char> host(64);
  waybill_region_options_t options = WAYBILL_REGION_OPTIONS_INIT;
  options.data = host.data();
  options.size_bytes = host.size();
  options.kind = WAYBILL_MEMORY_DEVICE;
  options.name = "w";
  waybill_region_t* region = nullptr;
  waybill_error_t* error = nullptr;
  const waybill_status_t status = waybill_region_create(context, &options, &region, &error);
  const CallResult result = TakeError(status, error);
  EXPECT_EQ(result.status, WAYBILL_INVALID_ARGUMENT);
  EXPECT_THAT(result.message, HasSubstr("\"w\": no memory of a GPU: the driver does not know it"));
  GpuMemory memory;
  options.data = memory.Allocate(64);
  FakeCudaMakeManaged(options.data);
  const waybill_status_t managed = waybill_region_create(context, &options, &region, &error);
  EXPECT_THAT(TakeError(managed, error).message,
              HasSubstr("\"w\": no memory of a GPU: it is managed memory of GPU 0 (GPU-a0"));
  waybill_context_destroy(context);
}

}  // namespace
}  // namespace waybill::capi
