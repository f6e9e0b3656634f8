// SPDX-License-Identifier: Apache-2.0

#include "core/control/version_lender.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/plan/plan_check.h"
#include "core/protocol/timeouts.h"
#include "core/tensor/verbatim.h"

namespace waybill {

VersionLender::VersionLender(Manifest manifest, uint64_t chunk_bytes,
                             const SenderEngineOptions& options, Fabric* fabric,
                             ReceiverEngine* receiver, WorkerSession* session)
    : manifest_(std::move(manifest)),
      chunk_bytes_(chunk_bytes),
      options_(options),
      fabric_(*fabric),
      receiver_(*receiver),
      session_(*session) {}

absl::StatusOr<proto::Offers> VersionLender::SetLoan(TermPlan plan) {
  WAYBILL_RETURN_IF_ERROR(CheckRankPlan(plan.routes, Verbatim(manifest_), Role::kTrainer));
  ForgetGroup(plan.group);
  WAYBILL_ASSIGN_OR_RETURN(Snapshot snapshot, receiver_.TakeSnapshot(absl::StrCat(
                                                  "group ", plan.group, ", which catches up")));
  if (snapshot.version() != plan.lent_version) {
    return absl::FailedPreconditionError(
        absl::StrCat("it shows version ", snapshot.version(), ", not ", plan.lent_version));
  }
  std::vector<MemorySpan> sources = Spans(snapshot);
  WAYBILL_ASSIGN_OR_RETURN(Loan loan, MakeLoan(plan.group));
  loan.snapshot = std::move(snapshot);
  const std::string group = plan.group;
  Loan& kept = loans_[group] = std::move(loan);
  absl::StatusOr<proto::Offers> offers = kept.sender->SetPlan(std::move(plan), std::move(sources));
  // The session has no such term, so it will not end the loan.
  if (!offers.ok()) ForgetGroup(group);
  return offers;
}

absl::StatusOr<proto::Offers> VersionLender::SetRelay(TermPlan plan) {
  if (relay_) return absl::FailedPreconditionError("a second plan of relays in a term");
  WAYBILL_RETURN_IF_ERROR(CheckRankPlan(plan.routes, manifest_, Role::kTrainer));
  WAYBILL_ASSIGN_OR_RETURN(RelayedRoutes routes,
                           RelayedRoutes::Create(receiver_.arrivals(), chunk_bytes_,
                                                 plan.routes.routes, options_.chunk_bytes));
  WAYBILL_ASSIGN_OR_RETURN(Loan loan, MakeLoan(plan.group));
  relay_ = {.loan = std::move(loan), .routes = std::move(routes), .update = {}};
  receiver_.RelayBy(&relay_->routes);
  // This worker's memory may be paused now, so each update sets the sources.
  return relay_->loan.sender->SetPlan(std::move(plan),
                                      std::vector<MemorySpan>(manifest_.region_count()));
}

absl::StatusOr<VersionLender::Loan> VersionLender::MakeLoan(const std::string& group) {
  if (staging_ == nullptr) {
    WAYBILL_ASSIGN_OR_RETURN(staging_, StagingArea::Create(&fabric_, options_));
  }
  Loan loan;
  loan.sender = std::make_unique<GroupSender>(
      &fabric_, staging_.get(),
      [this, group](const SenderEvent& event) { events_.emplace_back(group, event); });
  return loan;
}

std::vector<MemorySpan> VersionLender::Spans(const Snapshot& snapshot) const {
  std::vector<MemorySpan> spans;
  for (uint32_t r = 0; r < manifest_.region_count(); ++r) {
    const absl::Span<const std::byte> region = snapshot.region(r);
    // The spans are only read.
    spans.push_back({.kind = receiver_.shown_kind(r),
                     .data = const_cast<std::byte*>(region.data()),
                     .size_bytes = region.size()});
  }
  return spans;
}

VersionLender::Loan* VersionLender::Find(const std::string& group) {
  if (relay_ && group == session_.group()) return &relay_->loan;
  const auto loan = loans_.find(group);
  return loan == loans_.end() ? nullptr : &loan->second;
}

absl::StatusOr<GroupSender*> VersionLender::FindSender(const std::string& group) {
  Loan* const loan = Find(group);
  if (loan == nullptr) return absl::FailedPreconditionError("the term has no such routes");
  return loan->sender.get();
}

absl::Status VersionLender::Connect(const std::string& group, const proto::Connect& connect) {
  WAYBILL_ASSIGN_OR_RETURN(GroupSender * sender, FindSender(group));
  return sender->Connect(connect);
}

absl::Status VersionLender::SetBufferAddress(const std::string& group, uint32_t worker,
                                             uint32_t buffer_index, const proto::Buffer& buffer) {
  WAYBILL_ASSIGN_OR_RETURN(GroupSender * sender, FindSender(group));
  return sender->SetBufferAddress(worker, buffer_index, buffer);
}

absl::Status VersionLender::Start(const std::string& group, const UpdateId& update,
                                  const proto::Start& start) {
  WAYBILL_ASSIGN_OR_RETURN(GroupSender * sender, FindSender(group));
  if (group == session_.group()) return StartRelaying(update, start);
  return sender->Start(update, start, NonFiniteRule::kKept);
}

void VersionLender::ForgetGroup(const std::string& group) {
  loans_.erase(group);
  DropEvents(group);
}

void VersionLender::EndRelay() {
  receiver_.RelayBy(nullptr);
  relay_.reset();
  DropEvents(session_.group());
}

void VersionLender::CloseLanes() {
  EndRelay();
  loans_.clear();
  events_.clear();
}

void VersionLender::DropEvents(const std::string& group) {
  std::erase_if(events_, [&](const auto& event) { return event.first == group; });
}

// --- relaying ---

// Relays an update as it arrives, or a version that is shown already from the shown memory.
absl::Status VersionLender::StartRelaying(const UpdateId& update, const proto::Start& start) {
  if (relay_->sending) {
    relay_->next = {update, start};
    return absl::OkStatus();
  }
  relay_->arriving = receiving_ == update;
  std::vector<MemorySpan> sources;
  std::optional<Snapshot> snapshot;
  if (relay_->arriving) {
    sources = receiver_.Receiving();
  } else {
    WAYBILL_ASSIGN_OR_RETURN(snapshot, receiver_.TakeSnapshot("others of the group"));
    if (snapshot->version() != update.version) {
      return absl::FailedPreconditionError(absl::StrCat("it shows version ", snapshot->version()));
    }
    sources = Spans(*snapshot);
  }
  GroupSender& sender = *relay_->loan.sender;
  WAYBILL_RETURN_IF_ERROR(sender.engine().SetSources(std::move(sources)));
  WAYBILL_RETURN_IF_ERROR(
      sender.Start(update, start, NonFiniteRule::kKept,
                   relay_->arriving ? SourcesAre::kArriving : SourcesAre::kThere));
  relay_->loan.snapshot = std::move(snapshot);
  relay_->update = update;
  relay_->sending = true;
  relay_->received = relay_->routes.updates();
  relay_->released = relay_->given = 0;
  ReleaseArrivedChunks();
  return absl::OkStatus();
}

void VersionLender::ReleaseArrivedChunks() {
  if (!relay_ || !relay_->sending || !relay_->arriving) return;
  if (relay_->received != relay_->routes.updates()) return;  // The next update has begun to arrive.
  SenderEngine& engine = relay_->loan.sender->engine();
  const auto chunks = relay_->routes.chunks();
  while (relay_->released < chunks.size()) engine.Release(chunks[relay_->released++]);
  const auto digests = relay_->routes.digests();
  for (; relay_->given < digests.size(); ++relay_->given) {
    engine.GiveDigest(digests[relay_->given].route, digests[relay_->given].digest);
  }
}

void VersionLender::StopRelaying(uint64_t epoch, uint32_t sequence, absl::Time now) {
  stopping_.insert({epoch, sequence});
  if (!relay_) return;
  if (relay_->next && relay_->next->update.epoch == epoch &&
      relay_->next->update.sequence == sequence) {
    relay_->next.reset();
  }
  if (!IsRelaying(epoch, sequence)) return;
  relay_->stop_now_at = now + kQuiescenceTimeout;
  relay_->loan.sender->engine().Abort(sequence);
}

void VersionLender::StartNextRelay() {
  relay_->sending = false;
  relay_->stop_now_at = absl::InfiniteFuture();
  const std::optional<RelayStart> next = std::exchange(relay_->next, std::nullopt);
  if (!next) return;
  const absl::Status status = StartRelaying(next->update, next->start);
  if (!status.ok()) session_.OnSendingFailed(next->update, status);
}

// --- progress ---

bool VersionLender::Handle(const FabricEvent& event) {
  if (relay_ && relay_->loan.sender->engine().Handle(event)) return true;
  return std::any_of(loans_.begin(), loans_.end(),
                     [&](const auto& loan) { return loan.second.sender->engine().Handle(event); });
}

void VersionLender::Step(absl::Time now) {
  if (relay_ && now >= relay_->stop_now_at) {
    relay_->stop_now_at = absl::InfiniteFuture();
    relay_->loan.sender->engine().StopNow();
  }
  ReleaseArrivedChunks();
  const size_t engines = loans_.size() + (relay_ ? 1 : 0);
  for (bool again = engines > 0; again;) {
    const uint64_t before = staging_->slots().changes();
    if (relay_) relay_->loan.sender->engine().Step();
    for (auto& [group, loan] : loans_) loan.sender->engine().Step();
    // Another engine may be waiting for a slot that this engine has freed.
    again = engines > 1 && staging_->slots().changes() != before;
  }
}

absl::Time VersionLender::next_deadline() const {
  if (!events_.empty()) return absl::InfinitePast();
  return relay_ ? relay_->stop_now_at : absl::InfiniteFuture();
}

void VersionLender::ReportEvents() {
  while (!events_.empty()) {
    const auto [group, event] = std::move(events_.front());
    events_.pop_front();
    Report(group, event);
  }
  std::erase_if(stopping_, [&](const auto& update) {
    const auto [epoch, sequence] = update;
    if (IsRelaying(epoch, sequence)) return false;
    session_.OnRelayStopped(epoch, sequence);
    return true;
  });
}

void VersionLender::Report(const std::string& group, const SenderEvent& event) {
  Loan& loan = *Find(group);
  const bool relayed = relay_ && &loan == &relay_->loan;
  switch (event.kind) {
    case SenderEvent::Kind::kConnected: {
      std::vector<LaneReport> lanes = loan.sender->engine().ReportLanes();
      for (LaneReport& lane : lanes) lane.relay = relayed;
      return session_.OnConnected(group, lanes, relayed);
    }
    case SenderEvent::Kind::kPeerFailed:
      return session_.OnLaneFailed(group, event.peer, event.status);
    case SenderEvent::Kind::kRefused:
      return session_.OnSendingFailed(event.update, event.status);
    case SenderEvent::Kind::kSent:
    case SenderEvent::Kind::kStopped:
      loan.snapshot.reset();
      if (relayed) StartNextRelay();
      return;
  }
}

}  // namespace waybill
