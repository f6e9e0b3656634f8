#include "core/control/trainer.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "capi/call.h"
#include "capi/deadline.h"
#include "capi/rank.h"
#include "capi/struct_size.h"
#include "core/memory/device.h"
#include "core/memory/device_event.h"
#include "kernels/cuda/device.h"

namespace waybill::capi {
namespace {

constexpr absl::Duration kPublishDefault = absl::Seconds(60);
// Each has a chunk on the device, and waits for it.
constexpr uint32_t kDeviceStageThreads = 4;

class TrainerObject final : public Rank {
 public:
  using Handle = waybill_trainer_t;
  static constexpr Kind kKind = Kind::kTrainer;

  TrainerObject(RankParts parts, Regions regions, const TrainerEngineOptions& engine,
                std::shared_ptr<kernels::cuda::Device> device)
      : Rank(WAYBILL_SOURCE_TRAINER, std::move(parts), std::move(regions), std::move(device)),
        engine_(engine) {}

  absl::Status Join(int64_t deadline_ns, uint64_t token) {
    return BeginJoin(deadline_ns, token, [this](const RankIdentity& identity) -> absl::Status {
      WAYBILL_ASSIGN_OR_RETURN(auto fabric, MakeOwnFabric());
      const TrainerOptions options{
          .identity = identity,
          .engine = engine_,
          .on_outcome = [this](uint64_t version, const GroupOutcome& outcome) {
            TellOutcome(version, outcome);
          }};
      WAYBILL_ASSIGN_OR_RETURN(
          std::shared_ptr<Trainer> joined,
          Trainer::Join(options, manifest_, MemoryOf(regions_), std::move(fabric)));
      const std::lock_guard lock(mutex_);
      trainer_ = std::move(joined);
      return absl::OkStatus();
    });
  }

  absl::StatusOr<std::shared_ptr<Update>> Publish(const waybill_publish_options_t& options,
                                                  uint64_t token) {
    WAYBILL_RETURN_IF_ERROR(CheckJoined());
    WAYBILL_RETURN_IF_ERROR(TimeLeft(options.deadline_ns, kPublishDefault).status());
    WAYBILL_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceEvent> event, TakeEvent(options));
    auto update = std::make_shared<Update>(Update::Role::kOfTrainer, options.version);
    {
      const std::lock_guard lock(mutex_);
      if (options.version == 0) return absl::InvalidArgumentError("versions begin at 1");
      if (options.version <= last_version_) {
        return absl::FailedPreconditionError(
            absl::StrCat("version ", last_version_, " was published; versions only grow"));
      }
      before_ = std::exchange(last_version_, options.version);
      under_way_.push_back(update);
    }
    Do(WAYBILL_EVENT_PUBLISHED, token, options.version, [this, update, options, event] {
      absl::Status status = Run(*update, options, event.get());
      Finish(update, status.ok());
      return status;
    });
    return update;
  }

  waybill_progress_t progress() const override {
    const std::shared_ptr<Trainer> core = trainer();
    if (core == nullptr) {
      const std::lock_guard lock(mutex_);
      return last_progress_;
    }
    waybill_progress_t progress = WAYBILL_PROGRESS_INIT;
    const TrainerProgress now = core->progress();
    progress.version = now.version;
    progress.planned_bytes = now.planned_bytes;
    progress.bytes = now.counts.bytes;
    progress.writes = now.counts.writes;
    progress.stores = now.counts.stores;
    progress.immediates = now.counts.immediates;
    progress.maxima_messages = now.counts.maxima_messages;
    progress.maxima_bytes = now.counts.maxima_bytes;
    for (const NonFinite& found : core->nonfinite()) progress.nonfinite += found.elements;
    CopySpans(now.stages, progress);
    return progress;
  }

  std::string Describe() const override {
    nlohmann::json json = DescribeIdentity("trainer");
    const std::shared_ptr<Trainer> core = trainer();
    json["joined"] = core != nullptr;
    json["ring_bytes"] = engine_.ring_bytes;
    json["ring_high_water_bytes"] = core == nullptr ? 0 : core->ring_high_water_bytes();
    json["groups"] = core == nullptr ? std::vector<std::string>{} : core->groups();
    json["lanes"] = LanesToJson(core == nullptr ? std::vector<LaneReport>{} : core->lanes());
    return json.dump();
  }

