// SPDX-License-Identifier: Apache-2.0

// A trainer's session in a job: it publishes versions, one after the other, to all groups at once.
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
#include "core/tensor/selection.h"

namespace waybill {

struct PublishCommand {
  uint64_t version = 0;
  absl::Time deadline;
  bool digests_off = false;
  // No group shows the version if the quantised elements include NaNs or infinities.
  bool fail_on_nonfinite = false;
  // kPublished follows once all groups have decided; otherwise once the version is SENT.
  bool until_committed = false;
  // If not empty, no tensor is read before Proceed(). Describes the wait, as "GPU 0 has not reached
  // its event".
  std::string waits_for = {};
  // Groups that have missed the version get it from this trainer after it is sent, until Release().
  bool hold = false;
  // No group decides before Decide(), for which kArrived asks. All trainers must publish the
  // version with the same value.
  bool hold_commit = false;
  // If not 0, kPublished does not come while a required group that fetches versions shows one that
  // is older by more than this number.
  uint64_t max_behind = 0;
  std::string traceparent = {};  // For the controller's traces of the update; empty: none.
  // Which part of the tensors is taken over from the image of the version before.
  Selection selection = {};
  uint64_t composition = 0;  // See UpdateId::composition.
  // What was selected and this trainer does not have.
  std::vector<std::string> unknown_tensors = {};
};

// Each group has an engine of its own.
class TrainerHost : public SessionHost {
 public:
  // Sets the address of a buffer of a worker of the group.
  virtual absl::Status SetBufferAddress(const std::string& group, uint32_t worker,
                                        uint32_t buffer_index, const proto::Buffer& buffer) = 0;
  // Adds digests of a sample of the version's bytes, which the controller compares between
  // replicas.
  virtual void Sample(uint64_t /*version*/, proto::Publish& /*publish*/) {}
  // Begins to send to the group; OnSent() follows, or OnStopped() after Abort().
  virtual absl::Status Start(const std::string& group, const UpdateId& update,
                             const PublishCommand& publish, const proto::Start& start) = 0;
  // Abandons the update. OnStopped() follows once no write of it is outstanding.
  virtual void Abort(const std::string& group, const UpdateId& update) = 0;
  // Stops sending to the group at once. When it returns, the update reads no tensor and none of its
  // writes can land.
  virtual void StopNow(const std::string& group) = 0;
  // Closes the lanes of a group whose term is over. Nothing is being sent to the group.
  virtual void ForgetGroup(const std::string& group) = 0;
};

class TrainerSession final : public RankSession {
 public:
  TrainerSession(SessionOptions options, TrainerHost* host);

  // Returns why a version would be refused, whatever is held.
  absl::Status CheckPublish(uint64_t version) const;
  // Publishes a version once the ones before it are sent; one kPublished follows, at the latest one
  // second after the deadline. The tensors are not read after it.
  void Publish(uint64_t token, const PublishCommand& command, absl::Time now);
  // Lets a publish with `waits_for` continue if `done` is OK, otherwise ends the publish with that
  // error.
  void Proceed(uint64_t token, const absl::Status& done, absl::Time now);
  // Ends the hold of a version. One kReleased follows within about a second, and at once if no
  // version is held. After it nothing reads the tensors.
  void Release(uint64_t token, absl::Time now);
  // Decides whether groups show a version that was published with hold_commit: OK, or the reason
  // why not. The first decision of any trainer counts. Has no effect for other versions; OK has no
  // effect before kArrived.
  void Decide(uint64_t version, const absl::Status& word, absl::Time now);
  // Ends the publish with kCancelled within about a second. Has no effect once the version is SENT,
  // except with until_committed: kCancelled comes at once, and groups may still show the version.
  void Cancel(uint64_t token, absl::Time now);

  void OnSent(const std::string& group, const UpdateId& update, absl::Time now);
  void OnStopped(const std::string& group, const UpdateId& update, absl::Time now);
  // The version that was sent must not be shown. The controller's ABORT follows.
  void OnRefused(const std::string& group, const absl::Status& status);

