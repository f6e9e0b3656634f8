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
#include "absl/time/time.h"
#include "capi/call_thread.h"
#include "capi/context.h"
#include "capi/object.h"
#include "capi/queue.h"
#include "capi/region.h"
#include "capi/waybill.h"
#include "core/control/rank_client.h"
#include "core/engine/timeline.h"
#include "core/fabric/choice/make_fabric.h"
#include "core/tensor/manifest.h"

namespace waybill::capi {

// A waybill_rank_options_t, checked.
struct RankConfig {
  RankIdentity identity;
  FabricOptions fabric;
  uint64_t user = 0;
};
absl::StatusOr<RankConfig> ReadRankConfig(const waybill_rank_options_t* given,
                                          const std::shared_ptr<Context>& context);

// Keeps its parents alive: context, queue, regions. Calls are carried out on a thread, one after
// the other; what they do themselves is under no lock of this class.
class Rank : public Object {
 public:
  // Cancels the calls under way, drops the others with their events, and leaves.
  void Close() final;

 protected:
  Rank(uint32_t source, std::shared_ptr<Queue> queue, RankConfig config, Manifest manifest,
       Regions regions);

  // `run` joins. kFailedPrecondition: it has joined, is joining, or has left.
  absl::Status BeginJoin(int64_t deadline_ns, uint64_t token,
                         std::function<absl::Status(const RankIdentity&)> run);
  // For calls after JOINED, until leaving. kFailedPrecondition.
  absl::Status CheckJoined() const;
  absl::Status BeginLeave(uint64_t token);

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

 private:
  enum class State { kNew, kJoining, kJoined, kLeaving, kLeft };

  void SetState(State state);

  const uint32_t source_;
  const std::shared_ptr<Queue> queue_;
  std::stop_source stop_;  // Of joining.
  std::mutex close_mutex_;
  mutable std::mutex mutex_;
  State state_ = State::kNew;  // Guarded by mutex_.
  CallThread calls_;
};

// [{"peer", "co_owner", "path"}]
nlohmann::json LanesToJson(const std::vector<LaneReport>& lanes);
// Into the begin_ns and end_ns of a progress.
void CopySpans(const StageSpans& spans, waybill_progress_t& progress);

}  // namespace waybill::capi

#endif  // WAYBILL_CAPI_RANK_H_
