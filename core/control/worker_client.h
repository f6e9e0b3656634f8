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

// Thread-safe. A command with a token returns at once. A notice with the same token answers it.
class WorkerClient {
 public:
  // `user_regions`: the inference engine's memory for each region of the manifest, or none if
  // Waybill is to allocate it (see ReceiverMemory); it must stay valid until the client is
  // destroyed, or until kLeft after Leave(). All memory is allocated when this returns. `asked`:
  // the notices among kPrepare, kArrived and kCommit for whose answer an update waits; the others
  // are accepted at once.
  //
  // kResourceExhausted: out of memory for the buffers; kInvalidArgument: the regions do not fit.
  static absl::StatusOr<std::unique_ptr<WorkerClient>> Create(
      const RankIdentity& identity, const ReceiverEngineOptions& engine, Manifest manifest,
      const std::vector<MemorySpan>& user_regions, std::set<Notice::Kind> asked,
      std::unique_ptr<Fabric> fabric, NoticeSink sink);
  // Leaves the job if Leave() was not called. No notice follows the destructor.
  virtual ~WorkerClient() = default;

  // See TrainerClient::Join().
  virtual void Join(uint64_t token, absl::Time deadline) = 0;
  // See WorkerSession::Fetch().
  virtual void Fetch(uint64_t token, uint64_t at_least, absl::Time deadline) = 0;
  // Answers a notice. Has no effect if the answer is no longer waited for.
  virtual void Answer(Notice::Kind kind, const UpdateId& update, const absl::Status& answer) = 0;
  // Leaves the job. First shows a committed version, for which it waits up to ten seconds for
  // snapshots to end. No rank writes to this worker's memory after kLeft. The shown version can
  // still be read.
  virtual void Leave(uint64_t token) = 0;

  // See ReceiverEngine. These block only while the driver and the network register memory.
  virtual absl::Status Pause() = 0;
  virtual void Resume(bool kept) = 0;

  virtual absl::StatusOr<Snapshot> TakeSnapshot(absl::string_view holder) = 0;
  // See ReceiverEngine::Verify().
  virtual absl::StatusOr<uint64_t> Verify() = 0;
  virtual uint64_t shown_version() const = 0;  // 0 if nothing is shown.
  // Returns true while nothing can be read: the shown memory is being written, was left partly
  // written by a failed update, or lost its contents (Resume(false)).
  virtual bool dirty() const = 0;
  virtual WorkerReport report() const = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_WORKER_CLIENT_H_
