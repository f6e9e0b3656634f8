// SPDX-License-Identifier: Apache-2.0

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "capi/call.h"
#include "capi/deadline.h"
#include "capi/rank.h"
#include "capi/struct_size.h"
#include "core/base/steady_now.h"
#include "core/base/trace_parent.h"
#include "core/control/trainer_client.h"
#include "core/device/device.h"
#include "core/device/gpu_survey.h"
#include "core/protocol/timeouts.h"

namespace waybill::capi {
namespace {

class TrainerObject final : public Rank {
 public:
  using Handle = waybill_trainer_t;
  static constexpr Kind kKind = Kind::kTrainer;

  TrainerObject(RankParts parts, Regions regions, const SenderEngineOptions& engine,
                std::shared_ptr<Device> device)
      : Rank(WAYBILL_SOURCE_TRAINER, std::move(parts), std::move(regions), std::move(device)),
        engine_(engine) {}
  ~TrainerObject() override { shared_->Set(nullptr); }

  using Rank::Join;
  using Rank::JoinAndWait;

  absl::StatusOr<std::shared_ptr<Update>> Publish(const waybill_publish_options_t& options,
                                                  uint64_t user_token) {
    WAYBILL_RETURN_IF_ERROR(CheckJoined());
    WAYBILL_ASSIGN_OR_RETURN(const absl::Duration left,
                             TimeLeft(options.deadline_ns, kPublishTimeout));
    if (options.version == 0) return absl::InvalidArgumentError("versions begin at 1");
    PublishCommand command{
        .version = options.version,
        .deadline = SteadyNow() + left,
        .digests_off = options.no_digests != 0,
        .fail_on_nonfinite = options.fail_on_nonfinite != 0,
        .until_committed = options.until_committed != 0,
        .hold = options.hold != 0,
        .hold_commit = options.hold_commit != 0,
        .max_behind = options.max_behind,
        .traceparent = options.traceparent == nullptr ? "" : options.traceparent};
    if (const absl::string_view tensors = absl::NullSafeStringView(options.tensors);
        !tensors.empty()) {
      command.selection.tensors = absl::StrSplit(tensors, ',');
    }
    if (options.at_most_ppm != 0) command.selection.at_most_ppm = options.at_most_ppm;
    if (!command.traceparent.empty()) {
      WAYBILL_RETURN_IF_ERROR(ParseTraceParent(command.traceparent).status());
    }
    if (options.after_event != nullptr) {
      if (device_ == nullptr) {
        return absl::InvalidArgumentError(
            "after_event is given, and no region is memory of a device; wait for it yourself");
      }
      command.waits_for = absl::StrCat(NameOfGpu(device_->ordinal()), " has not reached its event");
    }
    const uint64_t token = NewToken(user_token);
    const auto proceed = [shared = shared_, token](const absl::Status& reached) {
      shared->With([&](TrainerClient& client) { client.Proceed(token, reached); });
    };
    struct Reached {
      std::atomic<bool> known = false;
      absl::Status status;
    };
    const auto reached = std::make_shared<Reached>();
    if (options.after_event != nullptr) {
      const auto queued = device_->After(static_cast<Event>(options.after_event),
                                         [proceed, reached](const absl::Status& status) {
                                           reached->status = status;
                                           reached->known.store(true);
                                           proceed(status);
                                         });
      if (!queued.ok()) {
        ForgetToken(token);
        return absl::IsFailedPrecondition(queued) ? queued
                                                  : absl::InvalidArgumentError(queued.message());
      }
    }
    shared_->With([&](TrainerClient& client) { client.Publish(token, command); });
    // The first call may have come before the publish.
    if (reached->known.load()) proceed(reached->status);
    return std::make_shared<Update>(
        options.version,
        [shared = shared_, token] {
          shared->With([&](TrainerClient& client) { client.Cancel(token); });
        },
        options.hold_commit != 0 ? Decider(options.version) : nullptr);
  }

  absl::Status Release(uint64_t user_token) {
    WAYBILL_RETURN_IF_ERROR(CheckJoined());
    const uint64_t token = NewToken(user_token);
    shared_->With([&](TrainerClient& client) { client.Release(token); });
    return absl::OkStatus();
  }

  waybill_progress_t progress() const override {
    waybill_progress_t progress = WAYBILL_PROGRESS_INIT;
    const TrainerReport report = Report();
    progress.version = report.version;
    progress.planned_bytes = report.planned_bytes;
    progress.bytes = report.counts.bytes;
    progress.writes = report.counts.writes;
    progress.stores = report.counts.stores;
    progress.immediates = report.counts.immediates;
    progress.maxima_messages = report.counts.maxima_messages;
    progress.maxima_bytes = report.counts.maxima_bytes;
    for (const NonFinite& found : report.nonfinite) progress.nonfinite += found.elements;
    CopySpans(report.stages, progress);
    return progress;
  }

