// SPDX-License-Identifier: Apache-2.0

// A worker with a thread and a stream of its own: commands go in, notices come out.
#ifndef WAYBILL_CORE_CONTROL_WORKER_CLIENT_H_
#define WAYBILL_CORE_CONTROL_WORKER_CLIENT_H_

#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/control/rank_client.h"
#include "core/control/worker_rank.h"
#include "core/engine/receiver_engine.h"
#include "core/fabric/fabric.h"
#include "core/tensor/manifest.h"

namespace waybill {

// Thread-safe. A command with a token returns at once; a notice with the same token answers it.
class WorkerClient {
 public:
  // `user_regions`: the inference engine's memory for each region of the manifest, or none if
  // Waybill is to allocate it (see ReceiverMemory); it outlives the client, or Leave() and kLeft.
  // All memory is reserved when this returns. `asked`: the notices among kPrepare, kArrived and
  // kCommit that the update waits with until they are answered; the others are accepted at once.
  //
  // kResourceExhausted: no memory for the buffers; kInvalidArgument: the regions do not fit.
  static absl::StatusOr<std::unique_ptr<WorkerClient>> Create(
      const RankIdentity& identity, const ReceiverEngineOptions& engine, Manifest manifest,
      const std::vector<MemorySpan>& user_regions, std::set<Notice::Kind> asked,
      std::unique_ptr<Fabric> fabric, NoticeSink sink);
  // Leaves the job if it has not; no notice comes afterwards.
  virtual ~WorkerClient() = default;

  // As TrainerClient::Join().
  virtual void Join(uint64_t token, absl::Time deadline) = 0;
  // Answers a notice. Does nothing if nobody waits for the answer any more.
  virtual void Answer(Notice::Kind kind, const UpdateId& update, const absl::Status& answer) = 0;
  // Leaves the job; what is committed is shown first, for which readers are waited for up to ten
  // seconds. Nobody writes to any memory of this worker's after kLeft; what is shown can still be
  // read.
  virtual void Leave(uint64_t token) = 0;

  // As ReceiverEngine has them. They take as long as the driver and the network need to register
  // memory, and wait for nothing else.
  virtual absl::Status Pause() = 0;
  virtual void Resume(bool kept) = 0;

  virtual absl::StatusOr<Snapshot> TakeSnapshot(absl::string_view holder) = 0;
  // As ReceiverEngine::Verify().
  virtual absl::StatusOr<uint64_t> Verify() = 0;
  virtual uint64_t shown_version() const = 0;  // 0: none.
  // Returns true while nothing can be read: the shown memory is being written, was left partly
  // written by an update that failed, or lost its contents (Resume(false)).
  virtual bool dirty() const = 0;
  virtual WorkerReport report() const = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_WORKER_CLIENT_H_
