// SPDX-License-Identifier: Apache-2.0

#include "core/protocol/trainer_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/protocol/message_codec.h"

namespace waybill {
namespace {

// How long writes of an update may stay outstanding before its lanes are closed.
constexpr absl::Duration kCancelTimeout = absl::Seconds(1);
// The most versions with unknown outcomes about which a trainer asks the next controller.
constexpr size_t kMostUndecided = 4;
// The most failed versions that a trainer reports to the next controller.
constexpr size_t kMostFailed = 4;

std::string Doing(uint64_t version) { return absl::StrCat("publish version ", version); }

}  // namespace

TrainerSession::TrainerSession(SessionOptions options, TrainerHost* host)
    : RankSession(std::move(options), host), host_(*host), last_attempt_(options_.incarnation) {}

// --- commands ---

absl::Status TrainerSession::CheckPublish(uint64_t version) const {
  WAYBILL_RETURN_IF_ERROR(CheckMember());
  const uint64_t last = queue_.empty() ? last_sent_version_ : queue_.back().command.version;
  if (version > last) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("version ", last, " was published; versions only grow"));
}

void TrainerSession::Publish(uint64_t token, const PublishCommand& command, absl::Time now) {
  absl::Status refused = CheckPublish(command.version);
  const bool to_be_held = !queue_.empty() && queue_.back().command.hold;
  if (refused.ok() && (hold_ || to_be_held)) {
    refused = absl::FailedPreconditionError(
        absl::StrCat("version ", (to_be_held ? queue_.back().command : hold_->command).version,
                     " is held; release it first"));
  }
  if (!refused.ok()) {
    return Tell({.kind = Notice::Kind::kPublished,
                 .token = token,
                 .version = command.version,
                 .status = While(Doing(command.version), std::move(refused))});
  }
  Publication publication;
  publication.token = token;
  publication.command = command;
  queue_.push_back(std::move(publication));
  AskForNext(now);
}

void TrainerSession::Proceed(uint64_t token, const absl::Status& done, absl::Time now) {
  if (!done.ok()) return EndPublish(token, done, now);
  for (Publication& publication : queue_) {
    if (publication.token == token) publication.command.waits_for.clear();
  }
  AskForNext(now);
}

void TrainerSession::Release(uint64_t token, absl::Time now) {
  if (release_token_) {
    return Tell({.kind = Notice::Kind::kReleased,
                 .token = token,
                 .status = absl::FailedPreconditionError("release: it is being released")});
  }
  release_token_ = token;
  for (Publication& publication : queue_) publication.command.hold = false;
  if (std::exchange(hold_, std::nullopt)) SendHeld();
  for (auto& [group, sending] : sendings_) {
    if (!sending.held || sending.stopping) continue;
    SendFailed(EncodeRound(*sending.writing), absl::CancelledError("the version is not held"));
    StopGently(group, now);
  }
  FinishReleaseIfOver();
}

void TrainerSession::SendHeld() {
  proto::RankMessage message;
  message.mutable_held()->set_version(hold_ ? hold_->command.version : 0);
  message.mutable_held()->set_attempt(hold_ ? hold_->attempt : 0);
  message.mutable_held()->set_composition(hold_ ? hold_->command.composition : 0);
  Send(std::move(message));
}

void TrainerSession::FinishReleaseIfOver() {
  const bool any = std::any_of(sendings_.begin(), sendings_.end(),
                               [](const auto& sending) { return sending.second.held; });
  if (any || !release_token_) return;
  Tell({.kind = Notice::Kind::kReleased, .token = *std::exchange(release_token_, std::nullopt)});
}

void TrainerSession::Cancel(uint64_t token, absl::Time now) {
  for (size_t i = 0; i < sent_.size(); ++i) {
    if (sent_[i].token != token || sent_[i].told) continue;
    return FinishSent(i, absl::CancelledError(absl::StrCat(Doing(sent_[i].command.version),
                                                           ": cancelled after it was sent")));
  }
  EndPublish(token, absl::CancelledError("cancelled"), now);
}

