// SPDX-License-Identifier: Apache-2.0

// Trainers, workers, their updates and snapshots.
#include "bindings/python/waybill/extension.h"

namespace waybill::python {

namespace {

using KeptTrainer = Kept<Trainer>;
using KeptUpdate = Kept<Update>;
using KeptWorker = Kept<Worker>;
using KeptSnapshot = Kept<Snapshot>;

using Regions = std::vector<std::shared_ptr<KeptRegion>>;

std::vector<waybill_region_t*> HandlesOf(const Regions& regions) {
  std::vector<waybill_region_t*> handles;
  handles.reserve(regions.size());
  for (const auto& region : regions) handles.push_back(region->get());
  return handles;
}

std::unique_ptr<KeptTrainer> MakeTrainer(const KeptContext& context,
                                         const Options<waybill_rank_options_t>& identity,
                                         const Options<waybill_trainer_options_t>& given,
                                         const KeptManifest& manifest, const Regions& regions,
                                         const KeptQueue& queue) {
  const std::vector<waybill_region_t*> handles = HandlesOf(regions);
  waybill_trainer_options_t options = given.c;
  options.rank = &identity.c;
  options.manifest = manifest.get();
  options.regions = handles.data();
  options.region_count = static_cast<uint32_t>(handles.size());
  options.queue = queue.get();
  return std::make_unique<KeptTrainer>(
      Make<Trainer>(waybill_trainer_create, context.get(), &options));
}

// `also_ask`: what the binding asks of its own accord.
std::unique_ptr<KeptWorker> MakeWorker(const KeptContext& context,
                                       const Options<waybill_rank_options_t>& identity,
                                       const Options<waybill_worker_options_t>& given,
                                       const KeptManifest& manifest, const Regions& regions,
                                       const KeptQueue& queue, uint32_t also_ask) {
  const std::vector<waybill_region_t*> handles = HandlesOf(regions);
  waybill_worker_options_t options = given.c;
  options.rank = &identity.c;
  options.manifest = manifest.get();
  options.regions = handles.data();
  options.region_count = static_cast<uint32_t>(handles.size());
  options.queue = queue.get();
  options.ask |= also_ask;
  return std::make_unique<KeptWorker>(Make<Worker>(waybill_worker_create, context.get(), &options));
}

std::unique_ptr<KeptUpdate> Publish(const KeptTrainer& self,
                                    const Options<waybill_publish_options_t>& options,
                                    uint64_t token) {
  return std::make_unique<KeptUpdate>(
      Make<Update>(waybill_trainer_publish, self.get(), &options.c, token));
}

template <typename Rank, auto ask>
abi3::Object Progress(const Rank& self) {
  static const char* const kStages[WAYBILL_STAGE_COUNT] = {"exchange", "stage",  "post",  "wait",
                                                           "receive",  "verify", "commit"};
  waybill_progress_t p = WAYBILL_PROGRESS_INIT;
  {
    const abi3::Unlocked unlocked;  // Who holds what is asked may be logging.
    Call(ask, self.get(), &p);
  }
  abi3::Dict stages;
  for (int i = 0; i < WAYBILL_STAGE_COUNT; ++i) {
    if (p.begin_ns[i] != 0) stages.Set(kStages[i], abi3::Tuple(p.begin_ns[i], p.end_ns[i]));
  }
  return abi3::Dict()
      .Set("version", p.version)
      .Set("planned_bytes", p.planned_bytes)
      .Set("bytes", p.bytes)
      .Set("writes", p.writes)
      .Set("stores", p.stores)
      .Set("immediates", p.immediates)
      .Set("maxima_messages", p.maxima_messages)
      .Set("maxima_bytes", p.maxima_bytes)
      .Set("nonfinite", p.nonfinite)
      .Set("stages_ns", stages.object())
      .object();
}

abi3::Object State(const KeptWorker& self) {
  waybill_worker_state_t s = WAYBILL_WORKER_STATE_INIT;
  {
    const abi3::Unlocked unlocked;
    Call(waybill_worker_state, self.get(), &s);
  }
  return abi3::Dict()
      .Set("shown_version", s.shown_version)
      .Set("joined", s.joined != 0)
      .Set("dirty", s.dirty != 0)
      .Set("in_doubt", s.in_doubt != 0)
      .Set("catching_up", s.catching_up != 0)
      .Set("stragglers", s.stragglers)
      .Set("repeats", s.repeats)
      .Set("renewals", s.renewals)
      .Set("unchanged_versions", s.unchanged_versions)
      .Set("exact", s.exact != 0)
      .object();
}

// One region of a snapshot, for the buffer protocol: whoever has a view of it has the hold.
class SnapshotBytes {
 public:
  // `owner`: of memory that is not Waybill's.
  SnapshotBytes(std::shared_ptr<KeptSnapshot> snapshot, uint32_t region_index, abi3::Object owner)
      : owner_(std::move(owner)), snapshot_(std::move(snapshot)) {
    Call(waybill_snapshot_region, snapshot_->get(), region_index, &data_, &size_bytes_);
  }
  uintptr_t address() const { return reinterpret_cast<uintptr_t>(data_); }
  // Of host memory only.
  abi3::ReadOnlyBytes Bytes() const { return {data_, size_bytes_}; }

