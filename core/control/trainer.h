// A trainer's part in a job: it joins once, and publishes versions.
#ifndef WAYBILL_CORE_CONTROL_TRAINER_H_
#define WAYBILL_CORE_CONTROL_TRAINER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/control/rank_client.h"
#include "core/engine/timeline.h"
#include "core/engine/trainer_engine.h"
#include "core/engine/update.h"
#include "core/fabric/fabric.h"
#include "core/tensor/manifest.h"

namespace waybill {

struct PublishOptions {
  absl::Duration timeout = absl::ZeroDuration();  // Zero: the controller's default, 60 s.
  Digests digests = Digests::kOn;
  // Where NaNs or infinities are among what is quantised, no group shows the version: Publish() is
  // kInvalidArgument and names the tensors.
  bool fail_on_nonfinite = false;
  // Once it is requested no group shows the version because of this publish, unless it is sent
  // already; Publish() returns kCancelled within a second or so.
  std::stop_token cancel = {};
};

// What became of a version in one group.
struct GroupOutcome {
  std::string group;
  bool committed = false;
  absl::Status status;  // Why not; or what went wrong after the decision.
};

struct TrainerOptions {
  RankIdentity identity;
  TrainerEngineOptions engine;
  // Called with what AwaitOutcome() tells of each group, as soon as it is known, on the progress
  // thread.
  std::function<void(uint64_t version, const GroupOutcome&)> on_outcome = nullptr;
};

// How far the last update has come.
struct TrainerProgress {
  uint64_t version = 0;
  uint64_t planned_bytes = 0;
  TransferCounts counts;
  StageSpans stages;
};

// When the parts of the last update began on this rank.
struct PublishTimes {
  absl::Time published;  // publish() was called.
  absl::Time started;    // START came: data moves from here on.
  absl::Time sent;
  // Processor time: maxima that are worked out before they are traded, and trading them.
  absl::Duration maxima_cpu;
  absl::Duration trade_cpu;
  absl::Duration enqueued;  // What handing the whole plan to the engine took its caller.
};

// Thread-safe; one publish at a time.
class Trainer {
 public:
  // `regions`: the memory of each region of the manifest; it outlives the trainer. Returns when all
  // ranks of the job are there and every lane carries.
  //
  // kUnavailable: no controller; kUnauthenticated: a wrong token; kAlreadyExists: this rank is
  // there; kDeadlineExceeded: the message names who is missing; kInvalidArgument: the manifests do
  // not fit together.
  static absl::StatusOr<std::unique_ptr<Trainer>> Join(const TrainerOptions& options,
                                                       const Manifest& manifest,
                                                       std::vector<MemorySpan> regions,
                                                       std::unique_ptr<Fabric> fabric);
  // Leaves the job.
  virtual ~Trainer() = default;

  // Sends a version: the tensors must not change until it returns, and may afterwards, however it
  // ends. Every trainer of the job calls it with the same version. OK means SENT, not committed.
  //
  // kFailedPrecondition: not a later version than what is committed, or another is being published;
  // kDeadlineExceeded, kUnavailable, kDataLoss: no group shows it because of this one; says why.
  virtual absl::Status Publish(uint64_t version, const PublishOptions& options) = 0;

  // What became of the last published version, one for each group, when all are decided and shown.
  // kDeadlineExceeded: they are not; kCancelled: `cancel` was requested.
  virtual absl::StatusOr<std::vector<GroupOutcome>> AwaitOutcome(
      absl::Duration timeout, const std::stop_token& cancel = {}) = 0;

  // Leaves the job; what is being published ends in kCancelled. Afterwards nothing reads the
  // regions, and all else can still be asked. Again it does nothing.
  virtual void Leave() = 0;

  virtual TrainerProgress progress() const = 0;
  // Of the last update that was sent.
  virtual TransferCounts counts() const = 0;
  virtual PublishTimes times() const = 0;
  virtual StageSpans stages() const = 0;
  // Shards with NaNs or infinities among what was quantised; they are sent as they are, unless
  // PublishOptions::fail_on_nonfinite.
  virtual std::vector<NonFinite> nonfinite() const = 0;
  virtual uint64_t ring_high_water_bytes() const = 0;
  // How each peer is reached, in the epoch at hand.
  virtual std::vector<LaneReport> lanes() const = 0;
  // The job's groups: an outcome comes of each.
  virtual std::vector<std::string> groups() const = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_TRAINER_H_