// Ends a publish that is not sent yet.
void TrainerSession::EndPublish(uint64_t token, const absl::Status& status, absl::Time now) {
  const auto found = std::find_if(queue_.begin(), queue_.end(),
                                  [&](const Publication& p) { return p.token == token; });
  if (found == queue_.end()) return;
  const absl::Status why = WithScope(While(Doing(found->command.version), status), Scope::kUpdate);
  Withdraw(*found, why);
  if (!found->begun()) {
    return FinishQueued(static_cast<size_t>(found - queue_.begin()), why, now);
  }
  // The controller gives the update up. If it does not answer, this trainer stops by itself.
  found->status = why;
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
  StopAll(left, now);
  while (!queue_.empty()) FinishQueued(0, left, now);
  while (!sent_.empty()) FinishSent(0, left);
  hold_.reset();
  FinishReleaseIfOver();
  return true;
}

// --- the front of the queue ---

void TrainerSession::AskForNext(absl::Time now) {
  if (!admitted() || queue_.empty() || queue_.front().state != State::kQueued) return;
  Publication& first = queue_.front();
  if (!first.command.waits_for.empty()) return;
  first.state = State::kAsked;
  first.attempt = ++last_attempt_;
  proto::RankMessage message;
  message.mutable_publish()->set_version(first.command.version);
  message.mutable_publish()->set_attempt(first.attempt);
  message.mutable_publish()->set_deadline_ms(
      std::max<int64_t>(1, absl::ToInt64Milliseconds(first.command.deadline - now)));
  message.mutable_publish()->set_digests_off(first.command.digests_off);
  message.mutable_publish()->set_hold_commit(first.command.hold_commit);
  message.mutable_publish()->set_hold(first.command.hold);
  message.mutable_publish()->set_traceparent(first.command.traceparent);
  message.mutable_publish()->set_composition(first.command.composition);
  for (const std::string& tensor : first.command.unknown_tensors) {
    message.mutable_publish()->add_unknown_tensors(tensor);
  }
  if (!first.command.digests_off) host_.Sample(first.command.version, *message.mutable_publish());
  Send(std::move(message));
}

absl::Time TrainerSession::DeadlineOf(const Publication& publication) {
  const bool asked = publication.state != State::kQueued;
  return std::min(publication.stop_deadline,
                  publication.command.deadline + (asked ? kAnswerMargin : absl::ZeroDuration()));
}

bool TrainerSession::Publication::begun() const {
  return std::any_of(parts.begin(), parts.end(), [](const auto& part) {
    return part.second == Part::kWriting || part.second == Part::kSent;
  });
}

bool TrainerSession::HasAsked(uint64_t attempt) const {
  return !queue_.empty() && queue_.front().state == State::kAsked &&
         queue_.front().attempt == attempt;
}

void TrainerSession::FinishQueued(size_t index, absl::Status status, absl::Time now) {
  const Publication ended = std::move(queue_[index]);
  queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(index));
  Tell({.kind = Notice::Kind::kPublished,
        .token = ended.token,
        .version = ended.command.version,
        .status = std::move(status)});
  AskForNext(now);
}

TrainerSession::Part* TrainerSession::PartOf(const std::string& group) {
  if (queue_.empty()) return nullptr;
  const auto part = queue_.front().parts.find(group);
  return part == queue_.front().parts.end() ? nullptr : &part->second;
}

// Ends the group's part of the current publication, once the group's engine is quiescent. If the
// group shows the version, the part counts as sent, even if this trainer's engine had not noticed
// yet. Otherwise it is given up.
void TrainerSession::GiveUp(const std::string& group, const absl::Status& status) {
  Part* part = PartOf(group);
  if (part == nullptr || *part == Part::kSent) return;
  const auto outcome = queue_.front().outcomes.find(group);
  if (outcome != queue_.front().outcomes.end() && outcome->second.ok()) {
    *part = Part::kSent;
    return;
  }
  *part = Part::kGivenUp;
  queue_.front().status = FirstError(queue_.front().status, status);
}

// Another START of the version follows, unless it was given up meanwhile.
void TrainerSession::Await(const std::string& group) {
  *PartOf(group) = Part::kWaiting;
  const auto outcome = queue_.front().outcomes.find(group);
  if (outcome != queue_.front().outcomes.end()) GiveUp(group, outcome->second);
}

// Stops sending to a group at once.
void TrainerSession::StopSending(const std::string& group) {
  const auto found = sendings_.find(group);
  if (found == sendings_.end()) return;
  if (found->second.writing) host_.StopNow(group);
  found->second = {};
}

