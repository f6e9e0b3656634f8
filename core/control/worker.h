// SPDX-License-Identifier: Apache-2.0

// A worker with blocking calls, for programs and tests in C++.
#ifndef WAYBILL_CORE_CONTROL_WORKER_H_
#define WAYBILL_CORE_CONTROL_WORKER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/control/worker_client.h"
#include "core/protocol/timeouts.h"

namespace waybill {

struct WorkerOptions {
  RankIdentity identity;
  ReceiverEngineOptions engine;
  absl::Duration join_timeout = kJoinTimeout;
  // Once a stop is requested, Join() returns kCancelled.
  std::stop_token cancel = {};
  // Called with kPrepare, kArrived, kCommit and kAbort, one at a time, on a thread of its own. The
  // update waits, within its deadline, until `answer` is called once, on any thread. The answer has
  // no effect for kAbort, or if the update was given up meanwhile. Without a handler every notice
  // is accepted at once.
  using Answer = std::function<void(absl::Status)>;
  std::function<void(const Notice&, Answer answer)> handler = nullptr;
  // Called with every notice, on the progress thread.
  NoticeSink on_notice = nullptr;
};

// Thread-safe.
class Worker {
 public:
  // See WorkerClient::Create() and Join(). Returns once the rank has joined.
  static absl::StatusOr<std::unique_ptr<Worker>> Join(const WorkerOptions& options,
                                                      Manifest manifest,
                                                      const std::vector<MemorySpan>& user_regions,
                                                      std::unique_ptr<Fabric> fabric);
  ~Worker();

  // Leaves the job. Afterwards no rank writes to this worker's memory. The shown version can still
  // be read. A second call has no effect.
  void Leave();

  absl::StatusOr<Snapshot> TakeSnapshot(absl::string_view holder) {
    return client_->TakeSnapshot(holder);
  }
  // See ReceiverEngine::Verify().
  absl::StatusOr<uint64_t> Verify() { return client_->Verify(); }
  uint64_t shown_version() const { return client_->shown_version(); }
  bool dirty() const { return client_->dirty(); }
  WorkerReport report() const { return client_->report(); }

  // Gets the newest version, and returns the version that is shown then; see
  // WorkerSession::Fetch().
  absl::StatusOr<uint64_t> Fetch(absl::Duration timeout, uint64_t at_least = 0);

  // Waits until `version` or a later version is shown. kDeadlineExceeded: `timeout` is over. Any
  // other error is the reason why the controller dismissed this rank.
  absl::Status AwaitShown(uint64_t version, absl::Duration timeout);

 private:
  class Mailbox;
  Worker(std::shared_ptr<Mailbox> mailbox, std::unique_ptr<WorkerClient> client);

  const std::shared_ptr<Mailbox> mailbox_;
  const std::unique_ptr<WorkerClient> client_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_WORKER_H_
