// What trainers and workers of the C ABI have in common.
#ifndef WAYBILL_CAPI_RANK_H_
#define WAYBILL_CAPI_RANK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "capi/call.h"
#include "capi/call_thread.h"
#include "capi/context.h"
#include "capi/object.h"
#include "capi/queue.h"
#include "capi/region.h"
#include "capi/struct_size.h"
#include "capi/waybill.h"
#include "core/control/rank_client.h"
#include "core/engine/timeline.h"
#include "core/fabric/choice/make_fabric.h"
#include "core/tensor/manifest.h"
#include "core/tensor/manifest_check.h"
#include "kernels/cuda/device.h"

namespace waybill::capi {

// A waybill_rank_options_t, checked.
struct RankConfig {
  RankIdentity identity;
  FabricOptions fabric;
  std::function<void(LogLevel level, absl::string_view line)> log;
  uint64_t user = 0;
};

// What the options of both roles have, but for the regions.
struct RankParts {
  RankConfig config;
  std::shared_ptr<Queue> queue;
  Manifest manifest;  // Checked.
};
absl::StatusOr<RankParts> ReadRankParts(const std::shared_ptr<Context>& context,
                                        const waybill_rank_options_t* rank,
                                        const waybill_queue_t* queue,
                                        const waybill_manifest_t* manifest, Holes holes);

// Keeps its parents alive: context, queue, regions. Calls are carried out on a thread, one after
// the other; what they do themselves is under no lock of this class.
class Rank : public Object {
 public:
  // Cancels the calls under way, drops the others with their events, and leaves.
  void Close() final;

  // One LEFT event follows. kFailedPrecondition: it has left.
  absl::Status Leave(uint64_t token);

  virtual waybill_progress_t progress() const = 0;
  virtual std::string Describe() const = 0;

 protected:
  // `device` has the regions that are a device's memory; null where none is.
  Rank(uint32_t source, RankParts parts, Regions regions,
       std::shared_ptr<kernels::cuda::Device> device);

  // `run` joins. kFailedPrecondition: it has joined, is joining, or has left.
  absl::Status BeginJoin(int64_t deadline_ns, uint64_t token,
                         std::function<absl::Status(const RankIdentity&)> run);
  // For calls after JOINED, until leaving. kFailedPrecondition.
  absl::Status CheckJoined() const;

  // Queues a call, whose end is an event of that kind.
  void Do(uint32_t kind, uint64_t token, uint64_t version, std::function<absl::Status()> run);
  // An event of this rank's.
  QueuedEvent NewEvent(uint32_t kind) const;
  void Push(QueuedEvent event) const { queue_->Push(std::move(event)); }

  absl::StatusOr<std::unique_ptr<Fabric>> MakeOwnFabric() const;
  nlohmann::json DescribeIdentity(absl::string_view role) const;

  // On the thread that carries calls out, or where none are any more.
  virtual void LeaveNow() = 0;
  // Calls under way are to end soon; any thread.
  virtual void CancelCalls() = 0;

  const RankConfig config_;
  const Manifest manifest_;
  const Regions regions_;
  const std::shared_ptr<kernels::cuda::Device> device_;

 private:
  enum class State { kNew, kJoining, kJoined, kLeaving, kLeft };

  void SetState(State state);
  // To the log: the rank's name, and `what`.
  void Log(LogLevel level, absl::string_view what) const;
  void LogJoined() const;  // And by which path it reaches each peer.

  const uint32_t source_;
  const std::shared_ptr<Queue> queue_;
  std::stop_source stop_;  // Of joining.
  std::mutex close_mutex_;
  mutable std::mutex mutex_;
  State state_ = State::kNew;  // Guarded by mutex_.
  CallThread calls_;
};

// What waybill_trainer_progress() and waybill_worker_progress() do, and the two that describe.
template <typename T>
waybill_status_t TellProgress(absl::string_view doing, const typename T::Handle* handle,
                              absl::string_view name, waybill_progress_t* out_progress,
                              waybill_error_t** error) noexcept {
  return Call(doing, error, [&]() -> absl::Status {
    WAYBILL_RETURN_IF_ERROR(CheckStructSize(out_progress, "out_progress"));
    WAYBILL_ASSIGN_OR_RETURN(const auto found, Find<T>(handle, name));
    WriteStruct(found->progress(), out_progress);
    return absl::OkStatus();
  });
}
template <typename T>
waybill_status_t TellDescription(absl::string_view doing, const typename T::Handle* handle,
                                 absl::string_view name, waybill_blob_t** out_json,
                                 waybill_error_t** error) noexcept {
  return Call(doing, error, [&]() -> absl::Status {
    WAYBILL_RETURN_IF_ERROR(CheckOutput(out_json, "out_json"));
    WAYBILL_ASSIGN_OR_RETURN(const auto found, Find<T>(handle, name));
    *out_json = MakeHandle(std::make_shared<Blob>(found->Describe()));
    return absl::OkStatus();
  });
}

// [{"peer", "co_owner", "path"}]
nlohmann::json LanesToJson(const std::vector<LaneReport>& lanes);
// Into the begin_ns and end_ns of a progress.
void CopySpans(const StageSpans& spans, waybill_progress_t& progress);

}  // namespace waybill::capi

#endif  // WAYBILL_CAPI_RANK_H_