// Stops sending to a group without closing its lanes, if that takes no longer than a second.
// OnStopped() follows.
void TrainerSession::StopGently(const std::string& group, absl::Time now) {
  Sending& sending = sendings_.at(group);
  sending.stopping = true;
  sending.quiescence_deadline = now + kQuiescenceTimeout;
  host_.Abort(group, *sending.writing);
}

// Stops sending to all groups at once, and ends the publication if any part of it had begun.
void TrainerSession::StopAll(const absl::Status& status, absl::Time now) {
  for (const auto& [group, sending] : sendings_) StopSending(group);
  FinishReleaseIfOver();
  if (!queue_.empty()) queue_.front().kept_for.clear();
  if (queue_.empty() || !queue_.front().begun()) return;
  for (const auto& [group, part] : queue_.front().parts) GiveUp(group, status);
  FinishIfOver(now);
}

// Ends the current publication once every group has its part, or has given it up.
void TrainerSession::FinishIfOver(absl::Time now) {
  if (queue_.empty() || queue_.front().state != State::kOpen) return;
  if (!queue_.front().kept_for.empty()) return;
  bool any_sent = queue_.front().parts.empty();  // All groups have decided without this trainer.
  for (const auto& [group, part] : queue_.front().parts) {
    if (part == Part::kWaiting || part == Part::kWriting) return;
    any_sent = any_sent || part == Part::kSent;
  }
  if (!any_sent) return FinishQueued(0, queue_.front().status, now);
  Publication sent = std::move(queue_.front());
  queue_.pop_front();
  last_sent_version_ = sent.command.version;
  if (sent.command.hold) {
    const bool waits_for_word = sent.command.hold_commit && !sent.parts.empty() &&
                                committed_version_ < sent.command.version;
    hold_ = {sent.command, sent.attempt, waits_for_word};
    SendHeld();
  }
  sent_.push_back(std::move(sent));
  TellSent();
  AskForDecision(sent_.back());
  SettleSent();
  AskForNext(now);
}

void TrainerSession::FinishSent(size_t index, const absl::Status& status) {
  const Publication sent = std::move(sent_[index]);
  sent_.erase(sent_.begin() + static_cast<std::ptrdiff_t>(index));
  Tell({.kind = sent.told ? Notice::Kind::kDecided : Notice::Kind::kPublished,
        .token = sent.told ? 0 : sent.token,
        .version = sent.command.version,
        .status = status});
}

std::string TrainerSession::DescribeBehind(const PublishCommand& command) const {
  const uint64_t shown = oldest_shown_.version();
  if (command.max_behind == 0 || oldest_shown_.group().empty() ||
      shown >= command.version - std::min(command.version, command.max_behind)) {
    return "";
  }
  return absl::StrCat("group ", oldest_shown_.group(), " is ", command.version - shown,
                      " versions behind, at version ", shown, ", and max_behind is ",
                      command.max_behind);
}

void TrainerSession::OnOldestShown(const proto::OldestShown& oldest) {
  oldest_shown_ = oldest;
  TellSent();
  SettleSent();
}

// Tells the user of the SENT publications that wait for nothing else.
void TrainerSession::TellSent() {
  for (Publication& sent : sent_) {
    if (sent.told || sent.command.until_committed || !DescribeBehind(sent.command).empty())
      continue;
    sent.told = true;
    Tell({.kind = Notice::Kind::kPublished, .token = sent.token, .version = sent.command.version});
  }
}

// The next controller does not know which versions this one has given up. If another trainer, which
// was not told, published such a version again, it would be committed although this trainer's user
// believes that it failed.
void TrainerSession::NoteOutcome(uint64_t version, bool committed) {
  if (committed) {
    committed_version_ = std::max(committed_version_, version);
    if (hold_ && hold_->command.version == version) {
      hold_->waits_for_word = false;
      if (std::exchange(hold_->untold, false)) SendHeld();
    }
    failed_versions_.erase(failed_versions_.begin(),
                           failed_versions_.upper_bound(committed_version_));
  } else if (version > committed_version_) {
    failed_versions_.insert(version);
    if (failed_versions_.size() > kMostFailed) failed_versions_.erase(failed_versions_.begin());
  }
}

