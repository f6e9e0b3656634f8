// SPDX-License-Identifier: Apache-2.0

#include "capi/testing/job.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace waybill::capi {
namespace {

constexpr int64_t kPatience = 20'000'000'000;

void Check(waybill_status_t status, waybill_error_t* error, const char* what) {
  if (status == WAYBILL_OK) return;
  std::fprintf(stderr, "%s: %s: %s\n", what, waybill_status_name(status),
               waybill_error_message(error));
  std::abort();
}

uint16_t Element(uint64_t version, int64_t i) {
  return static_cast<uint16_t>(version * 1000 + static_cast<uint64_t>(i));
}

}  // namespace

CallResult TakeError(waybill_status_t status, waybill_error_t* error) {
  CallResult result{status, waybill_error_message(error),
                    status == WAYBILL_OK ? 0 : waybill_error_scope(error)};
  waybill_error_destroy(error);
  return result;
}

std::string TakeBlob(waybill_blob_t* blob) {
  std::string bytes(static_cast<const char*>(waybill_blob_data(blob)), waybill_blob_size(blob));
  waybill_blob_destroy(blob);
  return bytes;
}

waybill_manifest_t* MakeManifest(int64_t begin, int64_t end) {
  waybill_error_t* e = nullptr;
  waybill_manifest_t* manifest = nullptr;
  Check(waybill_manifest_create(&manifest, &e), e, "manifest");
  const int64_t shape[] = {Job::kRows, Job::kColumns};
  const auto bytes = static_cast<uint64_t>((end - begin) * Job::kColumns * 2);
  Check(waybill_manifest_add_region(manifest, "memory", bytes, nullptr, &e), e, "region");
  Check(waybill_manifest_add_tensor(manifest, "weight", WAYBILL_BF16, shape, 2, nullptr, &e), e,
        "tensor");
  waybill_shard_t shard = WAYBILL_SHARD_INIT;
  const int64_t first[] = {begin, 0}, last[] = {end, Job::kColumns};
  shard.dimensions = 2;
  shard.begin = first;
  shard.end = last;
  Check(waybill_manifest_add_shard(manifest, &shard, nullptr, &e), e, "shard");
  return manifest;
}

Job::Job(const JobOptions& options)
    : options_(options),
      memory_(options.trainers),
      worker_memory_(options.workers),
      device_memory_(options.trainers) {
  waybill_error_t* e = nullptr;
  waybill_context_options_t logged = WAYBILL_CONTEXT_OPTIONS_INIT;
  logged.log_sink = options.log_sink;
  logged.log_user = options.log_user;
  Check(waybill_context_create(&logged, &context, &e), e, "context");
  Check(waybill_queue_create(context, &queue, &e), e, "queue");
  waybill_controller_options_t c = WAYBILL_CONTROLLER_OPTIONS_INIT;
  c.listen = "127.0.0.1:0";
  c.job = "capi";
  c.token = "a secret of the job";
  Check(waybill_controller_start(context, &c, &controller, &e), e, "controller");
  waybill_blob_t* where = nullptr;
  Check(waybill_controller_address(controller, &where, &e), e, "address");
  address = TakeBlob(where);
  for (uint32_t t = 0; t < options.trainers; ++t) MakeTrainer(t);
  for (uint32_t w = 0; w < options.workers; ++w) MakeWorker(w);
}

Job::~Job() {
  for (waybill_event_t& event : others) waybill_event_release(&event);
  for (waybill_worker_t* worker : workers) waybill_worker_destroy(worker);
  for (waybill_trainer_t* trainer : trainers) waybill_trainer_destroy(trainer);
  for (waybill_region_t* region : trainer_regions) waybill_region_destroy(region);
  for (waybill_region_t* region : worker_regions) waybill_region_destroy(region);
  waybill_controller_destroy(controller);
  waybill_queue_destroy(queue);
  waybill_context_destroy(context);
}

waybill_rank_options_t Job::RankOptions(uint32_t rank, uint32_t world) const {
  waybill_rank_options_t options = WAYBILL_RANK_OPTIONS_INIT;
  options.controller = address.c_str();
  options.job = "capi";
  options.token = "a secret of the job";
  options.rank = rank;
  options.world = world;
  options.fabric = options_.fabric.c_str();
  options.user = rank;
  options.rack = options_.rack;
  return options;
}

waybill_region_options_t Job::RegionOptions(std::vector<uint16_t>& memory) const {
  waybill_region_options_t options = WAYBILL_REGION_OPTIONS_INIT;
  options.size_bytes = memory.size() * 2;
  options.data = memory.data();
  if (options_.device == nullptr) return options;
  options.data = options_.device->Allocate(options.size_bytes);
  options.kind = WAYBILL_MEMORY_DEVICE;
  return options;
}

