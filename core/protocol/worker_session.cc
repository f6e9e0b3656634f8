// SPDX-License-Identifier: Apache-2.0

#include "core/protocol/worker_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/protocol/message_codec.h"

namespace waybill {
namespace {

// How long leaving waits for snapshots to end, before a committed version can be copied to the
// shown memory.
constexpr absl::Duration kLeaveTimeout = absl::Seconds(10);

}  // namespace

WorkerSession::WorkerSession(SessionOptions options, std::set<Notice::Kind> asked, WorkerHost* host)
    : RankSession(std::move(options), host), host_(*host), asked_(std::move(asked)) {}

void WorkerSession::FillJoin(proto::Join& join) const {
  join.set_group(options_.id.group);
  join.set_mode(static_cast<uint32_t>(options_.mode));
  join.set_fetches(options_.fetches);
  join.set_fetch(fetch_ ? fetch_->number : 0);
  join.set_fetch_at_least(fetch_ ? fetch_->at_least : 0);
  join.set_catch_up(options_.catch_up);
  join.set_shown_version(host_.shown_version());
  if (shown_) {
    *join.mutable_shown_round() = EncodeRound(*shown_);
    join.set_shown_composition(shown_->composition);
  }
  join.set_committed_version(committed_ ? committed_->version : host_.shown_version());
  if (unusable_) *join.mutable_unusable() = *unusable_;
  if (!doubt_) return;
  *join.mutable_doubt()->mutable_round() = EncodeRound(*doubt_);
  join.mutable_doubt()->set_version(doubt_->version);
}

void WorkerSession::OnRoleMessage(const proto::ControllerMessage& message, absl::Time now) {
  switch (message.kind_case()) {
    case proto::ControllerMessage::kPrepare:
      return OnPrepare(message.prepare(), now);
    case proto::ControllerMessage::kCommit:
      return OnCommit(message.commit());
    case proto::ControllerMessage::kAbort:
      return OnAbort(message.abort());
    case proto::ControllerMessage::kRenewed:
      return OnRenewed(message.renewed());
    case proto::ControllerMessage::kStart:
      return OnStart(message.start());
    case proto::ControllerMessage::kTermOver:
      return OnTermOver(message.term_over().group());
    case proto::ControllerMessage::kSenderLost:
      if (FindTerm(message.sender_lost().round().epoch()) == nullptr) return;
      for (const uint32_t sender : message.sender_lost().senders()) host_.LoseSender(sender);
      return;
    case proto::ControllerMessage::kShowsNewest:
      if (!fetch_ || fetch_->number != message.shows_newest()) return;
      return EndFetch(absl::OkStatus());
    case proto::ControllerMessage::kVerify:
      return Tell({.kind = Notice::Kind::kVerify, .token = message.verify()});
    default:
      return;
  }
}

// --- the user ---

void WorkerSession::Ask(Notice notice) {
  const Notice::Kind kind = notice.kind;
  const UpdateId update = notice.update;
  unanswered_.insert(kind);
  if (kind != Notice::Kind::kCommit) asked_as_ = update;
  Tell(std::move(notice));
  if (!asked_.contains(kind)) Answer(kind, update, absl::OkStatus());
}

void WorkerSession::Answer(Notice::Kind kind, const UpdateId& update, const absl::Status& answer) {
  if (kind == Notice::Kind::kCommit) {
    if (!unreported_ || unreported_->update != update) return;
    return answer.ok() ? SendShown() : SendUnusable(answer);
  }
  // The round may have been continued by another one meanwhile.
  if (!update_ || asked_as_ != update || unanswered_.erase(kind) == 0) return;
  kind == Notice::Kind::kPrepare ? OnPrepareAnswered(answer) : Vote(answer);
}

void WorkerSession::Fetch(uint64_t token, uint64_t at_least, absl::Time deadline, absl::Time now) {
  const absl::Status refused =
      options_.fetches
          ? CheckMember()
          : absl::FailedPreconditionError("versions come to this worker as they are published");
  if (!refused.ok()) {
    return Tell(
        {.kind = Notice::Kind::kFetched, .token = token, .status = While("fetch", refused)});
  }
  // Whoever waited may have been interrupted, and cannot say so.
  EndFetch(absl::CancelledError("another one has taken its place"));
  fetch_ = {++last_fetch_, token, at_least, deadline};
  SendFetch(last_fetch_, at_least);
  OnRoleTime(now);
}

void WorkerSession::SendFetch(uint64_t number, uint64_t at_least) {
  proto::RankMessage message;
  message.set_fetch(number);
  message.set_fetch_at_least(at_least);
  Send(std::move(message));
}

void WorkerSession::GiveUpFetch(const absl::Status& status) {
  if (fetch_) SendFetch(0, 0);
  EndFetch(status);
}

void WorkerSession::EndFetch(const absl::Status& status) {
  if (!fetch_) return;
  const uint64_t token = std::exchange(fetch_, std::nullopt)->token;
  Tell({.kind = Notice::Kind::kFetched,
        .token = token,
        .version = host_.shown_version(),
        .status = While("fetch", status)});
}

// A user who has made updates impossible need not answer earlier notices.
void WorkerSession::RefuseUpdates(absl::Status why) {
  refuses_ = std::move(why);
  if (!refuses_.ok() && update_) Answer(Notice::Kind::kPrepare, asked_as_, refuses_);
}

// --- one update ---

// The user is asked before the engine prepares.
void WorkerSession::OnPrepare(const proto::Prepare& prepare, absl::Time now) {
  if (FindTerm(prepare.round().epoch()) == nullptr) return;
  if (prepare.has_continues()) return OnContinue(prepare);
  if (update_) GiveUp(*update_, /*begun=*/true, absl::AbortedError("another update has begun"));
  update_ = DecodeUpdate(prepare);
  if (prepare.catch_up()) caught_up_ = update_;
  // A refusal, which names the buffer's reader, must arrive before the controller gives up.
  prepare_deadline_ = now + absl::Milliseconds(prepare.deadline_ms() - prepare.deadline_ms() / 10);
  digests_off_ = prepare.digests_off();
  unanswered_.erase(Notice::Kind::kPrepare);
  unanswered_.erase(Notice::Kind::kArrived);
  if (leaving()) return OnRefused(*update_, absl::CancelledError("it leaves the job"));
  if (!refuses_.ok()) return OnRefused(*update_, refuses_);
  Ask({.kind = Notice::Kind::kPrepare, .version = update_->version, .update = *update_});
}

// The user was asked already. A vote for the earlier round also counts for this round.
void WorkerSession::OnContinue(const proto::Prepare& prepare) {
  const UpdateId to = DecodeUpdate(prepare);
  if (!update_ || !IsOf(prepare.continues(), *update_)) {
    return OnRefused(to, absl::FailedPreconditionError(absl::StrCat("continue version ", to.version,
                                                                    ": nothing of it is kept")));
  }
  const UpdateId from = std::exchange(*update_, to);
  host_.Continue(from, to);
  const bool voted = doubt_ == from;
  if (!voted && !unanswered_.contains(Notice::Kind::kArrived)) return;
  if (voted) doubt_ = to;
  OnReady(to, {});
  SendArrived(/*unvoted=*/!voted);
}

void WorkerSession::OnPrepareAnswered(const absl::Status& answer) {
  if (!answer.ok()) {
    GiveUpFetch(answer);
    return OnRefused(*update_, answer);
  }
  host_.Prepare(*update_, digests_off_, prepare_deadline_);
}

void WorkerSession::OnReady(const UpdateId& update, proto::Ready ready) {
  if (update_ != update) return;
  *ready.mutable_round() = EncodeRound(update);
  proto::RankMessage message;
  *message.mutable_ready() = std::move(ready);
  Send(std::move(message));
}

void WorkerSession::OnRefused(const UpdateId& update, const absl::Status& status) {
  proto::RankMessage message;
  *message.mutable_refused()->mutable_round() = EncodeRound(update);
  *message.mutable_refused()->mutable_error() = EncodeError(status);
  Send(std::move(message));
}

void WorkerSession::OnArrived(const UpdateId& update) {
  if (update_ != update) return;
  if (asked_.contains(Notice::Kind::kArrived)) SendArrived(/*unvoted=*/true);
  Ask({.kind = Notice::Kind::kArrived, .version = update.version, .update = update});
}

void WorkerSession::Vote(const absl::Status& answer) {
  if (!answer.ok()) {
    GiveUpFetch(answer);
    return SendFailed(*update_, While("vetoed", answer));
  }
  doubt_ = update_;
  SendArrived(/*unvoted=*/false);
}

void WorkerSession::SendArrived(bool unvoted) {
  proto::RankMessage message;
  *message.mutable_arrived()->mutable_round() = EncodeRound(*update_);
  message.mutable_arrived()->set_unvoted(unvoted);
  Send(std::move(message));
}

void WorkerSession::OnLacking(const UpdateId& update, const std::vector<uint32_t>& senders) {
  if (update_ != update) return;
  proto::RankMessage message;
  *message.mutable_lacking()->mutable_round() = EncodeRound(update);
  for (const uint32_t sender : senders) message.mutable_lacking()->add_senders(sender);
  Send(std::move(message));
}

void WorkerSession::OnFailed(const UpdateId& update, const absl::Status& status, bool wrong_base,
                             absl::Time now) {
  if (committed_ == update) {
    committed_.reset();
    NoteUnusable(update, status);
    GiveUpFetch(status);
  }
  SendFailed(update, status, wrong_base);
  if (leaving() && !committed_) FinishLeaving(now);
}

void WorkerSession::SendFailed(const UpdateId& update, const absl::Status& status,
                               bool wrong_base) {
  proto::RankMessage message;
  message.mutable_failed()->set_wrong_base(wrong_base);
  message.mutable_failed()->set_version(update.version);
  *message.mutable_failed()->mutable_round() = EncodeRound(update);
  *message.mutable_failed()->mutable_error() = EncodeError(status);
  Send(std::move(message));
}

void WorkerSession::OnVerified(proto::Verified verified) {
  proto::RankMessage message;
  *message.mutable_verified() = std::move(verified);
  Send(std::move(message));
}

// --- the decision ---

// A commit is final: no later message undoes it.
void WorkerSession::OnCommit(const proto::Commit& commit) {
  if (!doubt_ || !IsOf(commit.round(), *doubt_)) return;
  committed_ = std::exchange(doubt_, std::nullopt);
  if (update_ == committed_) update_.reset();
  host_.Commit(*committed_);
}

void WorkerSession::OnAbort(const proto::Abort& abort) {
  const absl::Status status = DecodeError(abort.error());
  host_.StopRelaying(abort.round().epoch(), abort.round().sequence());
  if (doubt_ && IsOf(abort.round(), *doubt_)) return GiveUp(*doubt_, abort.begun(), status);
  if (update_ && IsOf(abort.round(), *update_)) GiveUp(*update_, abort.begun(), status);
}

void WorkerSession::GiveUp(const UpdateId& update, bool begun, const absl::Status& status) {
  const UpdateId given_up = update;  // `update` may be a member.
  if (doubt_ == given_up) doubt_.reset();
  if (update_ == given_up) update_.reset();
  host_.StopRelaying(given_up.epoch, given_up.sequence);
  host_.Abort(given_up, begun);
  Tell({.kind = Notice::Kind::kAbort,
        .version = given_up.version,
        .status = status,
        .update = given_up});
}

void WorkerSession::OnShown(const UpdateId& update, absl::Duration pause, bool unchanged,
                            absl::Time now) {
  if (committed_ == update) committed_.reset();
  shown_ = update;
  SendShown();  // The user has not answered for an earlier version, and need not any more.
  unreported_ = {update, pause, unchanged};
  Ask({.kind = Notice::Kind::kCommit,
       .version = update.version,
       .update = update,
       .pause = pause,
       .unchanged = unchanged});
  if (caught_up_ == update && !options_.fetches)
    Tell({.kind = Notice::Kind::kCaughtUp, .version = update.version});
  if (leaving()) {
    SendShown();
    FinishLeaving(now);
  }
}

// The user could not put the shown version into use. The commit is final all the same.
void WorkerSession::SendUnusable(const absl::Status& why) {
  const UpdateId update = std::exchange(unreported_, std::nullopt)->update;
  unanswered_.erase(Notice::Kind::kCommit);
  NoteUnusable(update, why);
  SendFailed(update, why);
  GiveUpFetch(why);
}

// Kept so that a later controller learns of it from JOIN.
void WorkerSession::NoteUnusable(const UpdateId& update, const absl::Status& why) {
  unusable_.emplace().set_version(update.version);
  *unusable_->mutable_error() = EncodeError(why);
}

// Called after the user's answer, or when the worker leaves.
void WorkerSession::SendShown() {
  if (!unreported_) return;
  proto::RankMessage message;
  *message.mutable_shown()->mutable_round() = EncodeRound(unreported_->update);
  message.mutable_shown()->set_version(unreported_->update.version);
  message.mutable_shown()->set_composition(unreported_->update.composition);
  message.mutable_shown()->set_pause_seconds(absl::ToDoubleSeconds(unreported_->pause));
  *message.mutable_shown()->mutable_report() = TakeReport();
  message.mutable_shown()->set_unchanged(unreported_->unchanged);
  unreported_.reset();
  unusable_.reset();
  unanswered_.erase(Notice::Kind::kCommit);
  Send(std::move(message));
}

// --- lending and relaying ---

// If the address is not accepted, a later START with this generation of the buffer fails.
void WorkerSession::OnRenewed(const proto::Renewed& renewed) {
  const Term* term = FindTerm(renewed.epoch());
  if (term == nullptr) return;
  (void)host_.SetBufferAddress(term->group, renewed.worker(), renewed.buffer_index(),
                               renewed.buffer());
}

void WorkerSession::OnStart(const proto::Start& start) {
  const Term* term = FindTerm(start.round().epoch());
  if (term == nullptr) return;
  const UpdateId update = DecodeUpdate(start);
  const absl::Status status = host_.StartSending(term->group, update, start);
  if (status.ok()) return;
  const absl::string_view what = term->group == group() ? "relay" : "lend";
  SendFailed(update, While(absl::StrCat(what, " version ", update.version), status));
}

void WorkerSession::OnRelayStopped(uint64_t epoch, uint32_t sequence) {
  proto::RankMessage message;
  message.mutable_relay_stopped()->mutable_round()->set_epoch(epoch);
  message.mutable_relay_stopped()->mutable_round()->set_sequence(sequence);
  Send(std::move(message));
}

// The end of the term always follows an ABORT of a lent version.
void WorkerSession::OnTermOver(const std::string& group) {
  if (group == this->group() || !terms().contains(group)) return;
  ForgetTerm(group);
  host_.ForgetGroup(group);
}

void WorkerSession::EndLoans() {
  std::vector<std::string> lent;
  for (const auto& [group, term] : terms()) {
    if (group != this->group()) lent.push_back(group);
  }
  for (const std::string& group : lent) OnTermOver(group);
}

// --- the end ---

// A worker that has not voted cannot be in doubt: the update is not committed, and never will be. A
// worker that has voted keeps the arrived bytes until it learns the decision.
void WorkerSession::OnLost(const absl::Status& status, absl::Time) {
  EndLoans();
  if (update_ && doubt_ != update_) {
    GiveUp(*update_, /*begun=*/true, status);
  }
  if (ended()) EndFetch(status);
}

bool WorkerSession::PrepareToLeave(absl::Time now) {
  EndLoans();
  EndFetch(absl::CancelledError("it leaves the job"));
  SendShown();
  if (update_ && doubt_ != update_) {
    GiveUp(*update_, /*begun=*/true, absl::CancelledError("it leaves the job"));
  }
  if (!committed_) return true;
  leave_deadline_ = now + kLeaveTimeout;
  return false;
}

absl::Time WorkerSession::role_deadline() const {
  return fetch_ ? std::min(fetch_->deadline, leave_deadline_) : leave_deadline_;
}

void WorkerSession::OnRoleTime(absl::Time now) {
  if (fetch_ && now >= fetch_->deadline) {
    GiveUpFetch(absl::DeadlineExceededError(
        host_.shown_version() == 0
            ? "no version can be had yet, or other workers of the group have not asked"
            : "a newer version has not arrived, or other workers of the group have not asked"));
  }
  if (now < leave_deadline_) return;
  leave_deadline_ = absl::InfiniteFuture();
  FinishLeaving(now);
}

}  // namespace waybill
