#include "core/protocol/trainer_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/protocol/message_codec.h"
#include "core/protocol/mutation.h"

namespace waybill {
namespace {

// How long an update may take to become quiescent before its lanes are closed.
constexpr absl::Duration kQuiescenceTimeout = absl::Seconds(1);
constexpr absl::Duration kCancelTimeout = absl::Seconds(1);

std::string Doing(uint64_t version) { return absl::StrCat("publish version ", version); }

}  // namespace

TrainerSession::TrainerSession(SessionOptions options, TrainerHost* host)
    : RankSession(std::move(options), host), host_(*host), last_attempt_(options_.incarnation) {}

// --- commands ---

void TrainerSession::Publish(uint64_t token, const PublishCommand& command, absl::Time now) {
  const auto refuse = [&](absl::Status why) {
    Tell({.kind = Notice::Kind::kPublished,
          .token = token,
          .version = command.version,
          .status = While(Doing(command.version), std::move(why))});
  };
  if (!is_member() || leaving()) {
    if (leaving()) return refuse(absl::CancelledError("it has left the job"));
    return refuse(ended() && !lost_status().ok()
                      ? lost_status()
                      : absl::FailedPreconditionError("it has not joined"));
  }
  const uint64_t last = queue_.empty() ? last_sent_version_ : queue_.back().command.version;
  if (command.version <= last) {
    return refuse(absl::FailedPreconditionError(
        absl::StrCat("version ", last, " was published; versions only grow")));
  }
  queue_.push_back({.token = token, .command = command, .status = {}, .outcomes = {}});
  AskForNext(now);
}

void TrainerSession::Release(uint64_t token, absl::Time now) {
  for (Publication& publication : queue_) {
    if (publication.token == token) publication.command.held_for.clear();
  }
  AskForNext(now);
}

void TrainerSession::Cancel(uint64_t token, absl::Time now) {
  if (sent_ && sent_->token == token && sent_->command.until_committed) {
    return FinishSent(absl::CancelledError(
        absl::StrCat(Doing(sent_->command.version), ": cancelled after it was sent")));
  }
  const auto found = std::find_if(queue_.begin(), queue_.end(),
                                  [&](const Publication& p) { return p.token == token; });
  if (found == queue_.end()) return;
  const absl::Status cancelled =
      WithScope(absl::CancelledError(absl::StrCat(Doing(found->command.version), ": cancelled")),
                Scope::kUpdate);
  if (found != queue_.begin()) {
    Tell({.kind = Notice::Kind::kPublished,
          .token = token,
          .version = found->command.version,
          .status = cancelled});
    queue_.erase(found);
    return;
  }
  Withdraw(*found, cancelled);
  if (found->state != State::kWriting) return FinishFirst(cancelled, now);
  // The controller gives the update up; if it does not answer, this trainer stops by itself.
  found->status = cancelled;
  found->stop_deadline = std::min(found->stop_deadline, now + kCancelTimeout);
}

void TrainerSession::Withdraw(const Publication& publication, const absl::Status& status) {
  if (publication.state == State::kQueued) return;
  proto::RankMessage message;
  message.mutable_withdraw()->set_version(publication.command.version);
  message.mutable_withdraw()->set_attempt(publication.attempt);
  *message.mutable_withdraw()->mutable_error() = EncodeError(status);
  Send(std::move(message));
}

bool TrainerSession::PrepareToLeave(absl::Time now) {
  const absl::Status left = absl::CancelledError("it has left the job");
  Stop(left, now);
  while (!queue_.empty()) FinishFirst(left, now);
  if (sent_) FinishSent(left);
  return true;
}

// --- the front of the queue ---

void TrainerSession::AskForNext(absl::Time now) {
  if (!established() || queue_.empty() || queue_.front().state != State::kQueued) return;
  Publication& first = queue_.front();
  if (!first.command.held_for.empty()) return;
  first.state = State::kAsked;
  first.attempt = ++last_attempt_;
  proto::RankMessage message;
  message.mutable_publish()->set_version(first.command.version);
  message.mutable_publish()->set_attempt(first.attempt);
  message.mutable_publish()->set_deadline_ms(
      std::max<int64_t>(1, absl::ToInt64Milliseconds(first.command.deadline - now)));
  message.mutable_publish()->set_digests_off(first.command.digests_off);
  Send(std::move(message));
}

void TrainerSession::FinishFirst(const absl::Status& status, absl::Time now) {
  const Publication first = std::move(queue_.front());
  queue_.pop_front();
  Tell({.kind = Notice::Kind::kPublished,
        .token = first.token,
        .version = first.command.version,
        .status = status});
  AskForNext(now);
}

// Ends what is being sent, at once.
void TrainerSession::Stop(const absl::Status& status, absl::Time now) {
  held_start_.reset();
  const bool writing = !queue_.empty() && queue_.front().state == State::kWriting;
  if (std::exchange(writing_, std::nullopt)) host_.StopNow();
  stopping_ = false;
  quiescence_deadline_ = absl::InfiniteFuture();
  if (writing) FinishFirst(FirstError(queue_.front().status, status), now);
}

TrainerSession::Publication* TrainerSession::WithVersion(uint64_t version) {
  if (sent_ && sent_->command.version == version) return &*sent_;
  if (!queue_.empty() && queue_.front().command.version == version) return &queue_.front();
  return nullptr;
}

void TrainerSession::FinishSent(const absl::Status& status) {
  const Publication sent = *std::exchange(sent_, std::nullopt);
  if (!sent.command.until_committed) return;
  Tell({.kind = Notice::Kind::kPublished,
        .token = sent.token,
        .version = sent.command.version,
        .status = status});
}

void TrainerSession::SettleSent() {
  if (!sent_ || sent_->outcomes.size() < groups().size()) return;
  absl::Status status;
  for (const auto& [group, outcome] : sent_->outcomes) {
    if (!outcome.ok()) status = FirstError(status, While(absl::StrCat("group ", group), outcome));
  }
  FinishSent(status);
}

// --- messages ---

void TrainerSession::FillJoin(proto::Join& join) const {
  if (sent_) join.set_undecided_version(sent_->command.version);
}

void TrainerSession::OnRoleMessage(const proto::ControllerMessage& message, absl::Time now) {
  switch (message.kind_case()) {
    case proto::ControllerMessage::kPrepare:
      update_ = {.version = message.prepare().version(),
                 .sequence = message.prepare().round().sequence(),
                 .epoch = message.prepare().round().epoch(),
                 .plan_hash = message.prepare().plan_hash()};
      digests_off_ = message.prepare().digests_off();
      return;
    case proto::ControllerMessage::kRenewed: {
      const proto::Renewed& renewed = message.renewed();
      if (renewed.epoch() != epoch()) return;
      const absl::Status status =
          host_.SetBufferAddress(renewed.worker(), renewed.buffer_index(), renewed.buffer());
      if (!status.ok()) SendFailed(update_, status);
      return;
    }
    case proto::ControllerMessage::kStart:
      return OnStart(message.start(), now);
    case proto::ControllerMessage::kAbort:
      return OnAbort(message.abort(), now);
    case proto::ControllerMessage::kOutcome:
      return OnOutcome(message.outcome());
    case proto::ControllerMessage::kPublishRefused:
      if (queue_.empty() || queue_.front().state != State::kAsked ||
          queue_.front().attempt != message.publish_refused().attempt()) {
        return;
      }
      return FinishFirst(DecodeError(message.publish_refused().error()), now);
    default:
      return;
  }
}

void TrainerSession::OnStart(const proto::Start& start, absl::Time now) {
  if (!IsOf(start.round(), update_)) return;
  if (queue_.empty() || queue_.front().state != State::kAsked ||
      queue_.front().attempt != start.attempt()) {
    return SendFailed(update_, absl::CancelledError("its publish has ended already"));
  }
  if (stopping_) {
    held_start_ = start;
    return;
  }
  absl::Status status;
  if (update_.plan_hash != plan_hash()) {
    status =
        absl::FailedPreconditionError(absl::StrCat("its plan is ", absl::Hex(update_.plan_hash),
                                                   ", this trainer's is ", absl::Hex(plan_hash())));
  } else {
    status = host_.Start(update_, queue_.front().command, digests_off_, start);
  }
  if (status.ok()) {
    queue_.front().state = State::kWriting;
    writing_ = update_;
    return;
  }
  status = While(absl::StrCat("start version ", update_.version), status);
  SendFailed(update_, status);
  FinishFirst(status, now);
}

void TrainerSession::OnAbort(const proto::Abort& abort, absl::Time now) {
  if (!IsOf(abort.round(), update_)) return;
  held_start_.reset();
  if (queue_.empty() || queue_.front().attempt != abort.attempt()) return;
  Publication& first = queue_.front();
  const absl::Status why = FirstError(first.status, DecodeError(abort.error()));
  if (first.state == State::kAsked) return FinishFirst(why, now);
  if (first.state != State::kWriting || stopping_) return;
  first.status = why;
  stopping_ = true;
  quiescence_deadline_ = now + kQuiescenceTimeout;
  host_.Abort(update_);
  if (Mutated(Mutation::kAbortWithoutQuiescence)) FinishFirst(why, now);
}

void TrainerSession::OnOutcome(const proto::Outcome& outcome) {
  absl::Status status = outcome.has_error() ? DecodeError(outcome.error()) : absl::OkStatus();
  if (status.ok() && !outcome.committed()) status = absl::AbortedError("it was not committed");
  Tell({.kind = Notice::Kind::kOutcome,
        .version = outcome.version(),
        .status = status,
        .group = outcome.group(),
        .committed = outcome.committed()});
  Publication* publication = WithVersion(outcome.version());
  // A version that was withdrawn may have been published again since.
  const auto of_another = [&] {
    return outcome.attempt() != 0 && outcome.attempt() != publication->attempt;
  };
  if (publication != nullptr && !of_another()) {
    publication->outcomes[outcome.group()] = status;
  }
  SettleSent();
}

void TrainerSession::SendFailed(const UpdateId& update, const absl::Status& status) {
  proto::RankMessage message;
  *message.mutable_failed()->mutable_round() = EncodeRound(update);
  *message.mutable_failed()->mutable_error() = EncodeError(status);
  Send(std::move(message));
}

// --- the engine ---

void TrainerSession::OnSent(const UpdateId& update, absl::Time now) {
  proto::RankMessage message;
  *message.mutable_sent()->mutable_round() = EncodeRound(update);
  *message.mutable_sent()->mutable_report() = TakeReport();
  Send(std::move(message));
  if (writing_ != update) return;
  writing_.reset();
  stopping_ = false;
  quiescence_deadline_ = absl::InfiniteFuture();
  if (queue_.empty() || queue_.front().state != State::kWriting) return;
  Publication sent = std::move(queue_.front());
  queue_.pop_front();
  sent.state = State::kSent;
  last_sent_version_ = sent.command.version;
  if (!sent.command.until_committed) {
    Tell({.kind = Notice::Kind::kPublished, .token = sent.token, .version = sent.command.version});
  }
  sent_ = std::move(sent);
  SettleSent();
  AskForNext(now);
}

void TrainerSession::OnStopped(const UpdateId& update, absl::Time now) {
  if (writing_ == update) OnQuiescent(now);
}

void TrainerSession::OnQuiescent(absl::Time now) {
  writing_.reset();
  stopping_ = false;
  quiescence_deadline_ = absl::InfiniteFuture();
  if (!queue_.empty() && queue_.front().state == State::kWriting) {
    FinishFirst(FirstError(queue_.front().status, absl::UnavailableError(absl::StrCat(
                                                      Doing(queue_.front().command.version),
                                                      ": its lanes were replaced"))),
                now);
  }
  if (const std::optional<proto::Start> start = std::exchange(held_start_, std::nullopt)) {
    OnStart(*start, now);
  }
}

void TrainerSession::OnRefused(const absl::Status& status) { SendFailed(update_, status); }

void TrainerSession::OnEstablished(absl::Time now) { AskForNext(now); }

// Nobody can decide without a controller: what is being sent is given up. What waits goes on
// waiting.
void TrainerSession::OnLost(const absl::Status& status, absl::Time now) {
  Stop(status, now);
  if (Mutated(Mutation::kPublishLostInReconnect)) return queue_.clear();
  if (ended()) {
    while (!queue_.empty()) FinishFirst(status, now);
    if (sent_) FinishSent(status);
    return;
  }
  if (queue_.empty() || queue_.front().state != State::kAsked) return;
  // The next controller does not know what this one has given up: asked again, it would commit it.
  for (const auto& [group, outcome] : queue_.front().outcomes) {
    if (!outcome.ok()) return FinishFirst(While(absl::StrCat("group ", group), outcome), now);
  }
  queue_.front().state = State::kQueued;
}

// --- time ---

void TrainerSession::OnRoleTime(absl::Time now) {
  if (now >= quiescence_deadline_) {
    // Its lanes are closed with writes outstanding; the controller plans new ones.
    host_.StopNow();
    OnQuiescent(now);
  }
  for (size_t i = 0; i < queue_.size();) {
    Publication& publication = queue_[i];
    const uint64_t version = publication.command.version;
    const bool asked = publication.state != State::kQueued;
    const absl::Time deadline =
        std::min(publication.stop_deadline,
                 publication.command.deadline + (asked ? kAnswerMargin : absl::ZeroDuration()));
    if (now < deadline) {
      ++i;
      continue;
    }
    const absl::Status late = WithScope(
        absl::DeadlineExceededError(absl::StrCat(
            Doing(version), ": not sent by its deadline",
            !publication.command.held_for.empty() ? absl::StrCat("; ", publication.command.held_for)
            : established() ? ""
                            : absl::StrCat("; ", lost_status().ok() ? "the job is not whole"
                                                                    : lost_status().message()))),
        Scope::kUpdate);
    if (publication.state == State::kWriting) {
      Withdraw(publication, late);
      Stop(late, now);
    } else if (i == 0) {
      Withdraw(publication, late);
      FinishFirst(late, now);
    } else {
      Tell({.kind = Notice::Kind::kPublished,
            .token = publication.token,
            .version = version,
            .status = late});
      queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  if (sent_ && sent_->command.until_committed && now >= sent_->command.deadline + kAnswerMargin) {
    FinishSent(absl::DeadlineExceededError(
        absl::StrCat(Doing(sent_->command.version), ": ", sent_->outcomes.size(), " of ",
                     groups().size(), " groups have decided by its deadline")));
  }
}

absl::Time TrainerSession::role_deadline() const {
  absl::Time next = quiescence_deadline_;
  for (const Publication& publication : queue_) {
    const bool asked = publication.state != State::kQueued;
    next =
        std::min({next, publication.stop_deadline,
                  publication.command.deadline + (asked ? kAnswerMargin : absl::ZeroDuration())});
  }
  if (sent_ && sent_->command.until_committed) {
    next = std::min(next, sent_->command.deadline + kAnswerMargin);
  }
  return next;
}

}  // namespace waybill
