// SPDX-License-Identifier: Apache-2.0

// The sending half of a worker. It lends the version that the worker shows to other groups, which
// catch up with it, and relays what the worker receives to other workers of its own group.
#ifndef WAYBILL_CORE_CONTROL_VERSION_LENDER_H_
#define WAYBILL_CORE_CONTROL_VERSION_LENDER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/control/group_sender.h"
#include "core/engine/receiver_engine.h"
#include "core/engine/relayed_routes.h"
#include "core/engine/shown_state.h"
#include "core/engine/staging_area.h"
#include "core/fabric/fabric.h"
#include "core/protocol/worker_session.h"
#include "core/tensor/manifest.h"

namespace waybill {

// Functions with `group` are for the group to which this worker sends: another group, or its own if
// it relays. Not thread-safe.
class VersionLender {
 public:
  // `chunk_bytes`: the size of the chunks that trainers send. `options`: those of the engines that
  // lend and relay. `receiver` is the worker's engine, and `session` gets the events. The fabric,
  // the engine and the session outlive the lender.
  VersionLender(Manifest manifest, uint64_t chunk_bytes, const SenderEngineOptions& options,
                Fabric* fabric, ReceiverEngine* receiver, WorkerSession* session);

  // Takes a snapshot of the shown version to lend it.
  //
  // kFailedPrecondition: the worker does not show the plan's `lent_version`.
  absl::StatusOr<proto::Offers> SetLoan(TermPlan plan);
  absl::StatusOr<proto::Offers> SetRelay(TermPlan plan);
  absl::Status Connect(const std::string& group, const proto::Connect& connect);
  absl::Status SetBufferAddress(const std::string& group, uint32_t worker, uint32_t buffer_index,
                                const proto::Buffer& buffer);
  absl::Status Start(const std::string& group, const UpdateId& update, const proto::Start& start);
  // Stops relaying the update, now or when it has been started. The session hears when it has
  // stopped. Lanes on which writes do not end are closed after kQuiescenceTimeout.
  void StopRelaying(uint64_t epoch, uint32_t sequence, absl::Time now);

  void ForgetGroup(const std::string& group);
  // Ends relaying, because the term of the worker's own group has ended.
  void EndRelay();
  // Closes every lane.
  void CloseLanes();

  // The worker receives the update from READY until it is shown or aborted.
  void OnReady(const UpdateId& update) { receiving_ = update; }
  void OnReceived(const UpdateId& update) {
    if (receiving_ == update) receiving_.reset();
  }

  // Returns false if the event is of no lane of the lender.
  bool Handle(const FabricEvent& event);
  // Makes progress.
  void Step(absl::Time now);
  // Passes what has happened to the session.
  void ReportEvents();
  // Returns the time at which Step() must be called again, even without events of the fabric.
  absl::Time next_deadline() const;

 private:
  // Sends what is lent to one group.
  struct Loan {
    std::optional<Snapshot> snapshot;  // The version that is lent; released once it is sent.
    std::unique_ptr<GroupSender> sender;
  };
  struct RelayStart {
    UpdateId update;
    proto::Start start;
  };
  // The state of relaying to other workers of the group.
  struct Relay {
    Loan loan;
    RelayedRoutes routes;
    UpdateId update;                      // The update that is relayed now, or was relayed last.
    bool sending = false;                 // The update is neither sent nor stopped.
    bool arriving = false;                // The update is relayed while it arrives.
    uint64_t received = 0;                // The value of routes.updates() for the update.
    size_t released = 0;                  // The number of routes.chunks() that were released.
    size_t given = 0;                     // The number of routes.digests() that were given.
    std::optional<RelayStart> next = {};  // An update that waits for this one to end.
    // The time at which lanes with outstanding writes of an aborted update are closed.
    absl::Time stop_now_at = absl::InfiniteFuture();
  };

  absl::StatusOr<Loan> MakeLoan(const std::string& group);
  // Returns null if this worker sends nothing to that group.
  Loan* Find(const std::string& group);
  // kFailedPrecondition: this worker sends nothing to that group.
  absl::StatusOr<GroupSender*> FindSender(const std::string& group);
  void DropEvents(const std::string& group);
  std::vector<MemorySpan> Spans(const Snapshot& snapshot) const;
  absl::Status StartRelaying(const UpdateId& update, const proto::Start& start);
  void StartNextRelay();
  // Returns true while that update is being relayed.
  bool IsRelaying(uint64_t epoch, uint32_t sequence) const {
    return relay_ && relay_->sending && relay_->update.epoch == epoch &&
           relay_->update.sequence == sequence;
  }
  void ReleaseArrivedChunks();
  void Report(const std::string& group, const SenderEvent& event);

  const Manifest manifest_;
  const uint64_t chunk_bytes_;
  const SenderEngineOptions options_;
  Fabric& fabric_;
  ReceiverEngine& receiver_;
  WorkerSession& session_;
  std::unique_ptr<StagingArea> staging_;  // Null until something is lent or relayed.
  std::map<std::string, Loan> loans_;     // To other groups.
  std::deque<std::pair<std::string, SenderEvent>> events_;  // Each with its group.
  std::optional<Relay> relay_;  // Set in terms in which this worker relays.
  // Epochs and sequences of aborted updates whose relaying has not stopped yet.
  std::set<std::pair<uint64_t, uint32_t>> stopping_;
  std::optional<UpdateId> receiving_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_VERSION_LENDER_H_
