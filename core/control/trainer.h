// SPDX-License-Identifier: Apache-2.0

// A trainer with blocking calls, for programs and tests in C++.
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
  // If the quantised elements include NaNs or infinities, no group shows the version, and Publish()
  // returns kInvalidArgument and names the tensors.
  bool fail_on_nonfinite = false;
  // Holds the version: the tensors do not change before Release(), so that groups which have missed
  // the version can get it.
  bool hold = false;
  // Groups that have received the whole version wait for Decide(), at most until `timeout` is over.
  // All trainers must publish the version with the same value.
  bool hold_commit = false;
  // If not 0, Publish() goes on, at most until `timeout` is over, while a required group that
  // fetches versions shows one that is older by more than this number.
  uint64_t max_behind = 0;
  // The span of which the update is a part, as a W3C traceparent; empty: none.
  std::string traceparent = {};
  // Once a stop is requested, no group shows the version because of this publish, unless it has
  // been sent already. Publish() returns kCancelled within about a second.
  std::stop_token cancel = {};
};

// The outcome of a version in one group.
struct GroupOutcome {
  std::string group;
  bool committed = false;
  absl::Status status;  // Why the version was not committed, or the error after the decision.
};

struct TrainerOptions {
  RankIdentity identity;
  SenderEngineOptions engine;
  absl::Duration join_timeout = kJoinTimeout;
  // Once a stop is requested, Join() returns kCancelled.
  std::stop_token cancel = {};
  // Called with every notice, on the progress thread.
  NoticeSink on_notice = nullptr;
};

// Thread-safe; one publish at a time.
class Trainer {
 public:
  // See TrainerClient::Create() and Join(). Returns once the rank has joined.
  static absl::StatusOr<std::unique_ptr<Trainer>> Join(const TrainerOptions& options,
                                                       const Manifest& manifest,
                                                       std::vector<MemorySpan> regions,
                                                       std::unique_ptr<Fabric> fabric);
  ~Trainer();

  // Returns once the version is SENT, not committed; see TrainerClient::Publish().
  absl::Status Publish(uint64_t version, const PublishOptions& options);

  // Returns once every group that has not given up the last published version has received all of
  // it and waits for Decide(). kDeadlineExceeded: `timeout` is over. Any other error is the reason
  // why no group waits any more.
  absl::Status AwaitArrived(absl::Duration timeout);
  // Decides whether groups show the version for which AwaitArrived() waited: OK, or the reason why
  // not. The first decision of any trainer counts.
  void Decide(const absl::Status& word);

  // Returns the outcome of the last published version in each group, once every group has decided
  // and shown it, or the publish has failed. kDeadlineExceeded: a group has not; kCancelled:
  // `cancel` was requested.
  absl::StatusOr<std::vector<GroupOutcome>> AwaitOutcome(absl::Duration timeout,
                                                         const std::stop_token& cancel = {});

  // Ends the hold of a version, if there is one. Nothing reads the tensors once it returns.
  absl::Status Release();

  // Leaves the job. Nothing reads the regions afterwards. A second call has no effect.
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