// Ends the SENT publications that every group has decided, and for which no group is too far
// behind.
void TrainerSession::SettleSent() {
  for (size_t i = 0; i < sent_.size();) {
    absl::Status status;
    bool decided = sent_[i].decided();
    for (auto part = sent_[i].parts.begin(); decided && part != sent_[i].parts.end(); ++part) {
      const std::string& group = part->first;
      const auto outcome = sent_[i].outcomes.find(group);
      decided = decided && outcome != sent_[i].outcomes.end();
      if (!decided || outcome->second.ok()) continue;
      status = FirstError(status, While(absl::StrCat("group ", group), outcome->second));
    }
    const bool waits = status.ok() && !sent_[i].told && !DescribeBehind(sent_[i].command).empty();
    if (decided && !waits) {
      FinishSent(i, status);
    } else {
      ++i;
    }
  }
  // No command waits for these outcomes, and no controller remembers the oldest one.
  while (sent_.size() > kMostUndecided) {
    FinishSent(0, absl::UnknownError("nobody said what became of it"));
  }
}

// --- messages ---

void TrainerSession::FillJoin(proto::Join& join) const {
  for (const Publication& sent : sent_) {
    if (!sent.decided()) join.add_undecided_versions(sent.command.version);
  }
  for (const uint64_t version : failed_versions_) join.add_failed_versions(version);
  if (!hold_ || hold_->waits_for_word) return;
  join.mutable_held()->set_version(hold_->command.version);
  join.mutable_held()->set_attempt(hold_->attempt);
  join.mutable_held()->set_composition(hold_->command.composition);
}

void TrainerSession::OnRoleMessage(const proto::ControllerMessage& message, absl::Time now) {
  switch (message.kind_case()) {
    case proto::ControllerMessage::kPublishAccepted:
      return OnAccepted(message.publish_accepted(), now);
    case proto::ControllerMessage::kRenewed:
      return OnRenewed(message.renewed());
    case proto::ControllerMessage::kStart:
      return OnStart(message.start(), now);
    case proto::ControllerMessage::kAbort:
      return OnAbort(message.abort(), now);
    case proto::ControllerMessage::kOutcome:
      return OnOutcome(message.outcome(), now);
    case proto::ControllerMessage::kGroupArrived:
      return OnGroupArrived(message.group_arrived());
    case proto::ControllerMessage::kTermOver:
      return OnTermOver(message.term_over().group(), now);
    case proto::ControllerMessage::kOldestShown:
      return OnOldestShown(message.oldest_shown());
    case proto::ControllerMessage::kSenderLost:
      return OnSenderLost(message.sender_lost());
    case proto::ControllerMessage::kPublishRefused:
      if (!HasAsked(message.publish_refused().attempt())) return;
      return FinishQueued(0, DecodeError(message.publish_refused().error()), now);
    default:
      return;
  }
}

void TrainerSession::OnAccepted(const proto::PublishAccepted& accepted, absl::Time now) {
  if (!HasAsked(accepted.attempt())) return;
  queue_.front().state = State::kOpen;
  for (const std::string& group : accepted.groups()) queue_.front().parts[group] = Part::kWaiting;
  FinishIfOver(now);
}

// If the address is not accepted, a later START with this generation of the buffer fails.
void TrainerSession::OnRenewed(const proto::Renewed& renewed) {
  const Term* term = FindTerm(renewed.epoch());
  if (term == nullptr) return;
  (void)host_.SetBufferAddress(term->group, renewed.worker(), renewed.buffer_index(),
                               renewed.buffer());
}

void TrainerSession::OnStart(const proto::Start& start, absl::Time now) {
  const Term* term = FindTerm(start.round().epoch());
  if (term == nullptr) return;
  const std::string group = term->group;
  Sending& sending = sendings_[group];
  Part* part = PartOf(group);
  const bool wanted = part != nullptr && queue_.front().attempt == start.attempt() &&
                      (*part == Part::kWaiting || queue_.front().kept_for.contains(group) ||
                       (sending.stopping && sending.again));
  if (!wanted) part = nullptr;
  const bool held = part == nullptr && hold_ && hold_->attempt == start.attempt();
  if (part == nullptr && !held) {
    return SendFailed(start.round(), absl::CancelledError("its publish has ended already"));
  }
  if (sending.stopping) {
    sending.held_start = start;
    return;
  }
  const UpdateId update = DecodeUpdate(start);
  absl::Status status;
  if (start.plan_hash() != term->plan_hash) {
    status = absl::FailedPreconditionError(
        absl::StrCat("its plan is ", absl::Hex(start.plan_hash()), ", this trainer's is ",
                     absl::Hex(term->plan_hash)));
  } else {
    status = host_.Start(group, update, held ? hold_->command : queue_.front().command, start);
  }
  if (status.ok()) {
    if (part != nullptr) {
      *part = Part::kWriting;
      queue_.front().kept_for.erase(group);
    }
    sending.writing = update;
    sending.held = held;
    return;
  }
  status = While(absl::StrCat("start version ", start.version()), status);
  SendFailed(start.round(), status);
  if (held) return;
  GiveUp(group, status);
  FinishIfOver(now);
}

