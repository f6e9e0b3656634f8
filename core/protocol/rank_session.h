// SPDX-License-Identifier: Apache-2.0

// The part of a session that trainers and workers share: joining, the stream and reconnecting, the
// plan, the lanes, leaving.
//
// Pure: commands, messages and the time go in; messages, engine commands and notices come out.
#ifndef WAYBILL_CORE_PROTOCOL_RANK_SESSION_H_
#define WAYBILL_CORE_PROTOCOL_RANK_SESSION_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/rank_id.h"
#include "core/plan/plan_codec.h"
#include "core/protocol/messages.pb.h"
#include "core/protocol/timeouts.h"
#include "core/protocol/update.h"
#include "core/tensor/manifest_codec.h"

namespace waybill {

// A notification from a session to its user.
struct Notice {
  enum class Kind : uint8_t {
    // The end of a command, with its token and status. Follows each command once.
    kJoined = 1,
    kPublished = 2,
    kLeft = 3,
    kReleased = 4,
    kFetched = 5,  // `version` is shown.

    // The connection to the controller is lost, and the rank tries to reconnect. `status` says why.
    kDisconnected = 8,
    kReconnected = 9,  // The rank has reconnected and is part of a term.
    kEnded = 10,       // The controller has dismissed this rank for good. `status` says why.

    kGroupJoined = 12,  // To a trainer: versions are sent to `group` from now on.
    kGroupLeft = 13,    // All workers of `group` are gone.
    // To a trainer: a worker of `group`, named in `status`, is gone. Others remain.
    kWorkerLost = 15,
    // To a worker: it now shows a version that was published earlier and that it had missed.
    kCaughtUp = 14,

    kOutcome = 16,  // To a trainer: the outcome of `version` in `group`.
    // To a trainer, after kPublished: every group to which the version was sent has decided, and
    // `status` is the first error. Does not follow with PublishCommand::until_committed, where
    // kPublished has that status.
    kDecided = 17,
    // To a trainer that publishes with hold_commit: every group has received and verified
    // `version`, or has given it up. Workers whose users are asked still have to vote. kArrived
    // follows.
    kReceived = 18,

    // To a worker: an update is about to begin. Pause what must be paused. Answering with an error
    // refuses the update.
    kPrepare = 24,
    // To a worker: the update has arrived and is verified. Answering with an error vetoes it. To a
    // trainer: every group has received the version, or has given it up, and waits for
    // TrainerSession::Decide().
    kArrived = 25,
    // To a worker: the version is shown. Run the steps that follow loading. The answer's status is
    // ignored.
    kCommit = 26,
    kAbort = 27,  // To a worker: the version will not be shown. `status` says why.

    // To a worker: the controller asks it to verify the shown version. `token` is the request's
    // number, which WorkerSession::OnVerified() must return.
    kVerify = 32,
  };
  Kind kind = Kind::kJoined;
  uint64_t token = 0;
  uint64_t version = 0;
  absl::Status status = absl::OkStatus();
  std::string group = {};                       // kGroupJoined, kGroupLeft, kWorkerLost, kOutcome.
  bool committed = false;                       // kOutcome.
  uint32_t rank = 0;                            // kJoined: this process's rank.
  UpdateId update = {};                         // kPrepare to kAbort.
  absl::Duration pause = absl::ZeroDuration();  // kCommit: how long copying took.
  // kOutcome, kCommit: the version's bytes are those of the version that was shown before.
  bool unchanged = false;
};

// One rank's part of a term's plan.
struct TermPlan {
  std::string group;
  // The group whose workers send in this term, and the version that they lend. Empty if the
  // trainers send.
  std::string lender;
  uint64_t lent_version = 0;
  // True if `routes` are the routes that a worker relays to others of its group. The plan of the
  // routes to the worker comes first.
  bool relay = false;
  RankPlan routes;
  uint64_t hash = 0;
  TermLanes lanes;
};

// Executes a session's commands. No function may call the session: results are reported later.
class SessionHost {
 public:
  virtual ~SessionHost() = default;

  // Opens a stream to the next of the controllers' addresses. OnStreamOpen() or OnStreamEnd()
  // follows.
  virtual void OpenStream() = 0;
  // Ends the stream once all sent messages have left. No OnStreamEnd() follows.
  virtual void CloseStream() = 0;
  virtual void Send(proto::RankMessage message) = 0;
  virtual void Tell(Notice notice) = 0;
  // Returns the rank's current report.
  virtual proto::RankReport MakeReport() const = 0;

  // Gives the engine the plan of a group's new term, and returns its ends of the lanes.
  virtual absl::StatusOr<proto::Offers> SetPlan(TermPlan plan) = 0;
  virtual absl::Status Connect(const std::string& group, const proto::Connect& connect) = 0;
};

// A rank's identity, job and world. All of it is declared, never inferred.
struct SessionOptions {
  RankId id;
  bool any_rank = false;  // The controller chooses the rank.
  std::string job = "waybill";
  uint32_t world = 1;         // The number of trainers, or of the group's workers.
  Mode mode = Mode::kShadow;  // Workers only.
  // Workers only: get a version that the group has missed before its next update.
  bool catch_up = true;
  // Workers only: get versions when WorkerSession::Fetch() asks for them, and no others.
  bool fetches = false;
  uint64_t incarnation = 0;  // Drawn at random for each process.
  uint32_t controllers = 1;  // The number of controllers' addresses.
  EncodedManifest manifest;
  proto::Nics nics;  // The NICs that the manifest declares.
};

// Not thread-safe. `host` must outlive the session.
class RankSession {
 public:
  virtual ~RankSession() = default;

