// SPDX-License-Identifier: Apache-2.0

// A trainer's part in a job: it publishes versions, one after the other, to all groups at a time.
#ifndef WAYBILL_CORE_PROTOCOL_TRAINER_SESSION_H_
#define WAYBILL_CORE_PROTOCOL_TRAINER_SESSION_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/protocol/rank_session.h"

namespace waybill {

struct PublishCommand {
  uint64_t version = 0;
  absl::Time deadline;
  bool digests_off = false;
  // No group shows the version if NaNs or infinities are among what is quantised.
  bool fail_on_nonfinite = false;
  // kPublished comes once all groups have decided; else once the version is SENT.
  bool until_committed = false;
  // Not empty: nothing is read before Proceed(); says what is waited for, as "GPU 0 has not reached
  // its event".
  std::string waits_for = {};
  // Groups that have missed the version get it from this trainer after it is sent, until Release().
  bool hold = false;
  // No group decides before Decide(), for which kArrived asks; all trainers publish it alike.
  bool hold_commit = false;
};

// Each group has an engine of its own.
class TrainerHost : public SessionHost {
 public:
  // A buffer of a worker of the group is there from now on.
  virtual absl::Status SetBufferAddress(const std::string& group, uint32_t worker,
                                        uint32_t buffer_index, const proto::Buffer& buffer) = 0;
  // Adds digests of a sample of what the version has, by which replicas are compared.
  virtual void Sample(uint64_t /*version*/, proto::Publish& /*publish*/) {}
  // Begins to send to the group; OnSent() follows, or OnStopped() after Abort().
  virtual absl::Status Start(const std::string& group, const UpdateId& update,
                             const PublishCommand& publish, const proto::Start& start) = 0;
  // OnStopped() follows once nothing of the update is on its way any more.
  virtual void Abort(const std::string& group, const UpdateId& update) = 0;
  // Ends what is being sent to the group. Nothing of it reads the tensors or can land when this
  // returns.
  virtual void StopNow(const std::string& group) = 0;
  // The group's term is over: closes its lanes. Nothing is being sent to it.
  virtual void ForgetGroup(const std::string& group) = 0;
};

class TrainerSession final : public RankSession {
 public:
  TrainerSession(SessionOptions options, TrainerHost* host);

  // Publishes a version once the ones before it are sent; one kPublished follows, at the latest one
  // second after the deadline. The tensors are not read after it.
  void Publish(uint64_t token, const PublishCommand& command, absl::Time now);
  // What a publish waited for is done, or will never be: the publish ends with that error.
  void Proceed(uint64_t token, const absl::Status& done, absl::Time now);
  // Ends the hold of a version; one kReleased follows within a second or so, after which nothing
  // reads the tensors. At once if none is held.
  void Release(uint64_t token, absl::Time now);
  // Says whether groups are to show a version that waits for it: OK, or why not. The first word of
  // any trainer counts. Does nothing for a version that was not published with hold_commit, nor OK
  // for one for which kArrived has not come.
  void Decide(uint64_t version, const absl::Status& word, absl::Time now);
  // Ends the publish with kCancelled within about a second. Has no effect once the version is SENT,
  // except with until_committed: kCancelled comes at once, and groups may still show the version.
  void Cancel(uint64_t token, absl::Time now);

  void OnSent(const std::string& group, const UpdateId& update, absl::Time now);
  void OnStopped(const std::string& group, const UpdateId& update, absl::Time now);
  // What was sent must not be shown; the controller's ABORT follows.
  void OnRefused(const std::string& group, const absl::Status& status);

 private:
  enum class State {
    kQueued,  // The controller does not know of it.
    kAsked,   // The controller knows, and has not said to which groups it goes.
    kOpen,    // The groups are known, and not all of them have what they get.
  };
  // A group's share of a publication.
  enum class Part {
    kWaiting,  // For START.
    kWriting,  // The group's engine is at work.
    kSent,
    kGivenUp,
  };
  struct Publication {
    uint64_t token = 0;
    uint64_t attempt = 0;  // By which the controller knows it.
    PublishCommand command;
    State state = State::kQueued;
    std::map<std::string, Part> parts;  // By group.
    // The groups that lack something of it, perhaps, and whose parts are not over before that
    // comes.
    std::set<std::string> kept_for;
    absl::Status status;                                // Why it will fail, while it stops.
    absl::Time stop_deadline = absl::InfiniteFuture();  // Then it is stopped by force.
    std::map<std::string, absl::Status> outcomes;       // By group.
    std::set<std::string> received;                     // Groups that have all of it.
    std::set<std::string> arrived;                      // Those of them that wait for a word.
    bool told_received = false;                         // kReceived has come.
    bool asked_for_word = false;                        // kArrived has come.