 private:
  std::shared_ptr<Trainer> trainer() const {
    const std::lock_guard lock(mutex_);
    return trainer_;
  }

  // Null where none is given.
  absl::StatusOr<std::shared_ptr<DeviceEvent>> TakeEvent(
      const waybill_publish_options_t& options) const {
    if (options.after_event == nullptr) return nullptr;
    if (device_ == nullptr) {
      return absl::InvalidArgumentError(
          "after_event is given, and no region is memory of a device; wait for it yourself");
    }
    return DeviceEvent::Take(device_, static_cast<kernels::cuda::Event>(options.after_event));
  }

  absl::Status Run(const Update& update, const waybill_publish_options_t& options,
                   const DeviceEvent* event) {
    const std::shared_ptr<Trainer> core = trainer();
    WAYBILL_ASSIGN_OR_RETURN(absl::Duration timeout,
                             TimeLeft(options.deadline_ns, kPublishDefault));
    const absl::Time deadline = absl::Now() + timeout;
    if (event != nullptr) {
      WAYBILL_RETURN_IF_ERROR(While(absl::StrCat("publish version ", update.version()),
                                    event->Await(deadline, update.stop_token())));
      timeout = deadline - absl::Now();
    }
    WAYBILL_RETURN_IF_ERROR(core->Publish(
        update.version(), {.timeout = timeout,
                           .digests = options.no_digests != 0 ? Digests::kOff : Digests::kOn,
                           .fail_on_nonfinite = options.fail_on_nonfinite != 0,
                           .cancel = update.stop_token()}));
    if (options.until_committed == 0) return absl::OkStatus();
    // The controller ends it by the deadline: it is given a little longer to say so.
    WAYBILL_ASSIGN_OR_RETURN(
        const std::vector<GroupOutcome> outcomes,
        core->AwaitOutcome(deadline - absl::Now() + absl::Seconds(1), update.stop_token()));
    for (const GroupOutcome& outcome : outcomes) {
      if (!outcome.status.ok()) return While(absl::StrCat("group ", outcome.group), outcome.status);
    }
    return absl::OkStatus();
  }

  void Finish(const std::shared_ptr<Update>& update, bool published) {
    const std::lock_guard lock(mutex_);
    under_way_.erase(std::find(under_way_.begin(), under_way_.end(), update));
    // One that failed may be tried again.
    if (!published && last_version_ == update->version()) last_version_ = before_;
  }

  void TellOutcome(uint64_t version, const GroupOutcome& outcome) {
    QueuedEvent event = NewEvent(WAYBILL_EVENT_OUTCOME);
    event.version = version;
    event.group = outcome.group;
    event.status = outcome.status.ok() && !outcome.committed
                       ? absl::AbortedError("it was not committed")
                       : outcome.status;
    Push(std::move(event));
  }

  void CancelCalls() override {
    const std::lock_guard lock(mutex_);
    for (const auto& update : under_way_) update->RequestStop();
  }

  // The regions are nobody's afterwards: what is left of it is destroyed, fabric and all.
  void LeaveNow() override {
    const waybill_progress_t last = progress();
    std::shared_ptr<Trainer> core;
    {
      const std::lock_guard lock(mutex_);
      core.swap(trainer_);
      last_progress_ = last;
    }
    if (core != nullptr) core->Leave();
  }

