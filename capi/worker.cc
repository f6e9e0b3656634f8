// SPDX-License-Identifier: Apache-2.0

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "capi/call.h"
#include "capi/deadline.h"
#include "capi/rank.h"
#include "capi/struct_size.h"
#include "core/base/status.h"
#include "core/base/steady_now.h"
#include "core/control/worker_client.h"
#include "core/device/device.h"
#include "core/protocol/timeouts.h"

namespace waybill::capi {
namespace {

class SnapshotObject : public Object {
 public:
  using Handle = waybill_snapshot_t;
  static constexpr Kind kKind = Kind::kSnapshot;

  SnapshotObject(std::shared_ptr<WorkerClient> worker, Snapshot snapshot, uint32_t region_count)
      : worker_(std::move(worker)), snapshot_(std::move(snapshot)), region_count_(region_count) {}

  uint64_t version() const { return snapshot_.version(); }
  absl::StatusOr<absl::Span<const std::byte>> region(uint32_t i) const {
    if (i < region_count_) return snapshot_.region(i);
    return absl::OutOfRangeError(absl::StrCat("region ", i, " of ", region_count_));
  }

 private:
  const std::shared_ptr<WorkerClient> worker_;  // Its memory.
  const Snapshot snapshot_;
  const uint32_t region_count_;
};

struct WorkerSettings {
  ReceiverEngineOptions engine;
  uint32_t ask = 0;
};

class WorkerObject final : public Rank {
 public:
  using Handle = waybill_worker_t;
  static constexpr Kind kKind = Kind::kWorker;

  WorkerObject(RankParts parts, Regions regions, const WorkerSettings& settings,
               std::shared_ptr<Device> device)
      : Rank(WAYBILL_SOURCE_WORKER, std::move(parts), std::move(regions), std::move(device)),
        settings_(settings) {}

  ~WorkerObject() override { shared_->Set(nullptr); }

  using Rank::Join;
  using Rank::JoinAndWait;

  absl::StatusOr<std::shared_ptr<SnapshotObject>> TakeSnapshot(const std::string& holder) {
    std::shared_ptr<WorkerClient> core = client();
    if (core == nullptr) return While("nothing is shown", NotJoined());
    WAYBILL_ASSIGN_OR_RETURN(Snapshot snapshot, core->TakeSnapshot(holder));
    return std::make_shared<SnapshotObject>(std::move(core), std::move(snapshot),
                                            manifest_.region_count());
  }

  absl::StatusOr<uint64_t> Verify() {
    const std::shared_ptr<WorkerClient> core = client();
    if (core == nullptr) return While("nothing is shown", NotJoined());
    return core->Verify();
  }

  absl::Status Fetch(uint64_t at_least, int64_t deadline_ns, uint64_t user_token) {
    WAYBILL_ASSIGN_OR_RETURN(const absl::Duration left, TimeLeft(deadline_ns, kPublishTimeout));
    WAYBILL_RETURN_IF_ERROR(CheckJoined());
    const std::shared_ptr<WorkerClient> core = client();
    core->Fetch(NewToken(user_token), at_least, SteadyNow() + left);
    return absl::OkStatus();
  }

  absl::Status Pause() {
    const std::shared_ptr<WorkerClient> core = client();
    if (core == nullptr) return NotJoined();
    return core->Pause();
  }
  absl::Status Resume(bool contents_kept) {
    const std::shared_ptr<WorkerClient> core = client();
    if (core == nullptr) return NotJoined();
    core->Resume(contents_kept);
    return absl::OkStatus();
  }

  waybill_worker_state_t state() const {
    waybill_worker_state_t state = WAYBILL_WORKER_STATE_INIT;
    const std::shared_ptr<WorkerClient> core = client();
    if (core == nullptr) return state;
    const WorkerReport report = core->report();
    state.shown_version = core->shown_version();
    state.joined = CheckJoined().ok() ? 1 : 0;
    state.dirty = core->dirty() ? 1 : 0;
    state.in_doubt = report.in_doubt ? 1 : 0;
    state.catching_up = report.catching_up ? 1 : 0;
    state.stragglers = report.counts.stragglers;
    state.repeats = report.counts.repeats;
    state.renewals = report.counts.renewals;
    state.unchanged_versions = report.counts.unchanged_versions;
    state.exact = state.shown_version > 0 && report.exact ? 1 : 0;
    return state;
  }

