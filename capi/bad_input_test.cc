// SPDX-License-Identifier: Apache-2.0

// Each wrong thing that a caller can pass: what it is told. The bindings show the same messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "capi/testing/job.h"

namespace waybill::capi {
namespace {

using testing::HasSubstr;

// Objects that are good, for calls that are not.
struct Good {
  Job job;
  waybill_manifest_t* manifest = MakeManifest(0, Job::kRows);
  ~Good() { waybill_manifest_destroy(manifest); }
};

struct Case {
  const char* name;
  waybill_status_t status;
  const char* message;  // Part of it.
  std::function<waybill_status_t(Good&, waybill_error_t**)> call;
};

waybill_status_t CreateRegion(Good& good, void* data, uint64_t size, waybill_error_t** e,
                              uint32_t kind = 0) {
  waybill_region_options_t options = WAYBILL_REGION_OPTIONS_INIT;
  options.data = data;
  options.size_bytes = size;
  options.kind = kind;
  options.name = "embedding";
  waybill_region_t* region = nullptr;
  return waybill_region_create(good.job.context, &options, &region, e);
}

waybill_status_t AddShard(Good& good, const std::function<void(waybill_shard_t&)>& spoil,
                          waybill_error_t** e) {
  waybill_shard_t shard = WAYBILL_SHARD_INIT;
  spoil(shard);
  return waybill_manifest_add_shard(good.manifest, &shard, nullptr, e);
}

// A worker with two regions of which the second begins so many bytes into memory.
waybill_status_t CreateWorker(Good& good, uint64_t second_at, uint32_t mode, bool read_only,
                              waybill_error_t** e) {
  static std::vector<std::byte> memory(64);
  waybill_region_t* regions[2] = {};
  waybill_manifest_t* manifest = nullptr;
  EXPECT_EQ(waybill_manifest_create(&manifest, nullptr), WAYBILL_OK);
  const int64_t shape[] = {16};
  const char* const names[] = {"left", "right"};
  for (uint32_t i = 0; i < 2; ++i) {
    waybill_region_options_t options = WAYBILL_REGION_OPTIONS_INIT;
    options.data = memory.data() + i * second_at;
    options.size_bytes = 16;
    options.name = names[i];
    options.read_only = read_only ? 1 : 0;
    EXPECT_EQ(waybill_region_create(good.job.context, &options, &regions[i], nullptr), WAYBILL_OK);
    waybill_shard_t shard = WAYBILL_SHARD_INIT;
    shard.region_index = shard.tensor_index = i;
    EXPECT_EQ(waybill_manifest_add_region(manifest, names[i], 16, nullptr, nullptr), WAYBILL_OK);
    EXPECT_EQ(
        waybill_manifest_add_tensor(manifest, names[i], WAYBILL_U8, shape, 1, nullptr, nullptr),
        WAYBILL_OK);
    EXPECT_EQ(waybill_manifest_add_shard(manifest, &shard, nullptr, nullptr), WAYBILL_OK);
  }
  waybill_rank_options_t rank = WAYBILL_RANK_OPTIONS_INIT;
  waybill_worker_options_t options = WAYBILL_WORKER_OPTIONS_INIT;
  options.rank = &rank;
  options.manifest = manifest;
  options.regions = regions;
  options.region_count = mode == WAYBILL_MODE_SHADOW_COPY ? 0 : 2;
  options.mode = mode;
  options.queue = good.job.queue;
  waybill_worker_t* worker = nullptr;
  const waybill_status_t status = waybill_worker_create(good.job.context, &options, &worker, e);
  waybill_worker_destroy(worker);
  for (waybill_region_t* region : regions) waybill_region_destroy(region);
  waybill_manifest_destroy(manifest);
  return status;
}

waybill_status_t CreateContext(size_t struct_size, waybill_error_t** e) {
  waybill_context_options_t options = WAYBILL_CONTEXT_OPTIONS_INIT;
  options.struct_size = struct_size;
  waybill_context_t* context = nullptr;
  return waybill_context_create(&options, &context, e);
}

waybill_status_t Publish(Good& good, uint64_t version, int64_t deadline, waybill_error_t** e) {
  waybill_publish_options_t options = WAYBILL_PUBLISH_OPTIONS_INIT;
  options.version = version;
  options.deadline_ns = deadline;
  return waybill_trainer_publish(good.job.trainers[0], &options, 0, nullptr, e);
}

// Memory that an engine's step after loading has shuffled, as bytes bring it from elsewhere.
waybill_manifest_t* InEngineOrder(const char* name) {
  waybill_manifest_t *made = nullptr, *decoded = nullptr;
  EXPECT_EQ(waybill_manifest_create(&made, nullptr), WAYBILL_OK);
  const int64_t shape[] = {Job::kRows, Job::kColumns};
  EXPECT_EQ(
      waybill_manifest_add_region(made, "memory", Job::kRows * Job::kColumns * 2, nullptr, nullptr),
      WAYBILL_OK);
  EXPECT_EQ(waybill_manifest_add_tensor(made, "weight", WAYBILL_BF16, shape, 2, nullptr, nullptr),
            WAYBILL_OK);
  waybill_shard_t shard = WAYBILL_SHARD_INIT;
  shard.engine_order = name;
  EXPECT_EQ(waybill_manifest_add_shard(made, &shard, nullptr, nullptr), WAYBILL_OK);
  waybill_blob_t* bytes = nullptr;
  EXPECT_EQ(waybill_manifest_encode(made, &bytes, nullptr), WAYBILL_OK);
  EXPECT_EQ(waybill_manifest_decode(waybill_blob_data(bytes), waybill_blob_size(bytes), &decoded,
                                    nullptr),
            WAYBILL_OK);
  waybill_blob_destroy(bytes);
  waybill_manifest_destroy(made);
  return decoded;
}

std::byte g_byte;

const Case kCases[] = {
    {"an_output_that_is_null", WAYBILL_INVALID_ARGUMENT, "create a manifest: out_manifest is NULL",
     [](Good&, waybill_error_t** e) { return waybill_manifest_create(nullptr, e); }},
    {"a_handle_that_is_null", WAYBILL_INVALID_ARGUMENT, "create a queue: context is NULL",
     [](Good&, waybill_error_t** e) {
       waybill_queue_t* queue = nullptr;
       return waybill_queue_create(nullptr, &queue, e);
     }},
    {"a_handle_of_another_kind", WAYBILL_INVALID_ARGUMENT, "or is of another kind",
     [](Good& good, waybill_error_t** e) {
       waybill_queue_t* queue = nullptr;
       return waybill_queue_create(reinterpret_cast<waybill_context_t*>(good.manifest), &queue, e);
     }},
    {"a_handle_that_was_destroyed", WAYBILL_INVALID_ARGUMENT, "manifest is no such handle",
     [](Good& good, waybill_error_t** e) {
       waybill_manifest_destroy(good.manifest);
       return waybill_manifest_add_region(good.manifest, "r", 1, nullptr, e);
     }},
    {"a_pointer_to_something", WAYBILL_INVALID_ARGUMENT, "is no such handle",
     [](Good& good, waybill_error_t** e) {
       return waybill_manifest_add_region(reinterpret_cast<waybill_manifest_t*>(&good), "r", 1,
                                          nullptr, e);
     }},
    {"a_struct_size_of_0", WAYBILL_INVALID_ARGUMENT, "options: struct_size is 0, not the struct's",
     [](Good&, waybill_error_t** e) { return CreateContext(0, e); }},
    {"a_struct_size_that_is_odd", WAYBILL_INVALID_ARGUMENT, "struct_size is 25",
     [](Good&, waybill_error_t** e) { return CreateContext(25, e); }},
    {"a_struct_size_that_was_never_set", WAYBILL_INVALID_ARGUMENT, "use the _INIT macro",
     [](Good&, waybill_error_t** e) { return CreateContext(SIZE_MAX - 7, e); }},
    {"text_that_is_not_utf8", WAYBILL_INVALID_ARGUMENT, "name is not UTF-8",
     [](Good& good, waybill_error_t** e) {
       return waybill_manifest_add_region(good.manifest, "\xC0\x80", 1, nullptr, e);
     }},
    {"memory_that_is_null", WAYBILL_INVALID_ARGUMENT,
     "\"embedding\": data is NULL and size_bytes 1",
     [](Good& good, waybill_error_t** e) { return CreateRegion(good, nullptr, 1, e); }},
    {"a_length_that_overflows", WAYBILL_INVALID_ARGUMENT, "go beyond the address space",
     [](Good& good, waybill_error_t** e) { return CreateRegion(good, &g_byte, UINT64_MAX, e); }},
    {"a_kind_of_memory_that_is_none", WAYBILL_INVALID_ARGUMENT, "kind 9 is no kind of memory",
     [](Good& good, waybill_error_t** e) { return CreateRegion(good, &g_byte, 1, e, 9); }},
    {"a_name_that_is_empty", WAYBILL_INVALID_ARGUMENT, "add a tensor: a tensor needs a name",
     [](Good& good, waybill_error_t** e) {
       return waybill_manifest_add_tensor(good.manifest, "", WAYBILL_BF16, nullptr, 0, nullptr, e);
     }},
    {"a_dtype_that_is_none", WAYBILL_INVALID_ARGUMENT, "\"t\": ",
     [](Good& good, waybill_error_t** e) {
       return waybill_manifest_add_tensor(good.manifest, "t", 99, nullptr, 0, nullptr, e);
     }},
    {"too_many_dimensions", WAYBILL_INVALID_ARGUMENT, "9 dimensions; at most 8 are allowed",
     [](Good& good, waybill_error_t** e) {
       const int64_t shape[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
       return waybill_manifest_add_tensor(good.manifest, "t", WAYBILL_BF16, shape, 9, nullptr, e);
     }},
    {"an_index_that_is_none", WAYBILL_INVALID_ARGUMENT, "tensor 7 is not there: 1 were added",
     [](Good& good, waybill_error_t** e) {
       return AddShard(good, [](waybill_shard_t& s) { s.tensor_index = 7; }, e);
     }},
    {"a_box_that_is_no_range", WAYBILL_INVALID_ARGUMENT, "of \"weight\": the box is [8, 4)",
     [](Good& good, waybill_error_t** e) {
       static const int64_t begin[] = {8, 0}, end[] = {4, 32};
       return AddShard(
           good,
           [](waybill_shard_t& s) {
             s.dimensions = 2;
             s.begin = begin;
             s.end = end;
           },
           e);
     }},
    {"scales_without_a_quantisation", WAYBILL_INVALID_ARGUMENT, "quantisation is NULL",
     [](Good& good, waybill_error_t** e) {
       return AddShard(good, [](waybill_shard_t& s) { s.content = WAYBILL_CONTENT_SCALES; }, e);
     }},
    {"bytes_that_are_no_manifest", WAYBILL_INVALID_ARGUMENT, "decode a manifest: ",
     [](Good&, waybill_error_t** e) {
       waybill_manifest_t* manifest = nullptr;
       return waybill_manifest_decode("\x80\x80", 2, &manifest, e);
     }},
    {"regions_that_overlap", WAYBILL_INVALID_ARGUMENT, "regions \"left\" and \"right\" overlap",
     [](Good& good, waybill_error_t** e) {
       return CreateWorker(good, 8, WAYBILL_MODE_IN_PLACE, /*read_only=*/false, e);
     }},
    {"a_destination_that_is_read_only", WAYBILL_INVALID_ARGUMENT,
     "regions[0], \"left\" for \"left\": it is read-only",
     [](Good& good, waybill_error_t** e) {
       return CreateWorker(good, 16, WAYBILL_MODE_IN_PLACE, /*read_only=*/true, e);
     }},
    {"shadow_with_memory_of_the_callers", WAYBILL_INVALID_ARGUMENT, "give none, or take mode",
     [](Good& good, waybill_error_t** e) {
       return CreateWorker(good, 16, WAYBILL_MODE_SHADOW, /*read_only=*/false, e);
     }},
    {"shadow_copy_with_nothing_to_copy_to", WAYBILL_INVALID_ARGUMENT, "give one for each region",
     [](Good& good, waybill_error_t** e) {
       return CreateWorker(good, 16, WAYBILL_MODE_SHADOW_COPY, /*read_only=*/false, e);
     }},
    {"a_worker_that_holds_nothing", WAYBILL_INVALID_ARGUMENT,
     "create a worker: the worker holds nothing",
     [](Good& good, waybill_error_t** e) {
       waybill_manifest_t* nothing = nullptr;
       EXPECT_EQ(waybill_manifest_create(&nothing, nullptr), WAYBILL_OK);
       waybill_rank_options_t rank = WAYBILL_RANK_OPTIONS_INIT;
       waybill_worker_options_t options = WAYBILL_WORKER_OPTIONS_INIT;
       options.rank = &rank;
       options.manifest = nothing;
       options.queue = good.job.queue;
       waybill_worker_t* worker = nullptr;
       const auto status = waybill_worker_create(good.job.context, &options, &worker, e);
       waybill_manifest_destroy(nothing);
       return status;
     }},
    {"publishing_before_joining", WAYBILL_FAILED_PRECONDITION, "version 1: it has not joined",
     [](Good& good, waybill_error_t** e) { return Publish(good, 1, 0, e); }},
    {"a_version_of_0", WAYBILL_INVALID_ARGUMENT, "version 0: versions begin at 1",
     [](Good& good, waybill_error_t** e) {
       good.job.Join();
       return Publish(good, 0, 0, e);
     }},
    {"a_traceparent_that_is_none", WAYBILL_INVALID_ARGUMENT,
     "version 1: read a traceparent: \"00-1-2-01\" has 9 characters, not 55",
     [](Good& good, waybill_error_t** e) {
       good.job.Join();
       waybill_publish_options_t options = WAYBILL_PUBLISH_OPTIONS_INIT;
       options.version = 1;
       options.traceparent = "00-1-2-01";
       return waybill_trainer_publish(good.job.trainers[0], &options, 0, nullptr, e);
     }},
    {"a_deadline_in_the_past", WAYBILL_DEADLINE_EXCEEDED, "version 1: the deadline was ",
     [](Good& good, waybill_error_t** e) {
       good.job.Join();
       return Publish(good, 1, 1, e);
     }},
    {"joining_twice", WAYBILL_FAILED_PRECONDITION, "join as a worker: it has joined",
     [](Good& good, waybill_error_t** e) {
       good.job.Join();
       return waybill_worker_join(good.job.workers[0], 0, 0, e);
     }},
    {"joining_after_leaving", WAYBILL_FAILED_PRECONDITION, "it has left: a rank that joins again",
     [](Good& good, waybill_error_t** e) {
       good.job.Join();
       EXPECT_EQ(waybill_trainer_leave(good.job.trainers[0], 0, nullptr), WAYBILL_OK);
       return waybill_trainer_join(good.job.trainers[0], 0, 0, e);
     }},
    {"reading_before_anything_is_shown", WAYBILL_FAILED_PRECONDITION,
     "read what is shown: nothing is shown: it has not joined",
     [](Good& good, waybill_error_t** e) {
       waybill_snapshot_t* snapshot = nullptr;
       return waybill_worker_snapshot(good.job.workers[0], "x", &snapshot, e);
     }},
    {"verifying_before_anything_is_shown", WAYBILL_FAILED_PRECONDITION,
     "verify what is shown: nothing is shown: it has not joined",
     [](Good& good, waybill_error_t** e) {
       uint64_t version = 0;
       return waybill_worker_verify(good.job.workers[0], &version, e);
     }},
    {"a_controller_beyond_loopback_without_a_token", WAYBILL_INVALID_ARGUMENT, "token",
     [](Good& good, waybill_error_t** e) {
       waybill_controller_options_t options = WAYBILL_CONTROLLER_OPTIONS_INIT;
       options.listen = "0.0.0.0:0";
       waybill_controller_t* controller = nullptr;
       return waybill_controller_start(good.job.context, &options, &controller, e);
     }},
    {"a_model_that_there_is_not", WAYBILL_INVALID_ARGUMENT, "gpt9",
     [](Good&, waybill_error_t** e) {
       waybill_layout_options_t options = WAYBILL_LAYOUT_OPTIONS_INIT;
       options.model = "gpt9";
       waybill_layout_t* layout = nullptr;
       return waybill_layout_open(&options, &layout, e);
     }},
    {"a_plan_whose_workers_want_more_than_there_is", WAYBILL_INVALID_ARGUMENT, "\"weight\"",
     [](Good& good, waybill_error_t** e) {
       waybill_manifest_t* half = MakeManifest(0, Job::kRows / 2);
       waybill_plan_options_t options = WAYBILL_PLAN_OPTIONS_INIT;
       options.trainers = &half;
       options.workers = &good.manifest;
       options.trainer_count = options.worker_count = 1;
       waybill_plan_t* plan = nullptr;
       const waybill_status_t status = waybill_plan_build(&options, &plan, e);
       waybill_manifest_destroy(half);
       return status;
     }},
    {"a_plan_for_an_engines_own_order", WAYBILL_INVALID_ARGUMENT,
     "worker 0: tensor \"weight\" [0, 64) x [0, 32) lies in the engine's own order \"marlin\"",
     [](Good& good, waybill_error_t** e) {
       waybill_manifest_t* shuffled = InEngineOrder("marlin");
       waybill_plan_options_t options = WAYBILL_PLAN_OPTIONS_INIT;
       options.trainers = &good.manifest;
       options.workers = &shuffled;
       options.trainer_count = options.worker_count = 1;
       waybill_plan_t* plan = nullptr;
       const waybill_status_t status = waybill_plan_build(&options, &plan, e);
       waybill_manifest_destroy(shuffled);
       return status;
     }},
};

class BadInputTest : public testing::TestWithParam<Case> {};

TEST_P(BadInputTest, IsRefusedAndSaysWhy) {
  const Case& c = GetParam();
  Good good;
  waybill_error_t* error = nullptr;
  const waybill_status_t status = c.call(good, &error);
  const CallResult result = TakeError(status, error);
  EXPECT_EQ(status, c.status) << result.message;
  EXPECT_THAT(result.message, HasSubstr(c.message));
  EXPECT_EQ(result.scope, uint32_t{WAYBILL_SCOPE_CALL});
}

// Nobody has to ask for the error.
TEST_P(BadInputTest, IsRefusedWithoutAnErrorToFillIn) {
  Good good;
  EXPECT_EQ(GetParam().call(good, nullptr), GetParam().status);
}

INSTANTIATE_TEST_SUITE_P(All, BadInputTest, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(BadInput, TwoWorkersOfOneIdentityAreTold) {
  Job first;
  first.Join();
  waybill_manifest_t* manifest = MakeManifest(0, Job::kRows);
  waybill_rank_options_t rank = WAYBILL_RANK_OPTIONS_INIT;
  rank.controller = first.address.c_str();
  rank.job = "capi";
  rank.token = "a secret of the job";
  waybill_worker_options_t options = WAYBILL_WORKER_OPTIONS_INIT;
  options.rank = &rank;
  options.manifest = manifest;
  options.queue = first.queue;
  waybill_worker_t* second = nullptr;
  ASSERT_EQ(waybill_worker_create(first.context, &options, &second, nullptr), WAYBILL_OK);
  ASSERT_EQ(waybill_worker_join(second, 0, 3, nullptr), WAYBILL_OK);
  waybill_event_t joined = first.Await(WAYBILL_EVENT_JOINED);
  EXPECT_EQ(joined.status, WAYBILL_ALREADY_EXISTS);
  EXPECT_THAT(waybill_error_message(joined.error), HasSubstr("worker 0"));
  waybill_event_release(&joined);
  waybill_worker_destroy(second);
  waybill_manifest_destroy(manifest);
}

TEST(BadInput, AWorkerInAnEnginesOwnOrderIsToldWhenItJoins) {
  Job first;
  waybill_manifest_t* manifest = InEngineOrder("deepgemm-ue8m0");
  waybill_blob_t* json = nullptr;
  ASSERT_EQ(waybill_manifest_describe(manifest, &json, nullptr), WAYBILL_OK);
  EXPECT_THAT(TakeBlob(json), HasSubstr(R"("engine_order":"deepgemm-ue8m0")"));
  waybill_rank_options_t rank = WAYBILL_RANK_OPTIONS_INIT;
  rank.controller = first.address.c_str();
  rank.job = "capi";
  rank.token = "a secret of the job";
  waybill_worker_options_t options = WAYBILL_WORKER_OPTIONS_INIT;
  options.rank = &rank;
  options.manifest = manifest;
  options.queue = first.queue;
  waybill_worker_t* worker = nullptr;
  ASSERT_EQ(waybill_worker_create(first.context, &options, &worker, nullptr), WAYBILL_OK);
  ASSERT_EQ(waybill_worker_join(worker, 0, 3, nullptr), WAYBILL_OK);
  waybill_event_t joined = first.Await(WAYBILL_EVENT_JOINED);
  EXPECT_EQ(joined.status, WAYBILL_INVALID_ARGUMENT);
  EXPECT_THAT(waybill_error_message(joined.error),
              HasSubstr("worker 0: tensor \"weight\" [0, 64) x [0, 32) lies in the engine's own "
                        "order \"deepgemm-ue8m0\""));
  waybill_event_release(&joined);
  waybill_worker_destroy(worker);
  waybill_manifest_destroy(manifest);
}

TEST(BadInput, AForkedChildIsToldSoAndDoesNotHang) {
  Job job;
  job.Join();
  const pid_t child = fork();
  if (child == 0) {
    waybill_error_t* error = nullptr;
    waybill_context_t* context = nullptr;
    const waybill_status_t status = waybill_context_create(nullptr, &context, &error);
    const bool told = status == WAYBILL_FAILED_PRECONDITION &&
                      std::string(waybill_error_message(error)).find("forked") != std::string::npos;
    waybill_error_destroy(error);
    // What the parent made is not the child's to destroy.
    waybill_trainer_destroy(job.trainers[0]);
    waybill_worker_destroy(job.workers[0]);
    waybill_controller_destroy(job.controller);
    waybill_queue_destroy(job.queue);
    _exit(told ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  job.Publish(1);
  job.AwaitCommitted(1);
  EXPECT_TRUE(job.Shows(0, 1));
}

}  // namespace
}  // namespace waybill::capi