void TrainerSession::OnAbort(const proto::Abort& abort, absl::Time now) {
  const Term* term = FindTerm(abort.round().epoch());
  if (term == nullptr) return;
  const std::string group = term->group;
  Sending& sending = sendings_[group];
  if (sending.held_start && sending.held_start->round().sequence() == abort.round().sequence()) {
    sending.held_start.reset();
  }
  if (sending.held && IsOf(abort.round(), *sending.writing)) {
    if (!sending.stopping) StopGently(group, now);
    return;
  }
  const Part* part = PartOf(group);
  if (part == nullptr || queue_.front().attempt != abort.attempt()) return;
  queue_.front().kept_for.erase(group);
  const absl::Status why = DecodeError(abort.error());
  if (*part == Part::kWriting) {
    if (sending.stopping) return;
    sending.again = abort.again();
    if (!abort.again()) queue_.front().status = FirstError(queue_.front().status, why);
    return StopGently(group, now);
  }
  abort.again() ? Await(group) : GiveUp(group, why);
  FinishIfOver(now);
}

void TrainerSession::OnOutcome(const proto::Outcome& outcome, absl::Time now) {
  // A withdrawn version may have been published again since.
  const auto is_of = [&](const Publication& publication) {
    return publication.command.version == outcome.version() &&
           (outcome.attempt() == 0 || outcome.attempt() == publication.attempt);
  };
  // A trainer that came back has asked. It is answered again for a group that comes back, which may
  // have other workers then.
  const auto lacks = [&](const Publication& publication) {
    return is_of(publication) && !publication.outcomes.contains(outcome.group());
  };
  if (outcome.attempt() == 0 && std::none_of(sent_.begin(), sent_.end(), lacks) &&
      std::none_of(queue_.begin(), queue_.end(), lacks)) {
    return;
  }
  NoteOutcome(outcome.version(), outcome.committed());
  absl::Status status = outcome.has_error() ? DecodeError(outcome.error()) : absl::OkStatus();
  if (status.ok() && !outcome.committed()) status = absl::AbortedError("it was not committed");
  Tell({.kind = Notice::Kind::kOutcome,
        .version = outcome.version(),
        .status = status,
        .group = outcome.group(),
        .committed = outcome.committed(),
        .unchanged = outcome.unchanged()});
  for (Publication& sent : sent_) {
    if (!is_of(sent)) continue;
    sent.outcomes[outcome.group()] = status;
    AskForDecision(sent);
  }
  SettleSent();
  if (queue_.empty() || !is_of(queue_.front())) return;
  queue_.front().outcomes[outcome.group()] = status;
  if (queue_.front().kept_for.erase(outcome.group()) > 0) FinishIfOver(now);
  Part* part = PartOf(outcome.group());
  if (part == nullptr || *part != Part::kWaiting) return;
  if (outcome.committed()) {
    *part = Part::kSent;  // The group needed nothing from this trainer.
  } else {
    GiveUp(outcome.group(), status);
  }
  FinishIfOver(now);
}

void TrainerSession::OnGroupArrived(const proto::GroupArrived& arrived) {
  const auto note = [&](Publication& publication) {
    publication.received.insert(arrived.group());
    if (!arrived.unvoted()) publication.arrived.insert(arrived.group());
  };
  if (!queue_.empty() && queue_.front().attempt == arrived.attempt()) note(queue_.front());
  for (Publication& sent : sent_) {
    if (sent.attempt != arrived.attempt()) continue;
    note(sent);
    AskForDecision(sent);
  }
}

