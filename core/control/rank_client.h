// What trainers and workers have in common: joining, the plan, the lanes, and the end.
#ifndef WAYBILL_CORE_CONTROL_RANK_CLIENT_H_
#define WAYBILL_CORE_CONTROL_RANK_CLIENT_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/rank_id.h"
#include "core/control/control.pb.h"
#include "core/control/engine_thread.h"
#include "core/control/rank_stream.h"
#include "core/engine/update.h"
#include "core/fabric/fabric.h"
#include "core/plan/plan_codec.h"
#include "core/tensor/manifest.h"

namespace waybill {

// Who a rank is, and where it belongs. Declared, never inferred.
struct RankIdentity {
  std::string controller = "127.0.0.1:7070";
  std::string job = "waybill";
  std::string token;
  uint32_t rank = 0;
  uint32_t world = 1;
  std::string group = "all";  // Of a worker.
  absl::Duration join_timeout = absl::Minutes(2);
  // Once it is requested, joining ends in kCancelled.
  std::stop_token cancel = {};
  // Called once for each stream that was established and has ended, with why, on the progress
  // thread; not where this rank left.
  std::function<void(const absl::Status&)> on_end = nullptr;
};

// Messages are handled on the progress thread, where the engine lives, so that handlers need no
// lock for what belongs to it. What callers wait for is under `mutex_`.
class RankClient {
 public:
  virtual ~RankClient() = default;

  RankId id() const { return id_; }
  // Why the stream ended; OK while it lives.
  absl::Status stream_status() const;
  // How each peer is reached, in the epoch at hand.
  std::vector<LaneReport> lanes() const;

 protected:
  RankClient(RankId id, RankIdentity identity, const Manifest& manifest,
             std::unique_ptr<Fabric> fabric);

  // Opens the stream, says who this is, and returns when every lane of the job carries, or at the
  // deadline. `join` has what only this role declares.
  absl::Status Attend(proto::Join join);
  // Says goodbye; after EndOnThread(). After this no handler runs, and the progress thread has
  // ended.
  void Shut();

  bool joined() const { return thread_ != nullptr; }
  // What an end of the stream does, because this rank wants it; on any other than the progress
  // thread.
  void EndOnThread(const absl::Status& status);

  void Send(proto::RankMessage message);

  // On the progress thread.
  virtual void Step() = 0;
  virtual absl::StatusOr<proto::Offers> OnPlan(RankPlan plan, uint64_t plan_hash,
                                               const std::vector<PeerLanes>& lanes) = 0;
  virtual absl::Status OnConnect(const proto::Connect& connect) = 0;
  virtual void OnUpdateMessage(const proto::ControllerMessage& message) = 0;
  virtual void OnStreamEnd(const absl::Status& status) = 0;

  // Tells the controller of this rank's NICs where they are others than it knows.
  void SendNicsIfChanged();

  // The engine says that all lanes carry, or that one cannot.
  void LanesConnected(const std::vector<LaneReport>& lanes);
  void LanesFailed(const absl::Status& status);

  // Waits for `ready` under the lock, which is notified by NotifyAll(). False at the deadline.
  template <typename Ready>
  bool AwaitLocked(std::unique_lock<std::mutex>& lock, absl::Time deadline, Ready ready) {
    return changed_.wait_until(lock, absl::ToChronoTime(deadline), ready);
  }
  void NotifyAll() { changed_.notify_all(); }
  // For who changes what is not under the lock: it does not come between a waiter's look and its
  // sleep.
  void WakeWaiters() {
    const std::lock_guard lock(mutex_);
    NotifyAll();
  }

  Fabric& fabric() { return *fabric_; }
  EngineThread& thread() { return *thread_; }
  void StartThread();
  uint64_t epoch() const { return epoch_; }

  const RankIdentity identity_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  bool established_ = false;
  absl::Status end_ = absl::OkStatus();  // Of the stream.
  std::vector<std::string> groups_;
  std::vector<LaneReport> lanes_;

 private:
  void Handle(const proto::ControllerMessage& message);
  void TakeRoutes(const proto::Part& part);
  void End(const absl::Status& status);

  const RankId id_;
  std::string manifest_bytes_;
  std::unique_ptr<Fabric> fabric_;
  std::condition_variable changed_;
  std::string
      table_;  // The routes, while their parts come. On the progress thread, as is the rest.
  proto::Plan plan_;
  std::string nics_;  // As the controller knows them, encoded.
  absl::Time nics_due_ = absl::InfinitePast();
  bool leaving_ = false;
  uint64_t epoch_ = 0;
  std::unique_ptr<EngineThread> thread_;
  std::mutex stream_mutex_;
  std::unique_ptr<RankStream> stream_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_RANK_CLIENT_H_
