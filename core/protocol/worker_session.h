// SPDX-License-Identifier: Apache-2.0

// A worker's session in a job: it receives versions, votes on them, and shows committed ones.
#ifndef WAYBILL_CORE_PROTOCOL_WORKER_SESSION_H_
#define WAYBILL_CORE_PROTOCOL_WORKER_SESSION_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/protocol/rank_session.h"

namespace waybill {

class WorkerHost : public SessionHost {
 public:
  // Prepares a buffer. OnReady() or OnRefused() follows, by the deadline.
  virtual void Prepare(const UpdateId& update, bool digests_off, absl::Time deadline) = 0;
  // Continues update `from` as update `to` of the current term, which brings the missing routes,
  // and keeps the bytes that arrived. OnReady() or OnRefused() follows. If no route is missing,
  // OnRefused() follows or nothing.
  virtual void Continue(const UpdateId& from, const UpdateId& to) = 0;
  // Closes the lanes to a sender of this worker's group.
  virtual void LoseSender(uint32_t sender) = 0;
  // Shows the update; OnShown() follows. Cannot be undone.
  virtual void Commit(const UpdateId& update) = 0;
  // Abandons the update. `begun` is true if data may have landed.
  virtual void Abort(const UpdateId& update, bool begun) = 0;
  virtual uint64_t shown_version() const = 0;

  // --- lending to workers of another group, and relaying to workers of the same group ---

  // Sets the address of a buffer of a worker to which this worker sends.
  virtual absl::Status SetBufferAddress(const std::string& group, uint32_t worker,
                                        uint32_t buffer_index, const proto::Buffer& buffer) = 0;
  // Begins to send a lent version, or to relay an update as it arrives.
  virtual absl::Status StartSending(const std::string& group, const UpdateId& update,
                                    const proto::Start& start) = 0;
  // Stops relaying that update; OnRelayStopped() follows.
  virtual void StopRelaying(uint64_t epoch, uint32_t sequence) = 0;
  // Ends sending to a group whose term is over. Nothing is sent to the group once it returns.
  virtual void ForgetGroup(const std::string& group) = 0;
};

class WorkerSession final : public RankSession {
 public:
  // `asked`: the notices among kPrepare, kArrived and kCommit for whose answer an update waits. The
  // others are accepted at once.
  WorkerSession(SessionOptions options, std::set<Notice::Kind> asked, WorkerHost* host);

  const std::string& group() const { return options_.id.group; }

  // Refuses updates from now on with the error `why`, without asking the user. OK accepts updates
  // again.
  void RefuseUpdates(absl::Status why);

  // Asks for the newest version, if the worker was made to fetch. One kFetched follows, at the
  // latest at the deadline: with the version that is shown then by all workers of the group, which
  // was the newest when the last of them asked, or is a later one, and no less than `at_least` of
  // any of them; or with an error, after which a version may still come that was under way.
  // kFailedPrecondition: it is not to fetch. kCancelled: it leaves, or fetches again.
  void Fetch(uint64_t token, uint64_t at_least, absl::Time deadline, absl::Time now);

  // Answers a notice of `update`. Has no effect if the answer is no longer waited for.
  void Answer(Notice::Kind kind, const UpdateId& update, const absl::Status& answer);

  // `ready` says which buffer, and what the trainers need to know of it; its round is filled in.
  void OnReady(const UpdateId& update, proto::Ready ready);
  void OnRefused(const UpdateId& update, const absl::Status& status);
  void OnArrived(const UpdateId& update);
  // Everything has arrived except the routes of `senders`, whose lanes died.
  void OnLacking(const UpdateId& update, const std::vector<uint32_t>& senders);
  // Before Commit(): the arrived data is wrong. After Commit(): the version could not be shown.
  // `wrong_base`: what came out wrong was completed from the version that the engine offered, and
  // it offers none any more.
  void OnFailed(const UpdateId& update, const absl::Status& status, bool wrong_base,
                absl::Time now);
  void OnShown(const UpdateId& update, absl::Duration pause, bool unchanged, absl::Time now);
  // An update that this worker lends or relays cannot be sent.
  void OnSendingFailed(const UpdateId& update, const absl::Status& status) {
    SendFailed(update, status);
  }