// Asks for the decision once every group waits for it or has given the version up, and at least one
// waits.
void TrainerSession::AskForDecision(Publication& sent) {
  const auto is_over = [&](const std::string& group) { return sent.outcomes.contains(group); };
  const auto have_all = [&](const std::set<std::string>& groups) {
    return !std::all_of(groups.begin(), groups.end(), is_over) &&
           std::all_of(sent.parts.begin(), sent.parts.end(), [&](const auto& part) {
             return groups.contains(part.first) || is_over(part.first);
           });
  };
  if (!sent.told_received && have_all(sent.received)) {
    sent.told_received = true;
    Tell({.kind = Notice::Kind::kReceived, .version = sent.command.version});
  }
  if (!sent.asked_for_decision && have_all(sent.arrived)) {
    sent.asked_for_decision = true;
    Tell({.kind = Notice::Kind::kArrived, .version = sent.command.version});
  }
}

void TrainerSession::Decide(uint64_t version, const absl::Status& word, absl::Time now) {
  for (const Publication& publication : queue_) {
    if (publication.command.version != version || !publication.command.hold_commit) continue;
    if (!word.ok()) EndPublish(publication.token, word, now);
    return;
  }
  for (const Publication& sent : sent_) {
    if (sent.command.version != version || !sent.command.hold_commit) continue;
    if (word.ok() && !sent.asked_for_decision) continue;
    proto::RankMessage message;
    message.mutable_decide()->set_version(version);
    message.mutable_decide()->set_attempt(sent.attempt);
    if (!word.ok()) *message.mutable_decide()->mutable_error() = EncodeError(word);
    Send(std::move(message));
  }
}

// Stops sending to the group. Its outcome follows, or has already arrived.
void TrainerSession::OnTermOver(const std::string& group, absl::Time now) {
  StopSending(group);
  sendings_.erase(group);
  FinishReleaseIfOver();
  ForgetTerm(group);
  host_.ForgetGroup(group);
  if (!queue_.empty()) queue_.front().kept_for.erase(group);
  GiveUp(group, absl::UnavailableError(absl::StrCat("group ", group, " is gone")));
  FinishIfOver(now);
}

// Workers that miss routes of a lost trainer may get the data from this one, if its tensors still
// hold the version.
void TrainerSession::OnSenderLost(const proto::SenderLost& lost) {
  const Term* term = FindTerm(lost.round().epoch());
  if (term == nullptr) return;
  const bool open = PartOf(term->group) != nullptr && queue_.front().attempt == lost.attempt();
  if (open) queue_.front().kept_for.insert(term->group);
  proto::RankMessage message;
  *message.mutable_kept()->mutable_round() = lost.round();
  message.mutable_kept()->set_kept(open || (hold_ && hold_->attempt == lost.attempt()));
  Send(std::move(message));
}

void TrainerSession::SendFailed(const proto::Round& round, const absl::Status& status) {
  proto::RankMessage message;
  *message.mutable_failed()->mutable_round() = round;
  *message.mutable_failed()->mutable_error() = EncodeError(status);
  Send(std::move(message));
}

// --- the engines ---

void TrainerSession::OnSent(const std::string& group, const UpdateId& update, absl::Time now) {
  proto::RankMessage message;
  *message.mutable_sent()->mutable_round() = EncodeRound(update);
  if (IsLastToSend(group)) *message.mutable_sent()->mutable_report() = TakeReport();
  Send(std::move(message));
  const auto sending = sendings_.find(group);
  if (sending == sendings_.end() || sending->second.writing != update) return;
  if (std::exchange(sending->second, {}).held) return FinishReleaseIfOver();
  if (Part* part = PartOf(group); part != nullptr && *part == Part::kWriting) *part = Part::kSent;
  FinishIfOver(now);
}

// Returns true if no other group waits for its part of the current publication.
bool TrainerSession::IsLastToSend(const std::string& group) const {
  return queue_.empty() ||
         std::all_of(queue_.front().parts.begin(), queue_.front().parts.end(), [&](const auto& p) {
           return p.first == group || p.second == Part::kSent || p.second == Part::kGivenUp;
         });
}

void TrainerSession::OnStopped(const std::string& group, const UpdateId& update, absl::Time now) {
  const auto sending = sendings_.find(group);
  if (sending != sendings_.end() && sending->second.writing == update) OnQuiescent(group, now);
}

