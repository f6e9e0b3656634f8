// SPDX-License-Identifier: Apache-2.0

// Random calls in random order, with handles that are good, dead, of another kind, or none.
// Whatever comes back: no crash, no hang, and at the end no handle is left but those that were not
// destroyed.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "capi/handle_table.h"
#include "capi/testing/job.h"

namespace waybill::capi {
namespace {

class Caller {
 public:
  explicit Caller(uint64_t seed) : random_(seed), memory_(4096) {}

  // Destroys every object that there was.
  ~Caller() {
    for (void* handle : handles_) Destroy(handle);
    waybill_error_destroy(error_);
  }

  void CallOnce() {
    static const std::vector<void (Caller::*)()> kCalls = {
        &Caller::MakeContext, &Caller::MakeQueue,  &Caller::MakeRegion,  &Caller::MakeManifest,
        &Caller::AddToOne,    &Caller::MakeLayout, &Caller::LayOut,      &Caller::MakePlan,
        &Caller::Explain,     &Caller::MakeRank,   &Caller::JoinOrLeave, &Caller::Publish,
        &Caller::TakeEvent,   &Caller::Answer,     &Caller::Ask,         &Caller::Read,
        &Caller::DestroyOne,  &Caller::DestroyOne, &Caller::ReadErrors,  &Caller::Controlling,
    };
    (this->*kCalls[Below(kCalls.size())])();
  }

 private:
  uint64_t Below(uint64_t end) { return random_() % end; }
  bool Rarely() { return Below(8) == 0; }

  // Any handle that ever was, or none, or a number.
  template <typename T>
  T* Some() {
    const uint64_t how = Below(16);
    if (how == 0 || handles_.empty()) return nullptr;
    if (how == 1) return reinterpret_cast<T*>(random_());
    if (how == 2) return reinterpret_cast<T*>(memory_.data());
    return reinterpret_cast<T*>(handles_[Below(handles_.size())]);
  }
  // More often than not one that was made as that kind.
  template <typename T>
  T* Likely(std::vector<T*>& of_kind) {
    return Rarely() || of_kind.empty() ? Some<T>() : of_kind[Below(of_kind.size())];
  }
  // By reference: the status is that of the call which makes it.
  template <typename T>
  void Keep(waybill_status_t status, T* const& made, std::vector<T*>& of_kind) {
    if (status != WAYBILL_OK || made == nullptr) return;
    of_kind.push_back(made);
    handles_.push_back(made);
  }
  template <typename T>
  void Keep(waybill_status_t status, T* const& made) {
    if (status == WAYBILL_OK && made != nullptr) handles_.push_back(made);
  }
  waybill_error_t** Error() {
    if (Below(2) == 0) return nullptr;
    if (error_ != nullptr) handles_.push_back(std::exchange(error_, nullptr));
    return &error_;
  }
  // With a size that is wrong now and then; there are as many bytes behind it.
  template <typename T>
  T* Spoilt(T& options) {
    if (!Rarely()) return Rarely() ? nullptr : &options;
    Buffer& buffer = spoilt_[++spoilt_count_ % spoilt_.size()];
    std::fill(buffer.bytes.begin(), buffer.bytes.end(), static_cast<std::byte>(Below(2)));
    T* copy = new (buffer.bytes.data()) T(options);
    copy->struct_size = Below(3) == 0 ? 0 : Below(2) == 0 ? sizeof(T) + 8 : Below(200);
    return copy;
  }
  const char* Word() {
    static const char* const kWords[] = {"w",     "",     "gpt2", "\xFF",      "fsdp=2",     "tp=1",
                                         nullptr, "json", "text", "fp8-block", "127.0.0.1:1"};
    return kWords[Below(std::size(kWords))];
  }