  waybill_progress_t progress() const override {
    waybill_progress_t progress = WAYBILL_PROGRESS_INIT;
    const std::shared_ptr<WorkerClient> core = client();
    if (core == nullptr) return progress;
    const WorkerReport now = core->report();
    progress.version = now.version;
    progress.planned_bytes = now.planned_bytes;
    progress.bytes = now.arrived_bytes;
    CopySpans(now.stages, progress);
    return progress;
  }

  nlohmann::json Describe() const override {
    nlohmann::json json = DescribeIdentity("worker");
    const std::shared_ptr<WorkerClient> core = client();
    json["joined"] = CheckJoined().ok();
    json["mode"] = std::string(Name(settings_.engine.mode));
    json["shown_version"] = core == nullptr ? 0 : core->shown_version();
    json["lanes"] = LanesToJson(core == nullptr ? std::vector<LaneReport>{} : core->report().lanes);
    return json;
  }

 private:
  std::shared_ptr<WorkerClient> client() const {
    const std::lock_guard lock(mutex_);
    return client_;
  }

  absl::Status MakeClient() override {
    WAYBILL_ASSIGN_OR_RETURN(auto fabric, MakeOwnFabric());
    WAYBILL_ASSIGN_OR_RETURN(
        std::shared_ptr<WorkerClient> made,
        WorkerClient::Create(config_.identity, settings_.engine, manifest_, MemoryOf(regions_),
                             AskedKinds(), std::move(fabric), sink()));
    shared_->Set(made.get());
    std::shared_ptr<WorkerClient> before;  // Made by an attempt that failed.
    const std::lock_guard lock(mutex_);
    before = std::exchange(client_, std::move(made));
    return absl::OkStatus();
  }
  void JoinClient(uint64_t token, absl::Time deadline) override { client_->Join(token, deadline); }
  void LeaveClient(uint64_t token) override { client_->Leave(token); }

  std::set<Notice::Kind> AskedKinds() const {
    std::set<Notice::Kind> kinds;
    for (const Notice::Kind kind :
         {Notice::Kind::kPrepare, Notice::Kind::kArrived, Notice::Kind::kCommit}) {
      if ((settings_.ask >> IndexOf(kind) & 1) != 0) kinds.insert(kind);
    }
    return kinds;
  }
  static uint32_t IndexOf(Notice::Kind kind) {
    return static_cast<uint32_t>(kind) - static_cast<uint32_t>(Notice::Kind::kPrepare);
  }

  void OnUpdateNotice(const Notice& notice) override {
    const uint32_t index = IndexOf(notice.kind);
    QueuedEvent event = NewEvent(WAYBILL_EVENT_PREPARE + index);
    if (update_ == nullptr || update_id_ != notice.update) {
      update_ = std::make_shared<Update>(notice.version);
      update_id_ = notice.update;
    }
    event.version = notice.version;
    event.update = update_;
    event.status = notice.status;
    event.pause = notice.pause;
    event.unchanged = notice.unchanged;
    event.answer_wanted = notice.kind != Notice::Kind::kAbort && (settings_.ask >> index & 1) != 0;
    if (event.answer_wanted) {
      update_->Ask(event.kind, [shared = shared_, kind = notice.kind,
                                id = notice.update](const absl::Status& answer) {
        shared->With([&](WorkerClient& client) { client.Answer(kind, id, answer); });
      });
    }
    Push(std::move(event));
  }

