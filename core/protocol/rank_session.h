// SPDX-License-Identifier: Apache-2.0

// A rank's part in a job, as far as trainers and workers share it: joining, the stream and its
// return, the plan, the lanes, leaving.
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

// A session's word to its user.
struct Notice {
  enum class Kind : uint8_t {
    // The end of a command, with its token and status; once for each.
    kJoined = 1,
    kPublished = 2,
    kLeft = 3,
    kReleased = 4,

    kDisconnected = 8,  // The controller is lost; the rank tries to come back. `status` says why.
    kReconnected = 9,   // It is back, and part of a term.
    kEnded = 10,        // The controller has dismissed this rank for good; `status` says why.

    kGroupJoined = 12,  // To a trainer: versions go to `group` from now on.
    kGroupLeft = 13,    // Nobody of `group` is here any more.
    kWorkerLost = 15,   // To a trainer: `status` says who of `group` is gone; others are here.
    kCaughtUp = 14,     // To a worker: it shows a version that was published before, and missed.

    kOutcome = 16,  // To a trainer: what became of `version` in `group`.
    // To a trainer, after kPublished: every group that the version went to has decided, and
    // `status` is the first error. Does not come with PublishCommand::until_committed, where
    // kPublished has that status.
    kDecided = 17,
    // To a trainer that holds its word: every group has all of `version`, verified, or has given it
    // up. Workers whose users are asked have still to vote. kArrived follows.
    kReceived = 18,

    kPrepare = 24,  // To a worker: pause what must be paused. An error refuses the update.
    // All of it is here and verified. An error vetoes it. To a trainer: every group has all of it,
    // or has given it up, and TrainerSession::Decide() is waited for.
    kArrived = 25,
    kCommit = 26,  // It is shown. Run what comes after loading; the answer's status is ignored.
    kAbort = 27,   // It will not be shown; `status` says why.

    // To a worker: the controller asks what it shows. `token` is the request's number, which
    // WorkerSession::OnVerified() answers.
    kVerify = 32,
  };
  Kind kind = Kind::kJoined;
  uint64_t token = 0;
  uint64_t version = 0;
  absl::Status status = absl::OkStatus();
  std::string group = {};                       // kGroupJoined, kGroupLeft, kWorkerLost, kOutcome.
  bool committed = false;                       // kOutcome.
  uint32_t rank = 0;                            // kJoined: the one that this process has.
  UpdateId update = {};                         // kPrepare to kAbort.
  absl::Duration pause = absl::ZeroDuration();  // kCommit: how long copying took.
  // kOutcome, kCommit: the version's bytes are those of the version that was shown before.
  bool unchanged = false;
};

// A term's plan, as one of its ranks has it.
struct TermPlan {
  std::string group;
  // The group whose workers send in this term, and the version that they lend; empty: the trainers
  // send.
  std::string lender;
  uint64_t lent_version = 0;
  // True if `routes` are what a worker relays to others of its group. The plan of what the worker
  // receives comes first.
  bool relay = false;
  RankPlan routes;
  uint64_t hash = 0;
  TermLanes lanes;
};

// Carries out what a session decides. No function may call the session; what follows from a call is
// reported later.
class SessionHost {
 public:
  virtual ~SessionHost() = default;

  // Opens the stream to the controller, each time at the next of its addresses; OnStreamOpen() or
  // OnStreamEnd() follows.
  virtual void OpenStream() = 0;
  // Ends the stream after what was sent has left. No OnStreamEnd() follows.
  virtual void CloseStream() = 0;
  virtual void Send(proto::RankMessage message) = 0;
  virtual void Tell(Notice notice) = 0;
  // Returns what the rank knows about itself now.
  virtual proto::RankReport MakeReport() const = 0;

  // Gives the engine its plan for a group's new term, and returns its ends of the lanes.
  virtual absl::StatusOr<proto::Offers> SetPlan(TermPlan plan) = 0;
  virtual absl::Status Connect(const std::string& group, const proto::Connect& connect) = 0;
};