 private:
  const abi3::Object owner_;
  const std::shared_ptr<KeptSnapshot> snapshot_;
  const void* data_ = nullptr;
  uint64_t size_bytes_ = 0;
};

std::shared_ptr<KeptSnapshot> TakeSnapshot(const KeptWorker& self, const std::string& holder) {
  return std::make_shared<KeptSnapshot>(
      Make<Snapshot>(waybill_worker_snapshot, self.get(), holder.c_str()));
}

void AddTrainer(abi3::Module& module) {
  module.Constant("ANY_RANK", WAYBILL_ANY_RANK);
  abi3::Class<KeptUpdate>(module, "Update")
      .MethodUnlocked<"cancel",
                      [](const KeptUpdate& self) { Call(waybill_update_cancel, self.get()); }>()
      .MethodUnlocked<"refuse",
                      [](const KeptUpdate& self, const std::string& reason) {
                        Call(waybill_update_refuse, self.get(), WAYBILL_EVENT_ARRIVED,
                             reason.c_str());
                      },
                      "reason">();
  abi3::Class<KeptTrainer>(module, "Trainer")
      .Init<&MakeTrainer, "context", "identity", "options", "manifest", "regions", "queue">()
      .MethodUnlocked<"join",
                      [](const KeptTrainer& self, int64_t deadline_ns, uint64_t token) {
                        Call(waybill_trainer_join, self.get(), deadline_ns, token);
                      },
                      "deadline_ns", "token">()
      .MethodUnlocked<"publish", &Publish, "options", "token">()
      .MethodUnlocked<"release",
                      [](const KeptTrainer& self, uint64_t token) {
                        Call(waybill_trainer_release, self.get(), token);
                      },
                      "token">()
      .MethodUnlocked<"leave",
                      [](const KeptTrainer& self, uint64_t token) {
                        Call(waybill_trainer_leave, self.get(), token);
                      },
                      "token">()
      .Method<"progress", &Progress<KeptTrainer, &waybill_trainer_progress>>()
      .MethodUnlocked<"describe",
                      [](const KeptTrainer& self) {
                        return Bytes(waybill_trainer_describe, self.get());
                      }>()
      .Property<"handle", &HandleOf<KeptTrainer>>()
      .Method<"close", &KeptTrainer::Close>();
}

void AddWorker(abi3::Module& module) {
  abi3::Class<KeptWorker>(module, "Worker")
      .Init<&MakeWorker, "context", "identity", "options", "manifest", "regions", "queue",
            "also_ask">()
      .MethodUnlocked<"join",
                      [](const KeptWorker& self, int64_t deadline_ns, uint64_t token) {
                        Call(waybill_worker_join, self.get(), deadline_ns, token);
                      },
                      "deadline_ns", "token">()
      .MethodUnlocked<"leave",
                      [](const KeptWorker& self, uint64_t token) {
                        Call(waybill_worker_leave, self.get(), token);
                      },
                      "token">()
      .MethodUnlocked<"fetch",
                      [](const KeptWorker& self, uint64_t at_least, int64_t deadline_ns,
                         uint64_t token) {
                        Call(waybill_worker_fetch, self.get(), at_least, deadline_ns, token);
                      },
                      "at_least", "deadline_ns", "token">()
      .MethodUnlocked<"pause",
                      [](const KeptWorker& self) { Call(waybill_worker_pause, self.get()); }>()
      .MethodUnlocked<"resume",
                      [](const KeptWorker& self, bool contents_kept) {
                        Call(waybill_worker_resume, self.get(), contents_kept ? 1U : 0U);
                      },
                      "contents_kept">()
      .Method<"state", &State>()
      .Method<"progress", &Progress<KeptWorker, &waybill_worker_progress>>()
      .MethodUnlocked<"describe",
                      [](const KeptWorker& self) {
                        return Bytes(waybill_worker_describe, self.get());
                      }>()
      .MethodUnlocked<"snapshot", &TakeSnapshot, "holder">()
      .MethodUnlocked<"verify",
                      [](const KeptWorker& self) {
                        uint64_t version = 0;
                        Call(waybill_worker_verify, self.get(), &version);
                        return version;
                      }>()
      .Method<"close", &KeptWorker::Close>();
  abi3::Class<KeptSnapshot>(module, "Snapshot")
      .Property<"version",
                [](const KeptSnapshot& self) { return waybill_snapshot_version(self.get()); }>()
      .Method<"region",
              [](const std::shared_ptr<KeptSnapshot>& self, uint32_t index,
                 const abi3::Object& owner) {
                return std::make_unique<SnapshotBytes>(self, index, owner);
              },
              "index", "owner">();
  abi3::Class<SnapshotBytes>(module, "SnapshotBytes")
      .Property<"address", &SnapshotBytes::address>()
      .Buffer<&SnapshotBytes::Bytes>();
}

}  // namespace

void AddRanks(abi3::Module& module) {
  AddTrainer(module);
  AddWorker(module);
}

}  // namespace waybill::python