  void MakeContext() {
    waybill_context_t* made = nullptr;
    const auto status = waybill_context_create(nullptr, Rarely() ? nullptr : &made, Error());
    Keep(status, made, contexts_);
  }
  void MakeQueue() {
    waybill_queue_t* made = nullptr;
    Keep(waybill_queue_create(Likely(contexts_), &made, Error()), made, queues_);
  }
  void MakeRegion() {
    waybill_region_options_t options = WAYBILL_REGION_OPTIONS_INIT;
    options.data = memory_.data() + Below(memory_.size() - 64);
    options.size_bytes = Rarely() ? random_() : 64;
    options.kind = Rarely() ? static_cast<uint32_t>(Below(5)) : 0;
    options.name = Word();
    waybill_region_t* made = nullptr;
    Keep(waybill_region_create(Likely(contexts_), Spoilt(options), &made, Error()), made, regions_);
  }
  void MakeManifest() {
    waybill_manifest_t* made = nullptr;
    Keep(waybill_manifest_create(&made, Error()), made, manifests_);
    const int64_t shape[] = {16};
    waybill_shard_t shard = WAYBILL_SHARD_INIT;
    std::ignore = waybill_manifest_add_region(made, "r", 64, nullptr, nullptr);
    std::ignore = waybill_manifest_add_tensor(made, "t", WAYBILL_F32, shape, 1, nullptr, nullptr);
    std::ignore = waybill_manifest_add_shard(made, &shard, nullptr, nullptr);
  }
  void AddToOne() {
    waybill_manifest_t* manifest = Likely(manifests_);
    int64_t numbers[10];
    for (int64_t& n : numbers) n = Rarely() ? static_cast<int64_t>(random_()) : int64_t(Below(8));
    waybill_quantisation_t q = WAYBILL_QUANTISATION_INIT;
    q.rounding = static_cast<uint32_t>(Below(5));
    q.block_rows = static_cast<uint32_t>(Below(3) * 64);
    waybill_shard_t shard = WAYBILL_SHARD_INIT;
    shard.tensor_index = static_cast<uint32_t>(Below(3));
    shard.region_index = static_cast<uint32_t>(Below(3));
    shard.offset_bytes = Rarely() ? random_() : Below(64);
    shard.content = static_cast<uint32_t>(Below(4));
    shard.quantisation = Below(2) == 0 ? nullptr : Spoilt(q);
    shard.dimensions = static_cast<uint32_t>(Below(10));
    shard.begin = Rarely() ? nullptr : numbers;
    shard.end = Rarely() ? nullptr : numbers + 1;
    shard.strides = Below(2) == 0 ? nullptr : numbers;
    waybill_padding_t padding = WAYBILL_PADDING_INIT;
    padding.dimensions = static_cast<uint32_t>(Below(10));
    padding.extents = Rarely() ? nullptr : numbers;
    switch (Below(5)) {
      case 0:
        std::ignore = waybill_manifest_add_region(manifest, Word(), random_(), nullptr, Error());
        return;
      case 1:
        std::ignore = waybill_manifest_add_tensor(manifest, Word(), uint32_t(Below(20)), numbers,
                                                  uint32_t(Below(10)), nullptr, Error());
        return;
      case 2:
        std::ignore = waybill_manifest_add_shard(manifest, Spoilt(shard), nullptr, Error());
        return;
      case 3:
        std::ignore = waybill_manifest_add_padding(manifest, Spoilt(padding), nullptr, Error());
        return;
      default:
        std::ignore =
            waybill_manifest_add_alias(manifest, Word(), uint32_t(Below(3)), nullptr, Error());
        return;
    }
  }
  void MakeLayout() {
    waybill_layout_options_t options = WAYBILL_LAYOUT_OPTIONS_INIT;
    options.model = Rarely() ? Word() : "gpt2";
    options.layers = 1;
    waybill_layout_t* made = nullptr;
    Keep(waybill_layout_open(Spoilt(options), &made, Error()), made, layouts_);
  }
  void LayOut() {
    waybill_manifest_t* made = nullptr;
    const auto rank = static_cast<uint32_t>(Below(3));
    if (Below(2) == 0) {
      Keep(waybill_layout_trainer_manifest(Likely(layouts_), Word(), rank, &made, Error()), made,
           manifests_);
    } else {
      Keep(waybill_layout_worker_manifest(Likely(layouts_), Word(), rank, Word(), Word(), &made,
                                          Error()),
           made, manifests_);
    }
    std::ignore =
        waybill_layout_load(Likely(layouts_), Likely(manifests_), memory_.data(), 64, Error());
  }
  void MakePlan() {
    const waybill_manifest_t* some[2] = {Likely(manifests_), Likely(manifests_)};
    waybill_plan_options_t options = WAYBILL_PLAN_OPTIONS_INIT;
    options.trainers = Rarely() ? nullptr : some;
    options.workers = some + 1;
    options.trainer_count = options.worker_count = 1;
    waybill_plan_t* made = nullptr;
    Keep(waybill_plan_build(Spoilt(options), &made, Error()), made, plans_);
  }
  void Explain() {
    waybill_blob_t* text = nullptr;
    Keep(waybill_plan_explain(Likely(plans_), Word(), &text, Error()), text);
    waybill_plan_summary_t summary = WAYBILL_PLAN_SUMMARY_INIT;
    std::ignore = waybill_plan_summarise(Likely(plans_), &summary, Error());
    waybill_blob_t* json = nullptr;
    Keep(waybill_manifest_describe(Likely(manifests_), &json, Error()), json);
  }
  void MakeRank() {
    waybill_rank_options_t rank = WAYBILL_RANK_OPTIONS_INIT;
    rank.controller = "127.0.0.1:1";
    rank.rank = static_cast<uint32_t>(Below(2));
    rank.fabric = Rarely() ? Word() : "local";
    waybill_region_t* region = Likely(regions_);
    if (Below(2) == 0) {
      waybill_trainer_options_t options = WAYBILL_TRAINER_OPTIONS_INIT;
      options.rank = Spoilt(rank);
      options.manifest = Likely(manifests_);
      options.regions = &region;
      options.region_count = Rarely() ? 0 : 1;
      options.queue = Likely(queues_);
      waybill_trainer_t* made = nullptr;
      Keep(waybill_trainer_create(Likely(contexts_), Spoilt(options), &made, Error()), made,
           trainers_);
    } else {
      waybill_worker_options_t options = WAYBILL_WORKER_OPTIONS_INIT;
      options.rank = Spoilt(rank);
      options.manifest = Likely(manifests_);
      options.regions = &region;
      options.region_count = Below(2) == 0 ? 0 : 1;
      options.mode = static_cast<uint32_t>(Below(5));
      options.ask = static_cast<uint32_t>(Below(9));
      options.queue = Likely(queues_);
      waybill_worker_t* made = nullptr;
      Keep(waybill_worker_create(Likely(contexts_), Spoilt(options), &made, Error()), made,
           workers_);
    }
  }
  // Nobody listens at port 1: a join ends when it is cancelled, or by its deadline.
  void JoinOrLeave() {
    const int64_t deadline = waybill_now_ns() + static_cast<int64_t>(Below(2'000'000));
    std::ignore = waybill_trainer_join(Likely(trainers_), deadline, 1, Error());
    std::ignore = waybill_worker_join(Likely(workers_), deadline, 2, Error());
    if (Rarely()) std::ignore = waybill_trainer_leave(Likely(trainers_), 3, Error());
    if (Rarely()) std::ignore = waybill_worker_leave(Likely(workers_), 4, Error());
  }
  void Publish() {
    waybill_publish_options_t options = WAYBILL_PUBLISH_OPTIONS_INIT;
    options.version = Below(4);
    waybill_update_t* made = nullptr;
    Keep(waybill_trainer_publish(Likely(trainers_), Spoilt(options), 7, &made, Error()), made);
  }
  void TakeEvent() {
    waybill_event_t filled = WAYBILL_EVENT_INIT;
    waybill_event_t* event = Spoilt(filled);
    const int64_t soon = waybill_now_ns() + static_cast<int64_t>(Below(100'000));
    if (waybill_queue_wait(Likely(queues_), soon, event, Error()) == WAYBILL_OK) {
      if (Below(2) == 0) handles_.push_back(std::exchange(event->error, nullptr));
      waybill_event_release(event);
    }
    std::ignore = waybill_queue_post(Likely(queues_), 9, Error());
    (void)waybill_queue_fd(Likely(queues_));
  }
  void Answer() {
    const auto kind = static_cast<uint32_t>(14 + Below(6));
    std::ignore = waybill_update_accept(Some<waybill_update_t>(), kind, Error());
    std::ignore = waybill_update_refuse(Some<waybill_update_t>(), kind, Word(), Error());
    std::ignore = waybill_update_cancel(Some<waybill_update_t>(), Error());
    (void)waybill_update_version(Some<waybill_update_t>());
  }
  void Ask() {
    waybill_progress_t progress = WAYBILL_PROGRESS_INIT;
    std::ignore = waybill_trainer_progress(Likely(trainers_), Spoilt(progress), Error());
    waybill_progress_t of_worker = WAYBILL_PROGRESS_INIT;
    std::ignore = waybill_worker_progress(Likely(workers_), &of_worker, Error());
    waybill_worker_state_t state = WAYBILL_WORKER_STATE_INIT;
    std::ignore = waybill_worker_state(Likely(workers_), &state, Error());
    waybill_blob_t* json = nullptr;
    Keep(waybill_trainer_describe(Likely(trainers_), &json, Error()), json);
    waybill_blob_t* other = nullptr;
    Keep(waybill_worker_describe(Likely(workers_), &other, Error()), other);
  }
  void Read() {
    waybill_snapshot_t* made = nullptr;
    Keep(waybill_worker_snapshot(Likely(workers_), Word(), &made, Error()), made);
    uint64_t version = 0;
    std::ignore = waybill_worker_verify(Likely(workers_), &version, Error());
    const void* data = nullptr;
    uint64_t size = 0;
    std::ignore = waybill_snapshot_region(Some<waybill_snapshot_t>(), uint32_t(Below(3)), &data,
                                          &size, Error());
    (void)waybill_snapshot_version(Some<waybill_snapshot_t>());
  }
  void Controlling() {
    waybill_blob_t* json = nullptr;
    Keep(waybill_controller_status(Some<waybill_controller_t>(), &json, Error()), json);
    waybill_blob_t* address = nullptr;
    Keep(waybill_controller_address(Some<waybill_controller_t>(), &address, Error()), address);
  }
  void ReadErrors() {
    const auto* error = Some<waybill_error_t>();
    (void)std::string(waybill_error_message(error));
    (void)waybill_error_code(error);
    (void)waybill_error_scope(error);
    const auto* blob = Some<waybill_blob_t>();
    const void* data = waybill_blob_data(blob);
    (void)std::string(static_cast<const char*>(data), waybill_blob_size(blob));
  }
  void DestroyOne() { Destroy(Some<void>()); }

  // By every function: that of another kind does nothing.
  static void Destroy(void* handle) {
    const auto as = [&](auto destroy) { destroy(handle); };
    as([](void* h) { waybill_error_destroy(static_cast<waybill_error_t*>(h)); });
    as([](void* h) { waybill_blob_destroy(static_cast<waybill_blob_t*>(h)); });
    as([](void* h) { waybill_region_destroy(static_cast<waybill_region_t*>(h)); });
    as([](void* h) { waybill_queue_destroy(static_cast<waybill_queue_t*>(h)); });
    as([](void* h) { waybill_context_destroy(static_cast<waybill_context_t*>(h)); });
    as([](void* h) { waybill_manifest_destroy(static_cast<waybill_manifest_t*>(h)); });
    as([](void* h) { waybill_layout_destroy(static_cast<waybill_layout_t*>(h)); });
    as([](void* h) { waybill_plan_destroy(static_cast<waybill_plan_t*>(h)); });
    as([](void* h) { waybill_controller_destroy(static_cast<waybill_controller_t*>(h)); });
    as([](void* h) { waybill_trainer_destroy(static_cast<waybill_trainer_t*>(h)); });
    as([](void* h) { waybill_worker_destroy(static_cast<waybill_worker_t*>(h)); });
    as([](void* h) { waybill_update_destroy(static_cast<waybill_update_t*>(h)); });
    as([](void* h) { waybill_snapshot_destroy(static_cast<waybill_snapshot_t*>(h)); });
  }

  std::mt19937_64 random_;
  std::vector<std::byte> memory_;
  struct Buffer {
    alignas(8) std::array<std::byte, 512> bytes;
  };
  std::array<Buffer, 2> spoilt_;  // A struct points to another one at most.
  size_t spoilt_count_ = 0;
  std::vector<void*> handles_;
  std::vector<waybill_context_t*> contexts_;
  std::vector<waybill_queue_t*> queues_;
  std::vector<waybill_region_t*> regions_;
  std::vector<waybill_manifest_t*> manifests_;
  std::vector<waybill_layout_t*> layouts_;
  std::vector<waybill_plan_t*> plans_;
  std::vector<waybill_trainer_t*> trainers_;
  std::vector<waybill_worker_t*> workers_;
  waybill_error_t* error_ = nullptr;
};

TEST(Misuse, RandomCallsNeitherCrashNorLeak) {
  const uint64_t before = HandleTable::Instance().size();
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    {
      Caller caller(seed);
      for (int i = 0; i < 500; ++i) caller.CallOnce();
    }
    ASSERT_EQ(HandleTable::Instance().size(), before);
  }
}

// Every object that says [any], from several threads at once.
TEST(Misuse, ThreadsMayUseOneObjectAtTheSameTime) {
  Job job({.workers = 2});
  job.Join();
  std::atomic<bool> done = false;
  const auto ask = [&] {
    while (!done) {
      waybill_progress_t progress = WAYBILL_PROGRESS_INIT;
      EXPECT_EQ(waybill_trainer_progress(job.trainers[0], &progress, nullptr), WAYBILL_OK);
      EXPECT_EQ(waybill_worker_progress(job.workers[1], &progress, nullptr), WAYBILL_OK);
      waybill_worker_state_t state = WAYBILL_WORKER_STATE_INIT;
      EXPECT_EQ(waybill_worker_state(job.workers[0], &state, nullptr), WAYBILL_OK);
      waybill_blob_t* json = nullptr;
      EXPECT_EQ(waybill_trainer_describe(job.trainers[0], &json, nullptr), WAYBILL_OK);
      waybill_blob_destroy(json);
      EXPECT_EQ(waybill_controller_status(job.controller, &json, nullptr), WAYBILL_OK);
      waybill_blob_destroy(json);
      waybill_snapshot_t* snapshot = nullptr;
      if (waybill_worker_snapshot(job.workers[0], "thread", &snapshot, nullptr) == WAYBILL_OK) {
        const void* data = nullptr;
        uint64_t size = 0;
        EXPECT_EQ(waybill_snapshot_region(snapshot, 0, &data, &size, nullptr), WAYBILL_OK);
        waybill_snapshot_destroy(snapshot);
      }
      EXPECT_EQ(waybill_queue_post(job.queue, 1, nullptr), WAYBILL_OK);
    }
  };
  std::thread first(ask), second(ask);
  for (uint64_t version = 1; version <= 20; ++version) {
    job.Publish(version);
    job.AwaitCommitted(version);
  }
  done = true;
  first.join();
  second.join();
  EXPECT_TRUE(job.Shows(0, 20));
}

TEST(Misuse, ThreadsMayDestroyWhatOthersUse) {
  for (int round = 0; round < 20; ++round) {
    Job job;
    job.Join();
    job.Publish(1);
    std::thread user([&] {
      waybill_worker_state_t state = WAYBILL_WORKER_STATE_INIT;
      while (waybill_worker_state(job.workers[0], &state, nullptr) == WAYBILL_OK) {
      }
    });
    std::thread waiter([&] {
      waybill_event_t event = WAYBILL_EVENT_INIT;
      while (waybill_queue_wait(job.queue, 0, &event, nullptr) == WAYBILL_OK) {
        waybill_event_release(&event);
      }
    });
    waybill_trainer_destroy(job.trainers[0]);
    waybill_worker_destroy(job.workers[0]);
    waybill_queue_destroy(job.queue);
    user.join();
    waiter.join();
  }
}

}  // namespace
}  // namespace waybill::capi