 private:
  enum class State {
    kQueued,  // The controller was not told of the publication.
    kAsked,   // The controller was told, and has not named the groups yet.
    kOpen,    // The groups are known, and not all of them are served.
  };
  // A group's share of a publication.
  enum class Part {
    kWaiting,  // Waits for START.
    kWriting,  // The group's engine is at work.
    kSent,
    kGivenUp,
  };
  struct Publication {
    uint64_t token = 0;
    uint64_t attempt = 0;  // Identifies the publication to the controller.
    PublishCommand command;
    State state = State::kQueued;
    std::map<std::string, Part> parts;  // By group.
    // Groups that may still need routes that a lost sender did not bring. Their parts are not over
    // before these are sent.
    std::set<std::string> kept_for;
    absl::Status status;  // The error with which the publication ends once it has stopped.
    absl::Time stop_deadline = absl::InfiniteFuture();  // The time at which it is stopped by force.
    std::map<std::string, absl::Status> outcomes;       // By group.
    std::set<std::string> received;   // Groups that have received the whole version.
    std::set<std::string> arrived;    // Groups that wait for Decide().
    bool told = false;                // kPublished was sent to the user.
    bool told_received = false;       // kReceived was sent to the user.
    bool asked_for_decision = false;  // kArrived was sent to the user.

    // Returns true if an engine is sending, or has sent, a part of it.
    bool begun() const;
    bool decided() const { return outcomes.size() >= parts.size(); }  // By all groups.
  };
  // A version that was sent, and that groups may still get from this trainer.
  struct Hold {
    PublishCommand command;
    uint64_t attempt = 0;
    // It has hold_commit, and no group is known to have committed it. The next controller does not
    // know whether its word was given, so it is not told of the version before that.
    bool waits_for_word = false;
    bool untold = false;  // A controller was not told.
  };
  // The engine of a group.
  struct Sending {
    std::optional<UpdateId> writing;  // The update that is being sent, also while it stops.
    bool held = false;                // The update sends a version that is, or was, held.
    // A START that waits for the engine to be quiescent: of a held version, or another of this one.
    std::optional<proto::Start> held_start;
    bool stopping = false;  // Abort() was called, and OnStopped() has not followed yet.
    bool again = false;     // While it stops: another START of the version follows.
    absl::Time quiescence_deadline = absl::InfiniteFuture();
  };

  void FillJoin(proto::Join& join) const override;
  void OnRoleMessage(const proto::ControllerMessage& message, absl::Time now) override;
  void OnEstablished(const proto::Established& established, absl::Time now) override;
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
  void AskForDecision(Publication& sent);
  void OnTermOver(const std::string& group, absl::Time now);
  void OnSenderLost(const proto::SenderLost& lost);
  bool IsLastToSend(const std::string& group) const;
  void SendFailed(const proto::Round& round, const absl::Status& status);
  void EndPublish(uint64_t token, const absl::Status& status, absl::Time now);
  void Withdraw(const Publication& publication, const absl::Status& status);
  void AskForNext(absl::Time now);
  // Returns the time at which the publication ends if nothing happens.
  static absl::Time DeadlineOf(const Publication& publication);
  // Returns the group's part of the current publication, or null if there is none.
  Part* PartOf(const std::string& group);
  void GiveUp(const std::string& group, const absl::Status& status);
  void Await(const std::string& group);
  void StopSending(const std::string& group);
  void StopGently(const std::string& group, absl::Time now);
  void SendHeld();
  void FinishReleaseIfOver();
  void StopAll(const absl::Status& status, absl::Time now);
  void OnQuiescent(const std::string& group, absl::Time now);
  void FinishIfOver(absl::Time now);
  // Returns true if the first publication in the queue waits for the controller's answer to that
  // attempt.
  bool HasAsked(uint64_t attempt) const;
  void FinishQueued(size_t index, absl::Status status, absl::Time now);  // `index` is in queue_.
  void FinishSent(size_t index, const absl::Status& status);             // `index` is in sent_.
  // Names the group that shows a version older by more than PublishCommand::max_behind, as far as
  // this trainer knows; empty if there is none.
  std::string DescribeBehind(const PublishCommand& command) const;
  void OnOldestShown(const proto::OldestShown& oldest);
  void TellSent();
  void SettleSent();
  void NoteOutcome(uint64_t version, bool committed);

  TrainerHost& host_;
  // Publications that are not SENT; the first has been sent to the controller.
  std::deque<Publication> queue_;
  std::deque<Publication> sent_;  // SENT publications, until every group has decided.
  uint64_t last_sent_version_ = 0;
  uint64_t committed_version_ = 0;  // The newest version that any group is known to have committed.
  // The newest few later versions that are known to have failed.
  std::set<uint64_t> failed_versions_;
  // Starts at the incarnation, so that no two processes use the same attempts.
  uint64_t last_attempt_;
  std::optional<Hold> hold_;
  // The token of Release(), until no held version is being sent.
  std::optional<uint64_t> release_token_;
  std::map<std::string, Sending> sendings_;  // By group.
  // As the controller said last. It holds while no controller is there.
  proto::OldestShown oldest_shown_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PROTOCOL_TRAINER_SESSION_H_