  // Joins the job. One kJoined follows, at the latest kAnswerMargin after `deadline`. Call it once.
  void Join(uint64_t token, absl::Time deadline, absl::Time now);
  // Leaves the job; one kLeft follows. A worker first shows a committed version. kLeft follows when
  // the controller has ended the stream, at most kAnswerMargin after LEAVE was sent, and at once if
  // there is no stream.
  void Leave(uint64_t token, absl::Time now);

  void OnStreamOpen(absl::Time now);
  void OnStreamEnd(const absl::Status& status, absl::Time now);
  void OnMessage(const proto::ControllerMessage& message, absl::Time now);

  // The engine has connected every lane of a group's term.
  void OnConnected(const std::string& group, const std::vector<LaneReport>& lanes,
                   bool relay = false);
  // The lane to a peer is dead. A trainer that is a peer of a trainer is a co-owner.
  void OnLaneFailed(const std::string& group, const RankId& peer, const absl::Status& status);
  void OnNics(proto::Nics nics);
  // Sends the rank's report if it differs from the last one.
  void Report();

  void OnTime(absl::Time now);
  // Returns the time at which OnTime() must be called.
  absl::Time next_deadline() const;

  // Returns true from kJoined until the rank leaves or is dismissed.
  bool is_member() const { return life_ == Life::kMember; }
  // Returns true from the first term that is established after the stream opened: the controller
  // has processed this rank's messages and accepts its commands, whether or not a group is whole.
  bool admitted() const { return admitted_; }
  // Returns true while this rank is part of an established term.
  bool established() const;
  bool ended() const { return life_ == Life::kEnded || life_ == Life::kLeft; }
  // Returns the rank's identity. With any_rank the controller chooses the number.
  const RankId& id() const { return id_; }
  // Returns the groups in whose terms this rank's lanes work.
  std::vector<std::string> groups() const;
  // Returns why the last stream ended.
  const absl::Status& lost_status() const { return lost_status_; }

 protected:
  // A term that this rank is part of.
  struct Term {
    std::string group;
    uint64_t epoch = 0;
    uint64_t plan_hash = 0;
    bool lent = false;  // Workers of another group send.
    bool established = false;
  };

  RankSession(SessionOptions options, SessionHost* host);

  virtual void FillJoin(proto::Join& join) const = 0;
  virtual void OnRoleMessage(const proto::ControllerMessage& message, absl::Time now) = 0;
  // A term is established.
  virtual void OnEstablished(const proto::Established& established, absl::Time now) = 0;
  // The stream has ended, or the rank was dismissed. All terms are over.
  virtual void OnLost(const absl::Status& status, absl::Time now) = 0;
  // The user leaves. Returns false if something has to end first, after which the subclass calls
  // FinishLeaving().
  virtual bool PrepareToLeave(absl::Time now) = 0;
  virtual void OnRoleTime(absl::Time now) = 0;
  virtual absl::Time role_deadline() const = 0;

  // Returns why this rank gives no commands about versions now.
  absl::Status CheckMember() const;
  void FinishLeaving(absl::Time now);
  bool leaving() const { return leaving_; }
  void Send(proto::RankMessage message);
  void Tell(Notice notice) { host_.Tell(std::move(notice)); }
  // Returns the term with that epoch, or null if it is over.
  const Term* FindTerm(uint64_t epoch) const;
  const std::map<std::string, Term>& terms() const { return terms_; }
  void ForgetTerm(const std::string& group) { terms_.erase(group); }
  // Returns the rank's report, which the caller sends.
  proto::RankReport TakeReport();

  const SessionOptions options_;

 private:
  enum class Life { kNew, kJoining, kMember, kEnded, kLeft };
  enum class Stream { kClosed, kOpening, kOpen };

  void Open();
  void FinishJoining(const absl::Status& status);
  void TellLeft();
  void EndTerms(const absl::Status& status, absl::Time now);
  void OnDismissal(const absl::Status& status, absl::Time now);
  void OnPlan(const proto::Plan& plan);
  void SendPart(const proto::PartName& name);
  void SendConnectFailed(uint64_t epoch, const absl::Status& status);

  SessionHost& host_;
  RankId id_;
  bool any_rank_;  // True until the controller has chosen the rank.
  Life life_ = Life::kNew;
  Stream stream_ = Stream::kClosed;
  uint64_t join_token_ = 0;
  absl::Time join_deadline_ = absl::InfiniteFuture();
  bool leaving_ = false;
  uint64_t leave_token_ = 0;
  // The end of the wait for the stream's end after LEAVE.
  absl::Time left_deadline_ = absl::InfiniteFuture();
  absl::Time reopen_at_ = absl::InfiniteFuture();
  absl::Duration backoff_ = absl::ZeroDuration();
  // Addresses tried since a term was established or since the last backoff.
  uint32_t addresses_tried_ = 0;
  bool heard_ = false;  // A message has arrived on this stream.
  bool admitted_ = false;
  absl::Status lost_status_;
  bool told_disconnected_ = false;
  bool was_established_ = false;       // The rank was established in any term before.
  std::map<std::string, Term> terms_;  // By group.
  // The NICs and the report that were last sent to the controller, serialized.
  std::string nics_;
  std::string report_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PROTOCOL_RANK_SESSION_H_