  const TrainerEngineOptions engine_;
  mutable std::mutex mutex_;
  std::shared_ptr<Trainer> trainer_;  // Guarded by mutex_, as is what follows.
  waybill_progress_t last_progress_ = WAYBILL_PROGRESS_INIT;  // From when it left.
  uint64_t last_version_ = 0;
  uint64_t before_ = 0;  // The one before it.
  std::vector<std::shared_ptr<Update>> under_way_;
};

absl::StatusOr<std::shared_ptr<TrainerObject>> CreateTrainer(
    const std::shared_ptr<Context>& context, const waybill_trainer_options_t& options) {
  WAYBILL_ASSIGN_OR_RETURN(RankParts parts, ReadRankParts(context, options.rank, options.queue,
                                                          options.manifest, Holes::kAllowed));
  WAYBILL_ASSIGN_OR_RETURN(Regions regions, FindRegions(options.regions, options.region_count,
                                                        parts.manifest, Access::kRead));
  TrainerEngineOptions engine;
  if (options.ring_bytes != 0) engine.ring_bytes = options.ring_bytes;
  WAYBILL_ASSIGN_OR_RETURN(auto device, OpenDeviceOf(MemoryOf(regions)));
  if (device != nullptr) engine.stage_threads = kDeviceStageThreads;
  if (options.stage_threads != 0) engine.stage_threads = options.stage_threads;
  auto trainer =
      std::make_shared<TrainerObject>(std::move(parts), regions, engine, std::move(device));
  WAYBILL_RETURN_IF_ERROR(AddUser(regions, trainer));
  return trainer;
}

}  // namespace
}  // namespace waybill::capi

using waybill::capi::Call;
using waybill::capi::CallOn;
using waybill::capi::CheckOutput;
using waybill::capi::Context;
using waybill::capi::Find;
using waybill::capi::MakeHandle;
using waybill::capi::TrainerObject;

waybill_status_t waybill_trainer_create(waybill_context_t* context,
                                        const waybill_trainer_options_t* options,
                                        waybill_trainer_t** out_trainer, waybill_error_t** error) {
  return Call("create a trainer", error, [&]() -> absl::Status {
    WAYBILL_RETURN_IF_ERROR(CheckOutput(out_trainer, "out_trainer"));
    WAYBILL_ASSIGN_OR_RETURN(const auto parent, Find<Context>(context, "context"));
    WAYBILL_ASSIGN_OR_RETURN(const auto read, waybill::capi::ReadStruct(options, "options"));
    WAYBILL_ASSIGN_OR_RETURN(auto trainer, waybill::capi::CreateTrainer(parent, read));
    *out_trainer = MakeHandle(std::move(trainer));
    return absl::OkStatus();
  });
}

waybill_status_t waybill_trainer_join(waybill_trainer_t* trainer, int64_t deadline_ns,
                                      uint64_t token, waybill_error_t** error) {
  return CallOn<TrainerObject>(
      "join as a trainer", trainer, "trainer", error,
      [&](TrainerObject& found) { return found.Join(deadline_ns, token); });
}

waybill_status_t waybill_trainer_publish(waybill_trainer_t* trainer,
                                         const waybill_publish_options_t* options, uint64_t token,
                                         waybill_update_t** out_update, waybill_error_t** error) {
  return Call("publish", error, [&]() -> absl::Status {
    WAYBILL_ASSIGN_OR_RETURN(const auto found, Find<TrainerObject>(trainer, "trainer"));
    WAYBILL_ASSIGN_OR_RETURN(const auto read, waybill::capi::ReadStruct(options, "options"));
    absl::StatusOr<std::shared_ptr<waybill::capi::Update>> update = found->Publish(read, token);
    if (!update.ok()) {
      return waybill::While(absl::StrCat("version ", read.version), update.status());
    }
    if (out_update != nullptr) *out_update = MakeHandle(*std::move(update));
    return absl::OkStatus();
  });
}

waybill_status_t waybill_trainer_progress(const waybill_trainer_t* trainer,
                                          waybill_progress_t* out_progress,
                                          waybill_error_t** error) {
  return waybill::capi::TellProgress<TrainerObject>("ask a trainer for its progress", trainer,
                                                    "trainer", out_progress, error);
}

waybill_status_t waybill_trainer_describe(const waybill_trainer_t* trainer,
                                          waybill_blob_t** out_json, waybill_error_t** error) {
  return waybill::capi::TellDescription<TrainerObject>("describe a trainer", trainer, "trainer",
                                                       out_json, error);
}

waybill_status_t waybill_trainer_leave(waybill_trainer_t* trainer, uint64_t token,
                                       waybill_error_t** error) {
  return CallOn<TrainerObject>("leave as a trainer", trainer, "trainer", error,
                               [&](TrainerObject& found) { return found.Leave(token); });
}

void waybill_trainer_destroy(waybill_trainer_t* trainer) {
  waybill::capi::DestroyObject<TrainerObject>(trainer);
}
