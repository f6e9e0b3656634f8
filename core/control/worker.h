// A worker's part in a job: it joins once, receives versions, and shows them.
#ifndef WAYBILL_CORE_CONTROL_WORKER_H_
#define WAYBILL_CORE_CONTROL_WORKER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/control/rank_client.h"
#include "core/engine/shown_state.h"
#include "core/engine/update.h"
#include "core/engine/worker_engine.h"
#include "core/fabric/fabric.h"
#include "core/tensor/manifest.h"

namespace waybill {

// What a worker's user is told.
struct WorkerNotice {
  enum class Kind : uint8_t {
    kPrepare = 1,  // Pause what must be paused. An error refuses the update.
    kArrived = 2,  // All of it is here and verified. An error vetoes it.
    kCommit = 3,   // It is shown. Run what comes after loading; the answer does not count.
    kAbort = 4,    // It will not be. In place the engine stays paused.
  };
  Kind kind = Kind::kPrepare;
  UpdateId update;
  absl::Status status;   // Of kAbort: why.
  absl::Duration pause;  // Of kCommit: what copying took, in shadow-copy.
};

struct WorkerOptions {
  RankIdentity identity;
  WorkerEngineOptions engine;
  // Called on a thread of its own, one notice at a time. The update waits, within its deadline,
  // until `answer` is called, by any thread, once; where the update was given up meanwhile that
  // does nothing, and so does answering kAbort. Without a handler everything is accepted at once.
  using Answer = std::function<void(absl::Status)>;
  std::function<void(const WorkerNotice&, Answer answer)> handler;
};

// How far the last update has come.
struct WorkerProgress {
  uint64_t version = 0;
  uint64_t planned_bytes = 0;
  uint64_t verified_bytes = 0;
  StageSpans stages;
};

// Thread-safe.
class Worker {
 public:
  // `user_regions`: the inference engine's memory for each region of the manifest, or none where
  // Waybill is to allocate (see WorkerMemory). Returns when all ranks of the job are there and
  // every lane carries. Errors as Trainer::Join() has them; and kResourceExhausted: no memory for
  // the buffers.
  static absl::StatusOr<std::unique_ptr<Worker>> Join(const WorkerOptions& options,
                                                      Manifest manifest,
                                                      const std::vector<MemorySpan>& user_regions,
                                                      std::unique_ptr<Fabric> fabric);
  // Leaves the job.
  virtual ~Worker() = default;

  // Comes back after the controller was lost, with what is shown and, if a vote was given and the
  // decision not heard, with the question: the answer is carried out before this returns.
  virtual absl::Status Rejoin() = 0;

  // Leaves the job. Afterwards nobody writes to any memory of this worker's; what is shown can
  // still be read. Again it does nothing.
  virtual void Leave() = 0;

  virtual absl::StatusOr<Snapshot> TakeSnapshot(absl::string_view holder) = 0;
  virtual uint64_t shown_version() const = 0;
  // Written in place and not committed: nothing can be read.
  virtual bool dirty() const = 0;
  // Voted for a version and lost the controller: shows the old one, refuses updates, until
  // Rejoin().
  virtual bool in_doubt() const = 0;

  // Until a version of at least `version` is shown. kUnavailable: the controller is gone, or has
  // dismissed this rank; kDeadlineExceeded.
  virtual absl::Status AwaitShown(uint64_t version, absl::Duration timeout) = 0;
  // Until the stream to the controller has ended; why it did. OK at the timeout.
  virtual absl::Status AwaitEnd(absl::Duration timeout) = 0;

  virtual WorkerProgress progress() const = 0;
  virtual WorkerCounts counts() const = 0;
  // Of the update that was shown last.
  virtual StageSpans stages() const = 0;
  // How each peer is reached, in the epoch at hand.
  virtual std::vector<LaneReport> lanes() const = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_WORKER_H_
