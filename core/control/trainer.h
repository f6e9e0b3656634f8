// SPDX-License-Identifier: Apache-2.0

// A trainer whose calls wait: for programs and tests in C++.
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
#include "core/control/trainer_client.h"
#include "core/protocol/timeouts.h"

namespace waybill {

struct PublishOptions {
  absl::Duration timeout = kPublishTimeout;
  Digests digests = Digests::kOn;
  // If NaNs or infinities are among what is quantised, no group shows the version: Publish() is
  // kInvalidArgument and names the tensors.
  bool fail_on_nonfinite = false;
  // The tensors do not change before Release(): groups that have missed the version get it.
  bool hold = false;
  // Groups that have all of it wait for Decide(), at most until `timeout` is over. Every trainer
  // publishes the version alike.
  bool hold_commit = false;
  // Once a stop is requested no group shows the version because of this publish, unless it is sent
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
  SenderEngineOptions engine;
  absl::Duration join_timeout = kJoinTimeout;
  // Once a stop is requested, joining ends in kCancelled.
  std::stop_token cancel = {};
  // Called with every notice, on the progress thread.
  NoticeSink on_notice = nullptr;
};

// Thread-safe; one publish at a time.
class Trainer {
 public:
  // As TrainerClient::Create() and Join(); returns once the rank has joined.
  static absl::StatusOr<std::unique_ptr<Trainer>> Join(const TrainerOptions& options,
                                                       const Manifest& manifest,
                                                       std::vector<MemorySpan> regions,
                                                       std::unique_ptr<Fabric> fabric);
  ~Trainer();

  // Returns once the version is SENT, not committed; see TrainerClient::Publish().
  absl::Status Publish(uint64_t version, const PublishOptions& options);

  // Returns once every group that has not given the last published version up has all of it, and
  // waits for Decide(). kDeadlineExceeded: not within `timeout`. Otherwise, if no group waits for
  // it any more, the reason.
  absl::Status AwaitArrived(absl::Duration timeout);
  // Says whether groups are to show the version that AwaitArrived() has waited for: OK, or why not.
  // The first word of any trainer counts.
  void Decide(const absl::Status& word);

  // Returns what became of the last published version, one outcome for each group, once all have
  // decided and shown it, or the publish has failed. kDeadlineExceeded: they have not; kCancelled:
  // `cancel` was requested.
  absl::StatusOr<std::vector<GroupOutcome>> AwaitOutcome(absl::Duration timeout,
                                                         const std::stop_token& cancel = {});

  // Ends the hold of a version, if there is one; nothing reads the tensors when it returns.
  absl::Status Release();

  // Leaves the job. Nothing reads the regions afterwards. Again it does nothing.
  void Leave();

  TrainerReport report() const { return client_->report(); }

 private:
  class Mailbox;
  Trainer(std::shared_ptr<Mailbox> mailbox, std::unique_ptr<TrainerClient> client);

  const std::shared_ptr<Mailbox> mailbox_;
  const std::unique_ptr<TrainerClient> client_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_TRAINER_H_