// A rank's identity, and where it belongs. Declared, never inferred.
struct SessionOptions {
  RankId id;
  bool any_rank = false;  // The controller chooses the rank.
  std::string job = "waybill";
  uint32_t world = 1;         // The number of trainers, or of the group's workers.
  Mode mode = Mode::kShadow;  // Workers only.
  bool catch_up = true;       // Workers only: get what the group has missed before its next update.
  uint64_t incarnation = 0;   // Drawn at random for each process.
  uint32_t controllers = 1;   // The number of addresses at which the controller may be.
  EncodedManifest manifest;
  proto::Nics nics;  // Those that the manifest declares.
};

// Not thread-safe. `host` outlives the session.
class RankSession {
 public:
  virtual ~RankSession() = default;

  // Joins the job; one kJoined follows, at the latest kAnswerMargin after `deadline`. Called once.
  void Join(uint64_t token, absl::Time deadline, absl::Time now);
  // Leaves the job; one kLeft follows. A worker first shows what is committed. kLeft then comes
  // when the controller has ended the stream, at most kAnswerMargin after LEAVE was sent, and at
  // once if there is no stream.
  void Leave(uint64_t token, absl::Time now);

  void OnStreamOpen(absl::Time now);
  void OnStreamEnd(const absl::Status& status, absl::Time now);
  void OnMessage(const proto::ControllerMessage& message, absl::Time now);

  // The engine has connected every lane of a group's term.
  void OnConnected(const std::string& group, const std::vector<LaneReport>& lanes,
                   bool relay = false);
  // The lane to a peer is dead. A trainer's peer that is a trainer is a co-owner.
  void OnLaneFailed(const std::string& group, const RankId& peer, const absl::Status& status);
  void OnNics(proto::Nics nics);
  // Sends the rank's report, if it is another than the last one.
  void Report();

  void OnTime(absl::Time now);
  // When OnTime() has something to do next.
  absl::Time next_deadline() const;

  // True from kJoined until the rank leaves or is dismissed.
  bool is_member() const { return life_ == Life::kMember; }
  // True from the first term that is established after the stream opened: the controller knows what
  // this rank has told it, and takes its commands, whether or not a group is whole.
  bool admitted() const { return admitted_; }
  // True while this rank's lanes carry in any term.
  bool established() const;
  bool ended() const { return life_ == Life::kEnded || life_ == Life::kLeft; }
  // The rank's identity; its number is the controller's choice if that was asked for.
  const RankId& id() const { return id_; }
  // The groups in whose terms this rank's lanes carry.
  std::vector<std::string> groups() const;
  // Why the stream ended last.
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
  virtual void OnEstablished(absl::Time now) = 0;
  // The stream has ended, or the rank has been dismissed: no term is established any more.
  virtual void OnLost(const absl::Status& status, absl::Time now) = 0;
  // The user leaves. Returns false if something has to end first; FinishLeaving() follows then.
  virtual bool PrepareToLeave(absl::Time now) = 0;
  virtual void OnRoleTime(absl::Time now) = 0;
  virtual absl::Time role_deadline() const = 0;

  void FinishLeaving(absl::Time now);
  bool leaving() const { return leaving_; }
  void Send(proto::RankMessage message);
  void Tell(Notice notice) { host_.Tell(std::move(notice)); }
  // The term with that epoch, or null if it is over.
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
  bool any_rank_;  // Until the controller has chosen.
  Life life_ = Life::kNew;
  Stream stream_ = Stream::kClosed;
  uint64_t join_token_ = 0;
  absl::Time join_deadline_ = absl::InfiniteFuture();
  bool leaving_ = false;
  uint64_t leave_token_ = 0;
  absl::Time left_deadline_ = absl::InfiniteFuture();  // LEAVE is sent, and the stream still open.
  absl::Time reopen_at_ = absl::InfiniteFuture();
  absl::Duration backoff_ = absl::ZeroDuration();
  uint32_t addresses_tried_ = 0;  // Since a term was established, or since the last pause.
  bool heard_ = false;            // A message has come by this stream.
  bool admitted_ = false;
  absl::Status lost_status_;
  bool told_disconnected_ = false;
  bool was_established_ = false;       // In any term.
  std::map<std::string, Term> terms_;  // By group.
  // As the controller knows them, serialized.
  std::string nics_;
  std::string report_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PROTOCOL_RANK_SESSION_H_
