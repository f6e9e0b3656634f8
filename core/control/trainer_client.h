// SPDX-License-Identifier: Apache-2.0

// A trainer with a thread and a stream of its own: commands go in, notices come out.
#ifndef WAYBILL_CORE_CONTROL_TRAINER_CLIENT_H_
#define WAYBILL_CORE_CONTROL_TRAINER_CLIENT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/control/rank_client.h"
#include "core/control/trainer_rank.h"
#include "core/engine/sender_engine.h"
#include "core/fabric/fabric.h"
#include "core/tensor/manifest.h"

namespace waybill {

// Thread-safe. No command waits: each is answered by the notice of its kind with its token.
class TrainerClient {
 public:
  // `regions`: the memory of each region of the manifest; it outlives the client, or Leave() and
  // kLeft. Nothing is opened before Join().
  static absl::StatusOr<std::unique_ptr<TrainerClient>> Create(
      const RankIdentity& identity, const SenderEngineOptions& engine, const Manifest& manifest,
      std::vector<MemorySpan> regions, std::unique_ptr<Fabric> fabric, NoticeSink sink);
  // Leaves the job if it has not; no notice comes afterwards.
  virtual ~TrainerClient() = default;

  // kJoined follows once all ranks of the job are there and every lane carries, or by the deadline.
  //
  // kUnavailable: no controller; kUnauthenticated: the controller has another token;
  // kAlreadyExists: this rank is there; kDeadlineExceeded: names who is missing; kInvalidArgument:
  // the manifests do not fit together.
  virtual void Join(uint64_t token, absl::Time deadline) = 0;

  // Sends a version; kPublished follows. The tensors must not change before it, and may afterwards,
  // however it ends, unless the version is held. Every trainer of the job publishes the same
  // versions.
  //
  // kFailedPrecondition: the version is not later than earlier ones, or a version is still held.
  // After this or any other error no group shows the version because of this publish, except with
  // until_committed: an error may then come after the version is sent, and groups may show it.
  virtual void Publish(uint64_t token, const PublishCommand& command) = 0;
  // Lets the publish with this token go on, if what PublishCommand::waits_for names is done, or
  // ends it with the error.
  virtual void Proceed(uint64_t token, const absl::Status& done) = 0;
  // Ends the hold of the last version that was published with PublishCommand::hold; kReleased
  // follows, after which nothing reads the tensors.
  virtual void Release(uint64_t token) = 0;
  // Says whether groups are to show a version that was published with PublishCommand::hold_commit:
  // OK after kArrived, or why not; see TrainerSession::Decide().
  virtual void Decide(uint64_t version, const absl::Status& word) = 0;
  virtual void Cancel(uint64_t token) = 0;

  // Leaves the job; what is being published ends in kCancelled. Nothing reads the regions after
  // kLeft.
  virtual void Leave(uint64_t token) = 0;

  virtual TrainerReport report() const = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_TRAINER_CLIENT_H_