  void OnVerified(proto::Verified verified);

  // No relayed write of an aborted update is outstanding any more.
  void OnRelayStopped(uint64_t epoch, uint32_t sequence);

  // Returns true if this worker voted for a version and lost the controller before it learned the
  // decision.
  bool in_doubt() const { return doubt_.has_value() && !established(); }
  // Returns true if the version that is shown is all of the trainers' tensors, exactly.
  bool exact() const { return !shown_ || shown_->composition == 0; }
  // Returns true while the group receives a version that it has missed.
  bool catching_up() const {
    const auto term = terms().find(group());
    return (term != terms().end() && term->second.lent) || (update_ && update_ == caught_up_);
  }

 private:
  // A fetch that waits.
  struct Awaited {
    uint64_t number;
    uint64_t token;
    uint64_t at_least;
    absl::Time deadline;
  };
  struct ToShow {
    UpdateId update;
    absl::Duration pause;
    bool unchanged;
  };

  void FillJoin(proto::Join& join) const override;
  void OnRoleMessage(const proto::ControllerMessage& message, absl::Time now) override;
  void OnEstablished(const proto::Established&, absl::Time) override {}
  void OnLost(const absl::Status& status, absl::Time now) override;
  bool PrepareToLeave(absl::Time now) override;
  void OnRoleTime(absl::Time now) override;
  absl::Time role_deadline() const override;

  void OnPrepare(const proto::Prepare& prepare, absl::Time now);
  void OnContinue(const proto::Prepare& prepare);
  void OnRenewed(const proto::Renewed& renewed);
  void OnStart(const proto::Start& start);
  void OnTermOver(const std::string& group);
  // Ends all loans to other groups.
  void EndLoans();
  void OnCommit(const proto::Commit& commit);
  void OnAbort(const proto::Abort& abort);
  void GiveUp(const UpdateId& update, bool begun, const absl::Status& status);
  // Asks the user, or accepts at once.
  void Ask(Notice notice);
  void OnPrepareAnswered(const absl::Status& answer);
  void SendFetch(uint64_t number, uint64_t at_least);
  // Ends the fetch that waits, if any.
  void EndFetch(const absl::Status& status);
  // Does the same, and tells the controller.
  void GiveUpFetch(const absl::Status& status);
  void Vote(const absl::Status& answer);
  void SendArrived(bool unvoted);
  void SendFailed(const UpdateId& update, const absl::Status& status, bool wrong_base = false);
  void SendShown();
  void SendUnusable(const absl::Status& why);
  void NoteUnusable(const UpdateId& update, const absl::Status& why);

  WorkerHost& host_;
  const std::set<Notice::Kind> asked_;
  absl::Status refuses_;            // Why updates are refused; OK if they are not.
  std::optional<UpdateId> update_;  // The update that is prepared, and neither given up nor shown.
  absl::Time prepare_deadline_;
  bool digests_off_ = false;
  std::set<Notice::Kind> unanswered_;  // Unanswered notices of update_, or kCommit of unreported_.
  // The id that update_ had when the user was asked. A round that continues it has another one.
  UpdateId asked_as_;
  std::optional<UpdateId> doubt_;  // The update that was voted for, while its decision is unknown.
  std::optional<UpdateId> shown_;  // The update that brought the shown version.
  std::optional<UpdateId> committed_;  // The update that is committed and not shown yet.
  // The update that is shown, while the user has not answered kCommit.
  std::optional<ToShow> unreported_;
  std::optional<proto::Unusable> unusable_;  // Set until a later version is in use.
  std::optional<UpdateId> caught_up_;        // The last update whose version was published before.
  uint64_t last_fetch_ = 0;
  std::optional<Awaited> fetch_;
  absl::Time leave_deadline_ = absl::InfiniteFuture();
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PROTOCOL_WORKER_SESSION_H_
