// SPDX-License-Identifier: Apache-2.0

#include "core/protocol/update_round.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/protocol/message_codec.h"

namespace waybill {
namespace {

template <typename Done>
std::string ListWithout(const std::set<uint32_t>& all, const Done& done) {
  std::string text;
  for (const uint32_t rank : all) {
    if (!done.contains(rank)) absl::StrAppend(&text, text.empty() ? "" : ", ", rank);
  }
  return text;
}

}  // namespace

absl::Status CannotShow(uint64_t version, uint32_t worker, const absl::Status& why) {
  return While(
      absl::StrCat("version ", version, " is committed, but worker ", worker, " cannot show it"),
      why);
}

UpdateRound::UpdateRound(const UpdateId& update, RoundMembers members, bool digests_off,
                         absl::Time deadline, const Plan& plan, IfLanesDie if_lanes_die,
                         RoundActions* actions)
    : update_(update),
      digests_off_(digests_off),
      deadline_(deadline),
      actions_(actions),
      senders_(members.senders.size()),
      workers_(std::move(members.workers)),
      unsettled_(workers_),
      if_lanes_die_(if_lanes_die) {
  for (uint32_t s = 0; s < senders_.size(); ++s) {
    Sender& sender = senders_[s];
    sender.id = std::move(members.senders[s]);
    numbers_[sender.id] = s;
    sender.gone = members.absent.contains(s);
    for (const uint32_t worker : workers_) {
      if (plan.route_count(s, worker) == 0) continue;
      sender.workers.insert(worker);
      senders_of_[worker].push_back(s);
    }
    sender.unready = sender.workers.size();
    sender.trades = plan.trades(s);
    sender.relays = s >= plan.holder_count();
  }
}

void UpdateRound::Begin(bool catch_up, const UpdateId* continued, absl::Time now) {
  proto::ControllerMessage message;
  proto::Prepare* prepare = message.mutable_prepare();
  *prepare->mutable_round() = EncodeRound(update_);
  prepare->set_version(update_.version);
  prepare->set_plan_hash(update_.plan_hash);
  prepare->set_digests_off(digests_off_);
  prepare->set_catch_up(catch_up);
  prepare->set_composition(update_.composition);
  if (continued != nullptr) {
    *prepare->mutable_continues() = EncodeRound(*continued);
    started_ = true;  // Data has landed in the continued round.
  }
  prepare->set_deadline_ms(std::max<int64_t>(1, absl::ToInt64Milliseconds(deadline_ - now)));
  for (const uint32_t worker : workers_) actions_->ToWorker(worker, message);
}

const UpdateRound::Sender* UpdateRound::Find(const RankId& id) const {
  const auto number = numbers_.find(id);
  return number == numbers_.end() ? nullptr : &senders_[number->second];
}

bool UpdateRound::IsAwaited(const RankId& sender) const {
  const Sender* found = Find(sender);
  return found != nullptr && !found->published && !found->gone;
}

bool UpdateRound::HasPublished(const RankId& sender, uint64_t attempt) const {
  const Sender* found = Find(sender);
  return found != nullptr && found->published && !found->gone && found->attempt == attempt;
}

void UpdateRound::OnPublish(const RankId& sender, uint64_t attempt, absl::Time deadline) {
  Sender* found = Find(sender);
  if (found == nullptr) return;
  found->published = true;
  found->attempt = attempt;
  deadline_ = std::min(deadline_, deadline);
  StartReadySenders();
  RecordIfAllPublished();
}

void UpdateRound::OnReady(uint32_t worker, const proto::Ready& ready) {
  if (state_ != State::kPreparing || !workers_.contains(worker)) return;
  if (ready_.insert_or_assign(worker, ready).second) {
    for (const uint32_t s : senders_of_[worker]) --senders_[s].unready;
  }
  if (ready_.size() == workers_.size()) state_ = State::kMoving;
  StartReadySenders();
}

// Starts each sender once every worker that it writes to is READY.
void UpdateRound::StartReadySenders() {
  for (uint32_t s = 0; s < senders_.size(); ++s) {
    Sender& sender = senders_[s];
    if (!Abortable() || state_ == State::kContinued) return;
    if (!sender.published || sender.started || sender.gone) continue;
    // The relaying worker's own buffer is not ready, or no route leaves it.
    if (sender.relays &&
        (state_ == State::kPreparing || !lost_status_.ok() || sender.workers.empty())) {
      continue;
    }
    if (sender.unready > 0) continue;
    proto::ControllerMessage message;
    proto::Start* start = message.mutable_start();
    *start->mutable_round() = EncodeRound(update_);
    start->set_attempt(sender.attempt);
    start->set_version(update_.version);
    start->set_plan_hash(update_.plan_hash);
    start->set_digests_off(digests_off_);
    start->set_composition(update_.composition);
    for (const uint32_t worker : sender.workers) {
      proto::Target* target = start->add_targets();
      target->set_worker(worker);
      target->set_buffer_index(ready_[worker].buffer_index());
      target->set_generation(ready_[worker].generation());
      target->set_base(ready_[worker].base());
    }
    sender.started = true;
    started_ = true;
    actions_->ToSender(sender.id, std::move(message));
    if (!lost_status_.ok()) AskToKeep();
  }
}

void UpdateRound::OnRefused(uint32_t worker, const absl::Status& status) {
  if (!workers_.contains(worker)) return;
  Abort(While(absl::StrCat("worker ", worker, " refused"), status));
}

void UpdateRound::OnReceived(uint32_t worker) {
  if (!Abortable() || !ready_.contains(worker)) return;
  if (received_.insert(worker).second && received()) actions_->TellArrived();
}

void UpdateRound::OnArrived(uint32_t worker) {
  if (!Abortable() || state_ == State::kArrived || !ready_.contains(worker)) return;
  arrived_.insert(worker);
  if (arrived_ != workers_) {
    OnReceived(worker);
    return PlanRestIfKnown();
  }
  received_.insert(worker);
  state_ = State::kArrived;
  if (held_) return actions_->TellArrived();
  RecordIfAllPublished();
}

void UpdateRound::Decide() {
  held_ = false;
  RecordIfAllPublished();
}

// Also waits for trainers that send nothing to this group: only when they publish is it known
// whether they hold the same bytes.
void UpdateRound::RecordIfAllPublished() {
  if (state_ != State::kArrived || held_) return;
  const bool all = std::all_of(senders_.begin(), senders_.end(),
                               [](const Sender& s) { return s.published || s.gone; });
  if (!all) return;
  state_ = State::kRecording;
  actions_->Record();
}

void UpdateRound::OnRecorded(Recorded recorded, const absl::Status& status) {
  if (state_ != State::kRecording || recorded == Recorded::kUnknown) return;
  if (recorded == Recorded::kNotRecorded) {
    state_ = State::kMoving;
    return Abort(While("record the decision to commit", status));
  }
  state_ = State::kDecided;
  for (const uint32_t worker : workers_) {
    proto::ControllerMessage message;
    *message.mutable_commit()->mutable_round() = EncodeRound(update_);
    message.mutable_commit()->set_version(update_.version);
    actions_->ToWorker(worker, std::move(message));
  }
  FinishShown();  // The round does not wait for workers that are gone.
}

void UpdateRound::OnShown(uint32_t worker, bool unchanged) {
  if (state_ != State::kDecided || !workers_.contains(worker)) return;
  shown_.insert(worker);
  unsettled_.erase(worker);
  if (unchanged) unchanged_.insert(worker);
  FinishShown();
}

void UpdateRound::FinishShown() {
  if (!unsettled_.empty()) return;
  state_ = State::kShown;
  absl::Status status;
  if (!unable_.empty()) {
    const auto& [worker, why] = *unable_.begin();
    status = CannotShow(update_.version, worker, why);
  }
  // A worker that leaves after it has shown the version is not lost.
  if (const std::string lost = ListWithout(gone_, shown_); !lost.empty()) {
    status = absl::UnavailableError(
        absl::StrCat("version ", update_.version,
                     " is committed, but lost before they showed it: worker ", lost));
  }
  actions_->TellOutcome(/*committed=*/true, status);
}

void UpdateRound::OnWorkerFailed(uint32_t worker, const absl::Status& status, bool wrong_base) {
  if (!workers_.contains(worker)) return;
  if (state_ == State::kDecided) {
    unable_.emplace(worker, status);
    unsettled_.erase(worker);
    return FinishShown();
  }
  again_ = wrong_base && Abortable();
  Abort(While(absl::StrCat("worker ", worker), status));
}

void UpdateRound::OnLaneFailed(const RankId& sender, uint32_t worker, const absl::Status& status) {
  const Sender* found = Find(sender);
  if (found == nullptr) return;
  LoseLane(NumberOf(*found), worker,
           While(absl::StrCat("lane from ", ToString(sender), " to worker ", worker), status));
}

// --- missing routes of dead lanes ---

void UpdateRound::LoseLane(uint32_t sender, uint32_t worker, const absl::Status& why) {
  // A worker that has received the whole version does not need the lane any more.
  if (!Abortable() || state_ == State::kContinued) return;
  if (arrived_.contains(worker) || !workers_.contains(worker)) return;
  if (if_lanes_die_ == IfLanesDie::kAbort) return Abort(why);
  const bool first = lost_status_.ok();
  lost_status_ = FirstError(lost_status_, why);
  TellLost({sender}, worker);
  AskToKeep();
  if (!first) return;
  // Data that has not been relayed yet may never reach the relaying workers, so the trainers bring
  // it.
  std::map<uint32_t, std::set<uint32_t>> relays;  // By worker.
  for (uint32_t s = 0; s < senders_.size(); ++s) {
    if (!senders_[s].relays) continue;
    for (const uint32_t w : senders_[s].workers) relays[w].insert(s);
  }
  for (const auto& [w, senders] : relays) TellLost(senders, w);
}

// Tells the worker which of `senders` are lost, unless it was told before.
void UpdateRound::TellLost(const std::set<uint32_t>& senders, uint32_t worker) {
  proto::ControllerMessage message;
  *message.mutable_sender_lost()->mutable_round() = EncodeRound(update_);
  for (const uint32_t sender : senders) {
    if (told_lost_.insert({sender, worker}).second) {
      message.mutable_sender_lost()->add_senders(sender);
    }
  }
  if (message.sender_lost().senders().empty()) return;
  actions_->ToWorker(worker, std::move(message));
}

void UpdateRound::AskToKeep() {
  for (uint32_t s = 0; s < senders_.size(); ++s) {
    Sender& sender = senders_[s];
    if (!sender.started || sender.gone || sender.relays ||
        std::exchange(sender.asked_to_keep, true)) {
      continue;
    }
    proto::ControllerMessage message;
    *message.mutable_sender_lost()->mutable_round() = EncodeRound(update_);
    message.mutable_sender_lost()->set_attempt(sender.attempt);
    actions_->ToSender(sender.id, std::move(message));
  }
}

void UpdateRound::OnLacking(uint32_t worker, const std::set<uint32_t>& senders) {
  if (lost_status_.ok() || !ready_.contains(worker)) return;
  lacking_[worker] = {senders.begin(), senders.lower_bound(static_cast<uint32_t>(senders_.size()))};
  PlanRestIfKnown();
}

void UpdateRound::OnKept(const RankId& sender, bool kept) {
  Sender* found = Find(sender);
  if (found == nullptr) return;
  found->kept = kept;
  PlanRestIfKnown();
}

// Plans the missing routes once every worker has reported what it lacks, and every sender whether
// it still holds the version.
void UpdateRound::PlanRestIfKnown() {
  if (lacking_.empty() || state_ != State::kMoving) return;
  std::set<RankPair> lacking;
  for (const uint32_t worker : workers_) {
    if (arrived_.contains(worker)) continue;
    const auto said = lacking_.find(worker);
    if (said == lacking_.end()) return;
    for (const uint32_t sender : said->second) lacking.insert({sender, worker});
  }
  std::set<uint32_t> holders;
  for (uint32_t s = 0; s < senders_.size(); ++s) {
    const Sender& sender = senders_[s];
    if (!sender.started || sender.gone || sender.relays) continue;
    if (!sender.kept) return;
    if (*sender.kept) holders.insert(s);
  }
  state_ = State::kContinued;
  actions_->PlanRest(std::move(lacking), std::move(holders));
}

void UpdateRound::OnRestUnavailable(const absl::Status& status) {
  Abort(absl::Status(lost_status_.code(),
                     absl::StrCat(lost_status_.message(), "; ", status.message())));
}

// --- senders that fail ---

void UpdateRound::OnSenderFailed(const RankId& sender, const absl::Status& status) {
  const Sender* found = Find(sender);
  if (found == nullptr || (found->workers.empty() && !found->trades)) return;
  Abort(While(ToString(sender), status));
}

void UpdateRound::OnCoOwnerLost(const RankId& trainer, const RankId& other,
                                const absl::Status& status) {
  if (Find(trainer) == nullptr || Find(other) == nullptr) return;
  AbortTraded(
      While(absl::StrCat("lane between ", ToString(trainer), " and ", ToString(other)), status));
}

// Returns true while the sender has routes to a worker that has not received everything.
bool UpdateRound::HasToSend(const Sender& sender) const {
  return std::any_of(sender.workers.begin(), sender.workers.end(),
                     [&](uint32_t worker) { return !arrived_.contains(worker); });
}

// Aborts if something is quantised by maxima that may not come any more. That is whatever a trading
// sender has still to bring: it is not known here which of them have their maxima already.
void UpdateRound::AbortTraded(const absl::Status& why) {
  const bool concerned = std::any_of(senders_.begin(), senders_.end(),
                                     [&](const Sender& s) { return s.trades && HasToSend(s); });
  if (concerned) Abort(why);
}

void UpdateRound::OnSenderGone(const RankId& id, const absl::Status& status) {
  Sender* sender = Find(id);
  // A process that took over the rank later is not a member of this round.
  if (sender == nullptr || std::exchange(sender->gone, true)) return;
  if (sender->trades) AbortTraded(status);
  if (!Abortable()) return;  // Its workers may be gone, too.
  const bool all_gone = std::all_of(senders_.begin(), senders_.end(),
                                    [](const Sender& s) { return s.gone || s.relays; });
  if (state_ == State::kContinued) {  // The missing routes are planned again without the sender.
    if (all_gone) Abort(status);
    return;
  }
  if (!HasToSend(*sender)) {
    PlanRestIfKnown();
    return RecordIfAllPublished();
  }
  if (all_gone || if_lanes_die_ == IfLanesDie::kAbort) return Abort(status);
  const uint32_t number = NumberOf(*sender);
  for (const uint32_t worker : sender->workers) LoseLane(number, worker, status);
  actions_->CheckRest(number);
  PlanRestIfKnown();
}

void UpdateRound::OnWorkerGone(uint32_t worker, const absl::Status& status) {
  gone_.insert(worker);
  unsettled_.erase(worker);
  OnRelayStopped(worker);
  Abort(status);
  if (state_ == State::kDecided) FinishShown();
}

void UpdateRound::OnTime(absl::Time now) {
  if (now < deadline_) return;
  const absl::Status late = absl::DeadlineExceededError(absl::StrCat(
      "version ", update_.version, ": the deadline is over, waiting for ", DescribeWaiting()));
  Abort(late);
  if (state_ != State::kDecided) return;
  state_ = State::kShown;
  actions_->TellOutcome(/*committed=*/true, late);
}

// Has no effect once the decision may be on disk.
void UpdateRound::Abort(const absl::Status& why) {
  if (!Abortable()) return;
  state_ = State::kAborted;
  abort_status_ = WithScope(why, Scope::kUpdate);
  const auto message = [&](bool begun, uint64_t attempt) {
    proto::ControllerMessage abort;
    *abort.mutable_abort()->mutable_round() = EncodeRound(update_);
    abort.mutable_abort()->set_begun(begun);
    abort.mutable_abort()->set_attempt(attempt);
    abort.mutable_abort()->set_again(again_);
    *abort.mutable_abort()->mutable_error() = EncodeError(abort_status_);
    return abort;
  };
  for (const uint32_t worker : workers_) actions_->ToWorker(worker, message(started_, 0));
  // Before the publish ends: whoever is told so knows the outcome.
  actions_->TellOutcome(/*committed=*/false, abort_status_);
  for (uint32_t s = 0; s < senders_.size(); ++s) {
    const Sender& sender = senders_[s];
    if (sender.started) actions_->ToSender(sender.id, message(/*begun=*/true, sender.attempt));
  }
}

void UpdateRound::OnRelayStopped(uint32_t worker) {
  for (Sender& sender : senders_) {
    if (sender.relays && sender.id.rank == worker) sender.stopped = true;
  }
}

std::set<uint32_t> UpdateRound::RunningRelays() const {
  std::set<uint32_t> workers;
  for (const Sender& sender : senders_) {
    if (sender.relays && sender.started && !sender.stopped) workers.insert(sender.id.rank);
  }
  return workers;
}

absl::Time UpdateRound::deadline() const {
  return Abortable() || state_ == State::kDecided ? deadline_ : absl::InfiniteFuture();
}

std::string UpdateRound::DescribeWaiting() const {
  std::string text;
  const auto add = [&](absl::string_view what, const std::string& who,
                       absl::string_view more = "") {
    if (!who.empty()) absl::StrAppend(&text, text.empty() ? "" : "; ", what, who, more);
  };
  std::string unpublished;
  for (uint32_t s = 0; s < senders_.size(); ++s) {
    if (!undecided() || senders_[s].published || senders_[s].gone) continue;
    absl::StrAppend(&unpublished, unpublished.empty() ? "" : ", ", s);
    if (const uint64_t other = actions_->OtherVersionOf(senders_[s].id); other != 0) {
      absl::StrAppend(&unpublished, " (which publishes version ", other, ")");
    }
  }
  add("publish() by trainer ", unpublished);
  if (state_ == State::kPreparing) {
    add("READY of worker ", ListWithout(workers_, ready_),
        " (its buffer, or its program's answer to PREPARE)");
  }
  if (state_ == State::kMoving) {
    add("ARRIVED of worker ", ListWithout(workers_, arrived_),
        " (its data, or its program's answer to ARRIVED)");
  }
  if (state_ == State::kContinued) add("lanes for ", "what is lacking");
  if (waits_for_word()) add("commit() or abort() by ", "a trainer");
  if (state_ == State::kRecording) add("the record of ", "the decision");
  if (state_ == State::kDecided) {
    add("SHOWN of worker ", ListWithout(workers_, shown_),
        " (its readers, or its program's answer to COMMIT)");
  }
  if (state_ == State::kAborted) {
    add("the end of what is relayed by worker ",
        ListWithout(RunningRelays(), std::set<uint32_t>()));
  }
  return text.empty() ? "nothing" : text;
}

}  // namespace waybill