  const WorkerSettings settings_;
  std::shared_ptr<Update> update_;  // On the client's thread, as is its id.
  UpdateId update_id_;
  const std::shared_ptr<Shared<WorkerClient>> shared_ = std::make_shared<Shared<WorkerClient>>();
  mutable std::mutex mutex_;
  std::shared_ptr<WorkerClient> client_;  // Guarded by mutex_.
};

absl::Status CheckMode(Mode mode, bool with_regions) {
  if (mode == Mode::kShadow && with_regions) {
    return absl::InvalidArgumentError(
        "mode shadow shows buffers that Waybill allocates, and regions are given: give none, or "
        "take "
        "mode shadow-copy or in-place");
  }
  if (mode == Mode::kShadowCopy && !with_regions) {
    return absl::InvalidArgumentError(
        "mode shadow-copy copies to regions, and none are given: give one for each region of the "
        "manifest, or take mode shadow");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<WorkerObject>> CreateWorker(
    const std::shared_ptr<Context>& context, const waybill_worker_options_t& options) {
  WAYBILL_ASSIGN_OR_RETURN(RankParts parts, ReadRankParts(context, options.rank, options.queue,
                                                          options.manifest, Holes::kRefused));
  constexpr uint32_t kAll = WAYBILL_ASK_PREPARE | WAYBILL_ASK_ARRIVED | WAYBILL_ASK_COMMIT;
  if (options.mode > WAYBILL_MODE_IN_PLACE || (options.ask & ~kAll) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("mode is ", options.mode, ", ask ", options.ask,
                                                   "; the largest are ", WAYBILL_MODE_IN_PLACE,
                                                   " and ", kAll));
  }
  parts.config.identity.catch_up = options.no_catch_up == 0;
  parts.config.identity.fetches = options.updates_when_asked != 0;
  WorkerSettings settings{.engine = {}, .ask = options.ask};
  if (options.mode != 0) settings.engine.mode = static_cast<Mode>(options.mode);
  if (options.gpu != 0) settings.engine.arena_gpu = static_cast<int>(options.gpu) - 1;
  WAYBILL_RETURN_IF_ERROR(CheckMode(settings.engine.mode, options.region_count > 0));
  Regions regions;
  if (options.region_count > 0) {
    WAYBILL_ASSIGN_OR_RETURN(regions, FindRegions(options.regions, options.region_count,
                                                  parts.manifest, Access::kWrite));
  }
  if (parts.manifest.shard_count() == 0) {
    return absl::InvalidArgumentError(
        "the worker holds nothing: add what it is to receive before it joins");
  }
  WAYBILL_ASSIGN_OR_RETURN(auto device, OpenDeviceOf(regions));
  if (device == nullptr && settings.engine.arena_gpu) {
    WAYBILL_ASSIGN_OR_RETURN(device, Device::Open(*settings.engine.arena_gpu));
  }
  if (device != nullptr) settings.engine.verify_threads = ReceiverEngineOptions::kGpuVerifyThreads;
  if (options.verify_threads != 0) settings.engine.verify_threads = options.verify_threads;
  auto worker =
      std::make_shared<WorkerObject>(std::move(parts), regions, settings, std::move(device));
  WAYBILL_RETURN_IF_ERROR(AddUser(regions, worker));
  return worker;
}

}  // namespace
}  // namespace waybill::capi

using waybill::capi::Call;
using waybill::capi::CallOn;
using waybill::capi::CheckOutput;
using waybill::capi::Context;
using waybill::capi::Find;
using waybill::capi::FindObject;
using waybill::capi::MakeHandle;
using waybill::capi::SnapshotObject;
using waybill::capi::WorkerObject;

waybill_status_t waybill_worker_create(waybill_context_t* context,
                                       const waybill_worker_options_t* options,
                                       waybill_worker_t** out_worker, waybill_error_t** error) {
  return Call("create a worker", error, [&]() -> absl::Status {
    WAYBILL_RETURN_IF_ERROR(CheckOutput(out_worker, "out_worker"));
    WAYBILL_ASSIGN_OR_RETURN(const auto parent, Find<Context>(context, "context"));
    WAYBILL_ASSIGN_OR_RETURN(const auto read, waybill::capi::ReadStruct(options, "options"));
    WAYBILL_ASSIGN_OR_RETURN(auto worker, waybill::capi::CreateWorker(parent, read));
    *out_worker = MakeHandle(std::move(worker));
    return absl::OkStatus();
  });
}

waybill_status_t waybill_worker_join(waybill_worker_t* worker, int64_t deadline_ns, uint64_t token,
                                     waybill_error_t** error) {
  return CallOn<WorkerObject>("join as a worker", worker, "worker", error,
                              [&](WorkerObject& found) { return found.Join(deadline_ns, token); });
}

waybill_status_t waybill_worker_join_and_wait(waybill_worker_t* worker, int64_t deadline_ns,
                                              waybill_error_t** error) {
  return CallOn<WorkerObject>("join as a worker", worker, "worker", error,
                              [&](WorkerObject& found) { return found.JoinAndWait(deadline_ns); });
}

waybill_status_t waybill_worker_fetch(waybill_worker_t* worker, uint64_t at_least,
                                      int64_t deadline_ns, uint64_t token,
                                      waybill_error_t** error) {
  return CallOn<WorkerObject>("fetch a version", worker, "worker", error, [&](WorkerObject& found) {
    return found.Fetch(at_least, deadline_ns, token);
  });
}

waybill_status_t waybill_worker_pause(waybill_worker_t* worker, waybill_error_t** error) {
  return CallOn<WorkerObject>("pause a worker", worker, "worker", error,
                              [&](WorkerObject& found) { return found.Pause(); });
}

waybill_status_t waybill_worker_resume(waybill_worker_t* worker, uint32_t contents_kept,
                                       waybill_error_t** error) {
  return CallOn<WorkerObject>("resume a worker", worker, "worker", error, [&](WorkerObject& found) {
    return found.Resume(contents_kept != 0);
  });
}

waybill_status_t waybill_worker_state(const waybill_worker_t* worker,
                                      waybill_worker_state_t* out_state, waybill_error_t** error) {
  return Call("ask a worker for its state", error, [&]() -> absl::Status {
    WAYBILL_RETURN_IF_ERROR(waybill::capi::CheckStructSize(out_state, "out_state"));
    WAYBILL_ASSIGN_OR_RETURN(const auto found, Find<WorkerObject>(worker, "worker"));
    waybill::capi::WriteStruct(found->state(), out_state);
    return absl::OkStatus();
  });
}

waybill_status_t waybill_worker_progress(const waybill_worker_t* worker,
                                         waybill_progress_t* out_progress,
                                         waybill_error_t** error) {
  return waybill::capi::TellProgress<WorkerObject>("ask a worker for its progress", worker,
                                                   "worker", out_progress, error);
}

waybill_status_t waybill_worker_describe(const waybill_worker_t* worker, waybill_blob_t** out_json,
                                         waybill_error_t** error) {
  return waybill::capi::TellDescription<WorkerObject>("describe a worker", worker, "worker",
                                                      out_json, error);
}

waybill_status_t waybill_worker_snapshot(waybill_worker_t* worker, const char* holder,
                                         waybill_snapshot_t** out_snapshot,
                                         waybill_error_t** error) {
  return Call("read what is shown", error, [&]() -> absl::Status {
    WAYBILL_RETURN_IF_ERROR(CheckOutput(out_snapshot, "out_snapshot"));
    WAYBILL_ASSIGN_OR_RETURN(const auto found, Find<WorkerObject>(worker, "worker"));
    WAYBILL_ASSIGN_OR_RETURN(const std::string who, waybill::capi::Text(holder, "holder"));
    WAYBILL_ASSIGN_OR_RETURN(auto snapshot, found->TakeSnapshot(who));
    *out_snapshot = MakeHandle(std::move(snapshot));
    return absl::OkStatus();
  });
}

waybill_status_t waybill_worker_verify(waybill_worker_t* worker, uint64_t* out_version,
                                       waybill_error_t** error) {
  return Call("verify what is shown", error, [&]() -> absl::Status {
    WAYBILL_RETURN_IF_ERROR(CheckOutput(out_version, "out_version"));
    WAYBILL_ASSIGN_OR_RETURN(const auto found, Find<WorkerObject>(worker, "worker"));
    WAYBILL_ASSIGN_OR_RETURN(*out_version, found->Verify());
    return absl::OkStatus();
  });
}

waybill_status_t waybill_worker_leave(waybill_worker_t* worker, uint64_t token,
                                      waybill_error_t** error) {
  return CallOn<WorkerObject>("leave as a worker", worker, "worker", error,
                              [&](WorkerObject& found) { return found.Leave(token); });
}

void waybill_worker_destroy(waybill_worker_t* worker) {
  waybill::capi::DestroyObject<WorkerObject>(worker);
}

uint64_t waybill_snapshot_version(const waybill_snapshot_t* snapshot) {
  const auto found = FindObject<SnapshotObject>(snapshot);
  return found == nullptr ? 0 : found->version();
}

waybill_status_t waybill_snapshot_region(const waybill_snapshot_t* snapshot, uint32_t region_index,
                                         const void** out_data, uint64_t* out_size_bytes,
                                         waybill_error_t** error) {
  return Call("read a snapshot", error, [&]() -> absl::Status {
    WAYBILL_RETURN_IF_ERROR(CheckOutput(out_data, "out_data"));
    WAYBILL_RETURN_IF_ERROR(CheckOutput(out_size_bytes, "out_size_bytes"));
    WAYBILL_ASSIGN_OR_RETURN(const auto found, Find<SnapshotObject>(snapshot, "snapshot"));
    WAYBILL_ASSIGN_OR_RETURN(const auto bytes, found->region(region_index));
    *out_data = bytes.data();
    *out_size_bytes = bytes.size();
    return absl::OkStatus();
  });
}

void waybill_snapshot_destroy(waybill_snapshot_t* snapshot) {
  waybill::capi::DestroyObject<SnapshotObject>(snapshot);
}