  nlohmann::json Describe() const override {
    nlohmann::json json = DescribeIdentity("trainer");
    const TrainerReport report = Report();
    json["joined"] = CheckJoined().ok();
    json["ring_bytes"] = engine_.ring_bytes;
    json["images"] = engine_.has_images();
    json["changes"] = Name(engine_.changes);
    json["ring_high_water_bytes"] = report.ring_high_water_bytes;
    json["groups"] = report.groups;
    json["lanes"] = LanesToJson(report.lanes);
    return json;
  }

 private:
  TrainerReport Report() const {
    TrainerReport report;
    shared_->With([&](const TrainerClient& client) { report = client.report(); });
    return report;
  }

  absl::Status MakeClient() override {
    shared_->Set(nullptr);
    client_.reset();  // An earlier attempt may have made it, and failed.
    WAYBILL_ASSIGN_OR_RETURN(auto fabric, MakeOwnFabric());
    WAYBILL_ASSIGN_OR_RETURN(
        client_, TrainerClient::Create(config_.identity, engine_, manifest_, MemoryOf(regions_),
                                       std::move(fabric), sink()));
    shared_->Set(client_.get());
    return absl::OkStatus();
  }
  void JoinClient(uint64_t token, absl::Time deadline) override { client_->Join(token, deadline); }
  void LeaveClient(uint64_t token) override { client_->Leave(token); }

  static uint32_t KindOf(Notice::Kind kind) {
    if (kind == Notice::Kind::kReceived) return WAYBILL_EVENT_RECEIVED;
    return kind == Notice::Kind::kDecided ? WAYBILL_EVENT_DECIDED : WAYBILL_EVENT_OUTCOME;
  }

  // Asks whether groups are to show a version that waits for it.
  void Ask(uint64_t version) {
    QueuedEvent event = NewEvent(WAYBILL_EVENT_ARRIVED);
    event.version = version;
    event.update = std::make_shared<Update>(version);
    event.answer_wanted = true;
    event.update->Ask(event.kind, Decider(version));
    Push(std::move(event));
  }
  Update::Answer Decider(uint64_t version) {
    return [shared = shared_, version](const absl::Status& answer) {
      shared->With([&](TrainerClient& client) { client.Decide(version, answer); });
    };
  }

  void OnUpdateNotice(const Notice& notice) override {
    if (notice.kind == Notice::Kind::kArrived) return Ask(notice.version);
    QueuedEvent event = NewEvent(KindOf(notice.kind));
    event.version = notice.version;
    event.group = notice.group;
    event.status = notice.status;
    event.unchanged = notice.unchanged;
    event.committed = notice.committed;
    if (notice.unchanged && !std::exchange(told_unchanged_, true)) {
      Log(LogLevel::kWarning,
          absl::StrCat("published version ", notice.version,
                       ", whose bytes are those that group \"", notice.group,
                       "\" showed before: if training goes on, it changes other memory than what "
                       "was added, as a copy by .to(dtype)"));
    }
    if (notice.kind == Notice::Kind::kDecided && !notice.status.ok()) {
      Log(LogLevel::kWarning,
          absl::StrCat("published version ", notice.version,
                       ", which not every group shows: ", notice.status.message()));
    }
    Push(std::move(event));
  }

  const SenderEngineOptions engine_;
  const std::shared_ptr<Shared<TrainerClient>> shared_ = std::make_shared<Shared<TrainerClient>>();
  std::unique_ptr<TrainerClient> client_;
  bool told_unchanged_ = false;  // On the client's thread.
};

absl::StatusOr<std::shared_ptr<TrainerObject>> CreateTrainer(
    const std::shared_ptr<Context>& context, const waybill_trainer_options_t& options) {
  WAYBILL_ASSIGN_OR_RETURN(RankParts parts, ReadRankParts(context, options.rank, options.queue,
                                                          options.manifest, Holes::kAllowed));
  WAYBILL_ASSIGN_OR_RETURN(Regions regions, FindRegions(options.regions, options.region_count,
                                                        parts.manifest, Access::kRead));
  WAYBILL_ASSIGN_OR_RETURN(auto device, OpenDeviceOf(regions));
  SenderEngineOptions engine;
  if (device != nullptr) engine = SenderEngineOptions::ForGpu();
  if (options.ring_bytes != 0) engine.ring_bytes = options.ring_bytes;
  if (options.stage_threads != 0) engine.stage_threads = options.stage_threads;
  if (options.changes > WAYBILL_CHANGES_ALWAYS) {
    return absl::InvalidArgumentError(
        absl::StrCat("changes is ", options.changes, "; the largest is ", WAYBILL_CHANGES_ALWAYS));
  }
  engine.changes = static_cast<Changes>(options.changes);
  engine.images = options.images != 0;
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

waybill_status_t waybill_trainer_join_and_wait(waybill_trainer_t* trainer, int64_t deadline_ns,
                                               waybill_error_t** error) {
  return CallOn<TrainerObject>(
      "join as a trainer", trainer, "trainer", error,
      [&](TrainerObject& found) { return found.JoinAndWait(deadline_ns); });
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

waybill_status_t waybill_trainer_release(waybill_trainer_t* trainer, uint64_t token,
                                         waybill_error_t** error) {
  return CallOn<TrainerObject>("release a version", trainer, "trainer", error,
                               [&](TrainerObject& found) { return found.Release(token); });
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