void Job::MakeTrainer(uint32_t t) {
  waybill_error_t* e = nullptr;
  const int64_t begin = kRows * t / options_.trainers, end = kRows * (t + 1) / options_.trainers;
  memory_[t].resize(static_cast<size_t>((end - begin) * kColumns));
  waybill_region_options_t r = RegionOptions(memory_[t]);
  device_memory_[t] = r.data;
  r.read_only = 1;
  Check(waybill_region_create(context, &r, &trainer_regions.emplace_back(), &e), e, "region");
  waybill_manifest_t* manifest = MakeManifest(begin, end);
  const waybill_rank_options_t rank = RankOptions(t, options_.trainers);
  waybill_trainer_options_t o = WAYBILL_TRAINER_OPTIONS_INIT;
  o.rank = &rank;
  o.manifest = manifest;
  o.regions = &trainer_regions.back();
  o.region_count = 1;
  o.queue = queue;
  Check(waybill_trainer_create(context, &o, &trainers.emplace_back(), &e), e, "trainer");
  waybill_manifest_destroy(manifest);
}

void Job::MakeWorker(uint32_t w) {
  waybill_error_t* e = nullptr;
  waybill_manifest_t* manifest = MakeManifest(0, kRows);
  const waybill_rank_options_t rank = RankOptions(w, options_.workers);
  waybill_worker_options_t o = WAYBILL_WORKER_OPTIONS_INIT;
  o.rank = &rank;
  o.manifest = manifest;
  o.mode = options_.mode;
  o.gpu = options_.gpu;
  o.ask = options_.ask;
  o.queue = queue;
  if (options_.mode != WAYBILL_MODE_SHADOW) {
    worker_memory_[w].resize(kRows * kColumns);
    const waybill_region_options_t r = RegionOptions(worker_memory_[w]);
    Check(waybill_region_create(context, &r, &worker_regions.emplace_back(), &e), e, "region");
    o.regions = &worker_regions.back();
    o.region_count = 1;
  }
  Check(waybill_worker_create(context, &o, &workers.emplace_back(), &e), e, "worker");
  waybill_manifest_destroy(manifest);
}

void Job::Join() {
  waybill_error_t* e = nullptr;
  const int64_t deadline = waybill_now_ns() + kPatience;
  for (waybill_trainer_t* t : trainers) Check(waybill_trainer_join(t, deadline, 1, &e), e, "join");
  for (waybill_worker_t* w : workers) Check(waybill_worker_join(w, deadline, 2, &e), e, "join");
  for (size_t i = 0; i < trainers.size() + workers.size(); ++i) {
    waybill_event_t event = Await(WAYBILL_EVENT_JOINED);
    Check(event.status, event.error, "joined");
    waybill_event_release(&event);
  }
}

void Job::Fill(uint64_t version) {
  int64_t i = 0;
  for (size_t t = 0; t < memory_.size(); ++t) {
    for (uint16_t& element : memory_[t]) element = Element(version, i++);
    if (options_.device == nullptr) continue;
    options_.device->Copy(device_memory_[t], memory_[t].data(), memory_[t].size() * 2);
  }
}

void Job::Publish(uint64_t version, waybill_update_t** update) {
  Fill(version);
  waybill_error_t* e = nullptr;
  waybill_publish_options_t o = WAYBILL_PUBLISH_OPTIONS_INIT;
  o.version = version;
  o.deadline_ns = waybill_now_ns() + kPatience;
  for (waybill_trainer_t* t : trainers) {
    Check(waybill_trainer_publish(t, &o, version, update, &e), e, "publish");
    update = nullptr;
  }
}

waybill_event_t Job::Await(uint32_t kind) {
  for (size_t i = 0; i < others.size(); ++i) {
    if (others[i].kind != kind) continue;
    const waybill_event_t event = others[i];
    others.erase(others.begin() + static_cast<ptrdiff_t>(i));
    return event;
  }
  const int64_t deadline = waybill_now_ns() + kPatience;
  while (true) {
    waybill_event_t event = WAYBILL_EVENT_INIT;
    waybill_error_t* e = nullptr;
    Check(waybill_queue_wait(queue, deadline, &event, &e), e, "wait");
    if (event.kind == kind) return event;
    others.push_back(event);
  }
}

void Job::AwaitCommitted(uint64_t version) {
  for (size_t i = 0; i < 2 * trainers.size(); ++i) {
    waybill_event_t event =
        Await(i < trainers.size() ? WAYBILL_EVENT_PUBLISHED : WAYBILL_EVENT_OUTCOME);
    Check(event.status, event.error, "publish");
    if (event.version != version) std::abort();
    waybill_event_release(&event);
  }
}

bool Job::Shows(uint32_t w, uint64_t version) const {
  waybill_error_t* e = nullptr;
  waybill_snapshot_t* snapshot = nullptr;
  Check(waybill_worker_snapshot(workers[w], "test", &snapshot, &e), e, "snapshot");
  const void* data = nullptr;
  uint64_t size = 0;
  Check(waybill_snapshot_region(snapshot, 0, &data, &size, &e), e, "region");
  bool right = waybill_snapshot_version(snapshot) == version && size == kBytes;
  std::vector<char> here(size);
  if (options_.gpu != 0 || (options_.device != nullptr && options_.mode != WAYBILL_MODE_SHADOW)) {
    options_.device->Copy(here.data(), data, size);
    data = here.data();
  }
  for (int64_t i = 0; right && i < kRows * kColumns; ++i) {
    const uint16_t expected = Element(version, i);
    right = std::memcmp(static_cast<const char*>(data) + i * 2, &expected, 2) == 0;
  }
  waybill_snapshot_destroy(snapshot);
  return right;
}

}  // namespace waybill::capi
