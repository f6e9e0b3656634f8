// SPDX-License-Identifier: Apache-2.0

// The base of the C ABI's trainers and workers.
#ifndef WAYBILL_CAPI_RANK_H_
#define WAYBILL_CAPI_RANK_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "capi/call.h"
#include "capi/context.h"
#include "capi/object.h"
#include "capi/queue.h"
#include "capi/region.h"
#include "capi/struct_size.h"
#include "capi/waybill.h"
#include "core/control/rank_client.h"
#include "core/device/device.h"
#include "core/engine/timeline.h"
#include "core/fabric/choice/make_fabric.h"
#include "core/tensor/manifest.h"
#include "core/tensor/manifest_check.h"

namespace waybill::capi {

// A checked waybill_rank_options_t.
struct RankConfig {
  std::string rack;  // Empty if unknown.
  RankIdentity identity;
  FabricOptions fabric;
  std::function<void(LogLevel level, absl::string_view line)> log;
  uint64_t user = 0;
};

// The options that both roles have in common, without the regions.
struct RankParts {
  RankConfig config;
  std::shared_ptr<Queue> queue;
  Manifest manifest;  // Checked.
};
absl::StatusOr<RankParts> ReadRankParts(const std::shared_ptr<Context>& context,
                                        const waybill_rank_options_t* rank,
                                        const waybill_queue_t* queue,
                                        const waybill_manifest_t* manifest, Holes holes);

// Returns kFailedPrecondition, for a call that needs a rank which has joined.
absl::Status NotJoined();

// Shares a client with other threads until Set(nullptr) takes it away.
template <typename Client>
class Shared {
 public:
  void Set(Client* client) {
    const std::lock_guard lock(mutex_);
    client_ = client;
  }
  // Runs `use(client)` unless the client was taken away.
  template <typename Use>
  void With(Use use) {
    const std::lock_guard lock(mutex_);
    if (client_ != nullptr) use(*client_);
  }

 private:
  std::mutex mutex_;
  Client* client_ = nullptr;
};

// Sends commands to a client and turns the client's notices into events. Keeps its parents alive:
// context, queue and regions.
class Rank : public Object {
 public:
  // Leaves the job, with an event for each call that is under way. Returns once nothing reads or
  // writes the regions.
  void Close() final;

  // Leaves the job; one LEFT event follows. kFailedPrecondition: the rank has left.
  absl::Status Leave(uint64_t user_token);

  virtual waybill_progress_t progress() const = 0;
  virtual nlohmann::json Describe() const = 0;

 protected:
  // Logs the rank's name and `what`.
  void Log(LogLevel level, absl::string_view what) const;
  // `device` is the GPU of the regions that are GPU memory, or null if none is.
  Rank(uint32_t source, RankParts parts, Regions regions, std::shared_ptr<Device> device);
  ~Rank() override;

  // Joins the job; one JOINED event follows. kFailedPrecondition: the rank has joined, is joining,
  // or has left.
  absl::Status Join(int64_t deadline_ns, uint64_t user_token);
  // Does the same, and returns how it ended. No event follows.
  absl::Status JoinAndWait(int64_t deadline_ns);
  // Returns kFailedPrecondition unless the rank has joined and not left.
  absl::Status CheckJoined() const;

  // Returns the token by which the client knows a call. The event that ends the call carries
  // `user_token`.
  uint64_t NewToken(uint64_t user_token);
  void ForgetToken(uint64_t token);
  // Returns the client's sink, which turns notices into events.
  NoticeSink sink() {
    return [this](const Notice& notice) { OnNotice(notice); };
  }

  // Returns a new event of this rank.
  QueuedEvent NewEvent(uint32_t kind) const;
  void Push(QueuedEvent event) const { queue_->Push(std::move(event)); }

  absl::StatusOr<std::unique_ptr<Fabric>> MakeOwnFabric() const;
  nlohmann::json DescribeIdentity(absl::string_view role) const;

  // Makes the client. May take long, because it reserves all memory.
  virtual absl::Status MakeClient() = 0;
  virtual void JoinClient(uint64_t token, absl::Time deadline) = 0;
  virtual void LeaveClient(uint64_t token) = 0;
  // Handles a notice of an update, on the client's thread.
  virtual void OnUpdateNotice(const Notice& notice) = 0;

  const RankConfig config_;
  std::atomic<uint32_t> rank_;  // As declared; once it has joined, the controller's choice.
  const Manifest manifest_;
  const Regions regions_;
  const std::shared_ptr<Device> device_;

 private:
  enum class State { kNew, kJoining, kJoined, kLeaving, kLeft };

  absl::Status BeginJoin(int64_t deadline_ns, uint64_t user_token,
                         std::optional<std::promise<absl::Status>> ended);
  void OpenAndJoin(uint64_t token, absl::Time deadline);
  void OnNotice(const Notice& notice);
  void OnJoined(const Notice& notice);
  // Pushes the event that ends a call.
  void PushEnd(uint32_t kind, const Notice& notice);
  void LogJoined() const;  // Also logs the path to each peer.

  const uint32_t source_;
  const std::shared_ptr<Queue> queue_;
  std::mutex close_mutex_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  State state_ = State::kNew;
  bool has_client_ = false;  // True once the client has been told to join.
  uint64_t last_token_ = 0;
  std::map<uint64_t, uint64_t> user_tokens_;              // Calls under way, by the client's token.
  std::optional<std::promise<absl::Status>> join_ended_;  // Takes the place of the JOINED event.
  uint64_t leave_token_ = 0;
  bool silent_leave_ = false;  // True if no LEFT event is to be pushed.
  std::thread opener_;         // Makes the client.
};

// Implement waybill_trainer_progress(), waybill_worker_progress() and the two describe functions.
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
    *out_json = MakeHandle(std::make_shared<Blob>(found->Describe().dump()));
    return absl::OkStatus();
  });
}

// Returns [{"peer", "co_owner", "relay", "path"}].
nlohmann::json LanesToJson(const std::vector<LaneReport>& lanes);
// Copies the times to begin_ns and end_ns.
void CopySpans(const StageSpans& spans, waybill_progress_t& progress);

}  // namespace waybill::capi

#endif  // WAYBILL_CAPI_RANK_H_
