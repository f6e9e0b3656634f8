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

// Thread-safe. No command blocks: each is answered by the notice of its kind with its token.
class TrainerClient {
 public:
  // `regions`: the memory of each region of the manifest. It must stay valid until the client is
  // destroyed, or until kLeft after Leave(). Nothing is opened before Join().
  static absl::StatusOr<std::unique_ptr<TrainerClient>> Create(
      const RankIdentity& identity, const SenderEngineOptions& engine, const Manifest& manifest,
      std::vector<MemorySpan> regions, std::unique_ptr<Fabric> fabric, NoticeSink sink);
  // Leaves the job if Leave() was not called. No notice follows the destructor.
  virtual ~TrainerClient() = default;

  // Joins the job. kJoined follows once all ranks of the job have joined and every lane works, or
  // by the deadline.
  //
  // kUnavailable: no controller answers; kUnauthenticated: the controller has another token;
  // kAlreadyExists: the rank is taken; kDeadlineExceeded: names the missing ranks;
  // kInvalidArgument: the manifests do not fit together.
  virtual void Join(uint64_t token, absl::Time deadline) = 0;

  // Sends a version; kPublished follows. The tensors must not change before kPublished. They may
  // change afterwards, whether the publish succeeded or not, unless the version is held. All
  // trainers of the job must publish the same versions.
  //
  // kFailedPrecondition: the version is not greater than all earlier ones, or a version is still
  // held. After any error no group shows the version because of this publish, except with
  // until_committed: the error may then come after the version was sent, and groups may show it.
  virtual void Publish(uint64_t token, const PublishCommand& command) = 0;
  // Lets the publish with this token continue if `done` is OK, that is, if the event that
  // PublishCommand::waits_for names has happened; otherwise ends the publish with the error.
  virtual void Proceed(uint64_t token, const absl::Status& done) = 0;
  // Ends the hold of the last version that was published with PublishCommand::hold; kReleased
  // follows, after which nothing reads the tensors.
  virtual void Release(uint64_t token) = 0;
  // Decides whether groups show a version that was published with PublishCommand::hold_commit: OK
  // after kArrived, or the reason why not. See TrainerSession::Decide().
  virtual void Decide(uint64_t version, const absl::Status& word) = 0;
  virtual void Cancel(uint64_t token) = 0;

  // Leaves the job. Publishes that are going on end with kCancelled. Nothing reads the regions
  // after kLeft.
  virtual void Leave(uint64_t token) = 0;

  virtual TrainerReport report() const = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_TRAINER_CLIENT_H_