void TrainerSession::OnQuiescent(const std::string& group, absl::Time now) {
  const Sending sending = std::exchange(sendings_[group], {});
  FinishReleaseIfOver();
  Part* part = PartOf(group);
  if (part != nullptr && *part == Part::kWriting && queue_.front().kept_for.contains(group)) {
    // The lanes were replaced to bring missing routes; all other routes have arrived.
    *part = Part::kSent;
  } else if (part != nullptr && *part == Part::kWriting && sending.again) {
    Await(group);
    FinishIfOver(now);
  } else if (part != nullptr && *part == Part::kWriting) {
    GiveUp(group, absl::UnavailableError(absl::StrCat(Doing(queue_.front().command.version),
                                                      ": its lanes were replaced")));
    FinishIfOver(now);
  }
  if (sending.held_start) OnStart(*sending.held_start, now);
}

void TrainerSession::OnRefused(const std::string& group, const absl::Status& status) {
  const auto sending = sendings_.find(group);
  if (sending == sendings_.end() || !sending->second.writing) return;
  SendFailed(EncodeRound(*sending->second.writing), status);
}

void TrainerSession::OnEstablished(const proto::Established& established, absl::Time now) {
  OnOldestShown(established.oldest_shown());
  AskForNext(now);
}

// No version can be decided without a controller, so updates that are being sent are given up.
// Queued publications keep waiting.
void TrainerSession::OnLost(const absl::Status& status, absl::Time now) {
  StopAll(status, now);
  sendings_.clear();
  if (hold_) hold_->untold = hold_->waits_for_word;
  for (const auto& [group, term] : terms()) host_.ForgetGroup(group);
  if (ended()) {
    while (!queue_.empty()) FinishQueued(0, status, now);
    while (!sent_.empty()) FinishSent(0, status);
    return;
  }
  if (queue_.empty() || queue_.front().state == State::kQueued) return;
  // The next controller does not know what this one has given up. If asked again, it would commit
  // that version.
  Publication& first = queue_.front();
  for (const auto& [group, outcome] : first.outcomes) {
    if (!outcome.ok()) return FinishQueued(0, While(absl::StrCat("group ", group), outcome), now);
  }
  first.state = State::kQueued;
  first.parts.clear();
}

// --- time ---

void TrainerSession::OnRoleTime(absl::Time now) {
  std::vector<std::string> late_groups;
  for (const auto& [group, sending] : sendings_) {
    if (now >= sending.quiescence_deadline) late_groups.push_back(group);
  }
  for (const std::string& group : late_groups) {
    // The lanes are closed with writes outstanding, and the controller plans new lanes.
    host_.StopNow(group);
    OnQuiescent(group, now);
  }
  for (size_t i = 0; i < queue_.size();) {
    const Publication& publication = queue_[i];
    const uint64_t version = publication.command.version;
    if (now < DeadlineOf(publication)) {
      ++i;
      continue;
    }
    const absl::Status late =
        WithScope(absl::DeadlineExceededError(
                      absl::StrCat(Doing(version), ": not sent by its deadline",
                                   !publication.command.waits_for.empty()
                                       ? absl::StrCat("; ", publication.command.waits_for)
                                   : admitted() ? ""
                                                : absl::StrCat("; ", lost_status().message()))),
                  Scope::kUpdate);
    const uint64_t token = publication.token;
    Withdraw(publication, late);
    if (i == 0) StopAll(late, now);  // Also ends the publication if it had begun.
    if (i < queue_.size() && queue_[i].token == token) FinishQueued(i, late, now);
  }
  for (size_t i = 0; i < sent_.size();) {
    const Publication& sent = sent_[i];
    if (sent.told || now < sent.command.deadline + kAnswerMargin) {
      ++i;
      continue;
    }
    const std::string why = sent.command.until_committed && !sent.decided()
                                ? absl::StrCat(sent.outcomes.size(), " of ", sent.parts.size(),
                                               " groups have decided by its deadline")
                                : DescribeBehind(sent.command);
    FinishSent(i,
               absl::DeadlineExceededError(absl::StrCat(Doing(sent.command.version), ": ", why)));
  }
}

absl::Time TrainerSession::role_deadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [group, sending] : sendings_) {
    next = std::min(next, sending.quiescence_deadline);
  }
  for (const Publication& publication : queue_) next = std::min(next, DeadlineOf(publication));
  for (const Publication& sent : sent_) {
    if (!sent.told) next = std::min(next, sent.command.deadline + kAnswerMargin);
  }
  return next;
}

}  // namespace waybill