    // Returns true if an engine is, or was, at work on it.
    bool begun() const;
  };
  // A version that was sent, and that groups may still get from this trainer.
  struct Hold {
    PublishCommand command;
    uint64_t attempt = 0;
  };
  // The engine of a group.
  struct Sending {
    std::optional<UpdateId> writing;         // The update at work, also while it stops.
    bool held = false;                       // It is of the version that is, or was, held.
    std::optional<proto::Start> held_start;  // Until it is quiescent.
    bool stopping = false;                   // Abort() was called; OnStopped() is to come.
    absl::Time quiescence_deadline = absl::InfiniteFuture();
  };

  void FillJoin(proto::Join& join) const override;
  void OnRoleMessage(const proto::ControllerMessage& message, absl::Time now) override;
  void OnEstablished(absl::Time now) override;
  void OnLost(const absl::Status& status, absl::Time now) override;
  bool PrepareToLeave(absl::Time now) override;
  void OnRoleTime(absl::Time now) override;
  absl::Time role_deadline() const override;

  void OnAccepted(const proto::PublishAccepted& accepted, absl::Time now);
  void OnRenewed(const proto::Renewed& renewed);
  void OnStart(const proto::Start& start, absl::Time now);
  void OnAbort(const proto::Abort& abort, absl::Time now);
  void OnOutcome(const proto::Outcome& outcome, absl::Time now);
  void OnGroupArrived(const proto::GroupArrived& arrived);
  void AskForWord(Publication& sent);
  void OnTermOver(const std::string& group, absl::Time now);
  void OnSenderLost(const proto::SenderLost& lost);
  bool IsLastToSend(const std::string& group) const;
  void SendFailed(const proto::Round& round, const absl::Status& status);
  void EndPublish(uint64_t token, const absl::Status& status, absl::Time now);
  void Withdraw(const Publication& publication, const absl::Status& status);
  void AskForNext(absl::Time now);
  // When it ends if nothing happens.
  static absl::Time DeadlineOf(const Publication& publication);
  // Returns the group's part of the publication at hand, or null if that has no such part.
  Part* PartOf(const std::string& group);
  void GiveUp(const std::string& group, const absl::Status& status);
  void StopSending(const std::string& group);
  void StopGently(const std::string& group, absl::Time now);
  void SayHeld();
  void FinishReleaseIfOver();
  void StopAll(const absl::Status& status, absl::Time now);
  void OnQuiescent(const std::string& group, absl::Time now);
  void FinishIfOver(absl::Time now);
  // Returns true if the first in the queue waits for the controller's answer to that attempt.
  bool HasAsked(uint64_t attempt) const;
  void FinishQueued(size_t index, absl::Status status, absl::Time now);  // In queue_.
  void FinishSent(size_t index, const absl::Status& status);             // In sent_.
  void SettleSent();
  void NoteOutcome(uint64_t version, bool committed);

  TrainerHost& host_;
  std::deque<Publication> queue_;  // Not SENT; the first one is at the controller.
  std::deque<Publication> sent_;   // Those that were, until every group has decided.
  uint64_t last_sent_version_ = 0;
  uint64_t committed_version_ = 0;      // The newest that any group is known to have committed.
  std::set<uint64_t> failed_versions_;  // The newest few later ones that are known to have failed.
  uint64_t last_attempt_;  // From the incarnation on: no two processes have the same attempts.
  std::optional<Hold> hold_;
  std::optional<uint64_t> release_token_;    // Until nothing of what was held is being sent.
  std::map<std::string, Sending> sendings_;  // By group.
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PROTOCOL_TRAINER_SESSION_H_
