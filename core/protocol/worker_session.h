// SPDX-License-Identifier: Apache-2.0

// A worker's part in a job: it receives versions, votes for them, and shows what is committed.
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
  // Makes a buffer ready; OnReady() or OnRefused() follows, by the deadline.
  virtual void Prepare(const UpdateId& update, bool digests_off, absl::Time deadline) = 0;
  // Keeps what has arrived of the update `from` for the update `to` of the present term, which
  // brings the rest: OnReady() or OnRefused() follows. If nothing is lacking, only OnRefused() may.
  virtual void Continue(const UpdateId& from, const UpdateId& to) = 0;
  // Closes the lanes to a sender of this worker's group.
  virtual void LoseSender(uint32_t sender) = 0;
  // Shows what has arrived; OnShown() follows. Cannot be undone.
  virtual void Commit(const UpdateId& update) = 0;
  // Gives the update up. `begun`: data may have landed.
  virtual void Abort(const UpdateId& update, bool begun) = 0;
  virtual uint64_t shown_version() const = 0;

  // --- what it lends to workers of another group, or relays to those of its own ---

  // A buffer of such a worker is there from now on.
  virtual absl::Status SetBufferAddress(const std::string& group, uint32_t worker,
                                        uint32_t buffer_index, const proto::Buffer& buffer) = 0;
  // Begins to send what is lent, or what is to be relayed as it arrives.
  virtual absl::Status StartSending(const std::string& group, const UpdateId& update,
                                    const proto::Start& start) = 0;
  // Relays nothing more of that update; OnRelayStopped() follows.
  virtual void StopRelaying(uint64_t epoch, uint32_t sequence) = 0;
  // The group's term is over: nothing is sent to it any more when this returns.
  virtual void ForgetGroup(const std::string& group) = 0;
};

class WorkerSession final : public RankSession {
 public:
  // `asked`: the notices that an update waits with until the user answers; kPrepare, kArrived or
  // kCommit. All others are accepted at once.
  WorkerSession(SessionOptions options, std::set<Notice::Kind> asked, WorkerHost* host);

  const std::string& group() const { return options_.id.group; }

  // Refuses updates from now on, without asking the user, for this reason; OK: takes them again.
  void RefuseUpdates(absl::Status why);

  // Answers a notice of `update`. Does nothing if nobody waits for the answer any more.
  void Answer(Notice::Kind kind, const UpdateId& update, const absl::Status& answer);

  // `generation`: of that buffer. `renewed`: where it is, if it was renewed since this term's
  // offers.
  void OnReady(const UpdateId& update, uint32_t buffer_index, uint32_t generation,
               const std::optional<proto::Buffer>& renewed);
  void OnRefused(const UpdateId& update, const absl::Status& status);
  void OnArrived(const UpdateId& update);
  // All of it has but what these senders were to bring, whose lanes are dead.
  void OnLacking(const UpdateId& update, const std::vector<uint32_t>& senders);
  // Before Commit(): what arrived is wrong. After it: it could not be shown.
  void OnFailed(const UpdateId& update, const absl::Status& status, absl::Time now);
  void OnShown(const UpdateId& update, absl::Duration pause, bool unchanged, absl::Time now);
  // An update that this worker lends or relays cannot be sent.
  void OnSendingFailed(const UpdateId& update, const absl::Status& status) {
    SendFailed(update, status);
  }

  void OnVerified(proto::Verified verified);

  // Nothing of an update that was aborted is written to others of its group any more.
  void OnRelayStopped(uint64_t epoch, uint32_t sequence);

  // Returns true if this worker voted for a version whose decision it has not heard, and has lost
  // the controller.
  bool in_doubt() const { return doubt_.has_value() && !established(); }
  // Returns true while the group gets a version that it has missed.
  bool catching_up() const {
    const auto term = terms().find(group());
    return (term != terms().end() && term->second.lent) || (update_ && update_ == caught_up_);
  }

 private:
  struct ToShow {
    UpdateId update;
    absl::Duration pause;
    bool unchanged;
  };

  void FillJoin(proto::Join& join) const override;
  void OnRoleMessage(const proto::ControllerMessage& message, absl::Time now) override;
  void OnEstablished(absl::Time) override {}
  void OnLost(const absl::Status& status, absl::Time now) override;
  bool PrepareToLeave(absl::Time now) override;
  void OnRoleTime(absl::Time now) override;
  absl::Time role_deadline() const override { return leave_deadline_; }

  void OnPrepare(const proto::Prepare& prepare, absl::Time now);
  void OnContinue(const proto::Prepare& prepare);
  void OnRenewed(const proto::Renewed& renewed);
  void OnStart(const proto::Start& start);
  void OnTermOver(const std::string& group);
  // Ends what is lent to other groups.
  void EndLoans();
  void OnCommit(const proto::Commit& commit);
  void OnAbort(const proto::Abort& abort);
  void GiveUp(const UpdateId& update, bool begun, const absl::Status& status);
  // Asks the user, or accepts at once.
  void Ask(Notice notice);
  void OnPrepareAnswered(const absl::Status& answer);
  void Vote(const absl::Status& answer);
  void SendArrived(bool unvoted);
  void SendFailed(const UpdateId& update, const absl::Status& status);
  void SayShown();
  void SayUnusable(const absl::Status& why);
  void NoteUnusable(const UpdateId& update, const absl::Status& why);

  WorkerHost& host_;
  const std::set<Notice::Kind> asked_;
  absl::Status refuses_;            // Why updates are, if they are.
  std::optional<UpdateId> update_;  // Prepared, and neither given up nor shown.
  absl::Time prepare_deadline_;
  bool digests_off_ = false;
  std::set<Notice::Kind> unanswered_;  // Notices of update_, or kCommit of unsaid_.
  // The id that update_ had when the user was asked. A round that continues it has another one.
  UpdateId asked_as_;
  std::optional<UpdateId> doubt_;            // Voted for, and the decision not heard.
  std::optional<UpdateId> shown_;            // Brought what is shown.
  std::optional<UpdateId> committed_;        // Decided, and not shown yet.
  std::optional<ToShow> unsaid_;             // Shown, and the user has not answered.
  std::optional<proto::Unusable> unusable_;  // Until a later version is in use.
  std::optional<UpdateId> caught_up_;        // The last one whose version was published before.
  absl::Time leave_deadline_ = absl::InfiniteFuture();
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PROTOCOL_WORKER_SESSION_H_
