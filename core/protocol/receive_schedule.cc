// SPDX-License-Identifier: Apache-2.0

#include "core/protocol/receive_schedule.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace waybill {

using Kind = ReceiveCommand::Kind;

bool ReceiveSchedule::EndTerm() {
  prepared_.reset();
  if (state_ == State::kReceiving || state_ == State::kFailed) {
    AbandonUnlessQuiescent();
    state_ = State::kIdle;
  }
  passes_on_ = connected_ = false;
  return state_ != State::kIdle;
}

void ReceiveSchedule::SetSenders(uint64_t plan_hash, absl::Span<const ReceiveSender> senders,
                                 uint32_t at_once) {
  plan_hash_ = plan_hash;
  at_once_ = at_once;
  senders_.clear();
  uint32_t lanes = 0, chunks = 0;
  for (const ReceiveSender& sender : senders) {
    Sender& made = senders_.emplace_back(Sender{.first_lane = lanes,
                                                .lane_count = sender.lane_count,
                                                .first_chunk = chunks,
                                                .chunk_count = sender.chunk_count});
    made.come.reserve(sender.chunk_count);
    made.has_come.reserve(sender.chunk_count);
    lanes += sender.lane_count;
    chunks += sender.chunk_count;
  }
  gate_ = ArrivalGate(lanes);
}

// --- commands of the caller ---

absl::Status ReceiveSchedule::Prepare(const UpdateId& update, Verification verification,
                                      absl::Time deadline) {
  const auto refuse = [&](auto... why) {
    return absl::FailedPreconditionError(
        absl::StrCat("prepare version ", update.version, ": ", why...));
  };
  if (!connected_) return refuse("the lanes are not connected");
  if (prepared_) return refuse("version ", prepared_->update.version, " is not decided yet");
  if (IsUndecided()) return refuse("version ", update_.version, " is not decided yet");
  if (update.plan_hash != plan_hash_) {
    return refuse("its plan is ", absl::Hex(update.plan_hash), ", this worker's is ",
                  absl::Hex(plan_hash_));
  }
  if (shown_version_ && update.version <= *shown_version_) {
    return refuse("version ", *shown_version_, " is shown, and versions only grow");
  }
  prepared_ = {.update = update, .verification = verification, .deadline = deadline};
  return absl::OkStatus();
}

absl::Status ReceiveSchedule::Continue(const UpdateId& from, const UpdateId& to) {
  const bool known = update_ == from;
  if (known) update_ = to;
  if (known && state_ == State::kArrived) return absl::OkStatus();
  if (!known || state_ != State::kLacking || to.plan_hash != plan_hash_) {
    return absl::FailedPreconditionError(
        absl::StrCat("continue version ", to.version, ": nothing of it is kept"));
  }
  prepared_ = {.update = to, .verification = verification_, .step = Prepared::Step::kContinue};
  return absl::OkStatus();
}

bool ReceiveSchedule::Commit(const UpdateId& update) {
  if (state_ != State::kArrived || update_ != update) return false;
  state_ = mode_ == Mode::kShadowCopy ? State::kCommitted : State::kToShow;
  return true;
}

bool ReceiveSchedule::Abort(const UpdateId& update, bool begun) {
  if (prepared_ && prepared_->update == update) {
    prepared_.reset();
    return false;
  }
  if (update_ != update || state_ == State::kIdle || is_committed()) return false;
  if (begun) AbandonUnlessQuiescent();
  state_ = State::kIdle;
  return true;
}

void ReceiveSchedule::Retry(absl::Time now, absl::FunctionRef<bool(uint32_t buffer)> claim) {
  if (prepared_ && prepared_->step == Prepared::Step::kWaits) {
    // In shadow-copy nobody reads the buffer. It is free once it has been copied.
    if (!is_committed() && (mode_ == Mode::kShadowCopy || claim(NextBuffer()))) {
      prepared_->step = Prepared::Step::kOffer;
    } else if (now >= prepared_->deadline) {
      prepared_->step = Prepared::Step::kExpire;
    }
  }
  if (state_ == State::kCommitted && claim(0)) state_ = State::kToCopy;
}

// --- what comes next ---

bool ReceiveSchedule::Next(ReceiveCommand& command) {
  if (NextOffer(command)) return true;
  command = {.update = update_, .buffer = buffer_};
  if (state_ != State::kReceiving) return NextShow(command);
  for (uint32_t s = 0; s < senders_.size(); ++s) {
    command.sender = s;
    if (NextOf(senders_[s], command)) return true;
  }
  return NextVerdict(command);
}

bool ReceiveSchedule::NextOffer(ReceiveCommand& command) {
  if (!prepared_) return false;
  command = {.update = prepared_->update, .buffer = NextBuffer()};
  switch (std::exchange(prepared_->step, Prepared::Step::kOffered)) {
    case Prepared::Step::kOffer:
      command.kind = Kind::kOffer;
      buffer_ = command.buffer;
      return true;
    case Prepared::Step::kContinue:
      command.kind = Kind::kContinue;
      command.buffer = buffer_;
      return true;
    case Prepared::Step::kExpire:
      command.kind = Kind::kExpire;
      prepared_.reset();
      return true;
    case Prepared::Step::kWaits:
      prepared_->step = Prepared::Step::kWaits;
      return false;
    case Prepared::Step::kOffered:
      return false;
  }
  return false;
}

bool ReceiveSchedule::NextOf(Sender& sender, ReceiveCommand& command) {
  // Another round brings what a lost sender brought, and verifies it.
  if (IsLost(sender)) return false;
  const auto come = static_cast<uint32_t>(sender.come.size());
  if (waits_for_visibility(command.sender) ||
      (passes_on_ && sender.passed_on == sender.visible && sender.visible < come)) {
    command.kind = Kind::kMakeVisible;
    return true;
  }
  // Chunks are passed on before they are verified. Each receiver verifies them against the digest
  // of the first sender.
  if (passes_on_ && sender.passed_on < sender.visible) {
    command.kind = Kind::kPassOn;
    const uint32_t first = std::exchange(sender.passed_on, sender.visible);
    command.chunks = absl::MakeConstSpan(sender.come).subspan(first, sender.visible - first);
    return true;
  }
  if (NextWave(sender, command)) return true;
  const bool digested = !sender.wave_runs && sender.digested == sender.chunk_count;
  if (!sender.complete || sender.verified || (verification_ == Verification::kOn && !digested)) {
    return false;
  }
  command.kind = Kind::kCompare;
  return true;
}

bool ReceiveSchedule::NextWave(Sender& sender, ReceiveCommand& command) {
  const auto come = static_cast<uint32_t>(sender.come.size());
  if (verification_ == Verification::kOff || sender.wave_runs || sender.digested == come) {
    return false;
  }
  // A smaller wave would cost a round trip to the device of its own.
  if (!sender.complete && come - sender.digested < at_once_) return false;
  if (sender.visible < come) {
    command.kind = Kind::kMakeVisible;
    return true;
  }
  sender.wave_runs = true;
  command.kind = Kind::kDigest;
  const uint32_t first = std::exchange(sender.digested, come);
  command.chunks = absl::MakeConstSpan(sender.come).subspan(first, come - first);
  return true;
}

bool ReceiveSchedule::NextVerdict(ReceiveCommand& command) {
  bool lacking = false;
  for (const Sender& sender : senders_) {
    if (!sender.verified && !IsLost(sender)) return false;
    lacking = lacking || IsLost(sender);
  }
  command.kind = lacking ? Kind::kLacking : Kind::kCheck;
  if (lacking) state_ = State::kLacking;
  return true;
}

bool ReceiveSchedule::NextShow(ReceiveCommand& command) {
  if (state_ == State::kToCopy) {
    command.kind = Kind::kCopy;
    state_ = State::kCopying;
    return true;
  }
  if (state_ != State::kToShow) return false;
  command.kind = Kind::kShow;
  state_ = State::kIdle;
  shown_version_ = update_.version;
  shown_buffer_ = buffer_;
  return true;
}

// --- what happened ---

void ReceiveSchedule::OnOffered() {
  const Prepared prepared = *std::exchange(prepared_, std::nullopt);
  abandoned_[buffer_] = false;
  continued_ = state_ == State::kLacking;
  update_ = prepared.update;
  verification_ = prepared.verification;
  state_ = State::kReceiving;
  gate_.Arm(update_.sequence);
  for (Sender& sender : senders_) {
    sender.come.clear();
    sender.has_come.assign(sender.chunk_count, false);
    sender.visible = sender.passed_on = sender.digested = 0;
    sender.wave_runs = sender.complete = sender.verified = false;
  }
}

void ReceiveSchedule::OnOfferFailed() { prepared_.reset(); }

void ReceiveSchedule::OnLaneEnd(uint32_t sender, uint32_t lane, uint32_t sequence) {
  gate_.Count(senders_[sender].first_lane + lane, sequence);
}

std::optional<uint32_t> ReceiveSchedule::OnChunk(uint32_t s, const ChunkImmediate& chunk) {
  Sender& sender = senders_[s];
  if (state_ != State::kReceiving || verification_ == Verification::kOff ||
      !chunk.IsOf(update_.sequence) || chunk.chunk >= sender.chunk_count) {
    return std::nullopt;
  }
  ++early_chunks_;
  if (!AddChunk(sender, chunk.chunk)) return std::nullopt;
  return sender.come.back();
}

bool ReceiveSchedule::AddChunk(Sender& sender, uint32_t chunk) {
  if (sender.has_come[chunk]) return false;
  sender.has_come[chunk] = true;
  sender.come.push_back(sender.first_chunk + chunk);
  return true;
}

bool ReceiveSchedule::OnVisible(uint32_t s) {
  Sender& sender = senders_[s];
  const bool complete = waits_for_visibility(s);
  if (complete) {
    sender.complete = true;
    for (uint32_t chunk = 0; chunk < sender.chunk_count; ++chunk) AddChunk(sender, chunk);
  }
  sender.visible = static_cast<uint32_t>(sender.come.size());
  return complete;
}

void ReceiveSchedule::OnDigested(uint32_t sender) { senders_[sender].wave_runs = false; }

void ReceiveSchedule::OnCopied(bool ok) {
  if (state_ != State::kCopying) return;
  state_ = ok ? State::kToShow : State::kIdle;
}

// --- for the caller ---

const UpdateId* ReceiveSchedule::at_hand() const {
  if (prepared_) return &prepared_->update;
  return state_ == State::kIdle ? nullptr : &update_;
}

bool ReceiveSchedule::waits_for_visibility(uint32_t s) const {
  const Sender& sender = senders_[s];
  return state_ == State::kReceiving && !sender.failed && !sender.complete && HasArrived(sender);
}

// --- the buffers ---

bool ReceiveSchedule::IsUndecided() const { return state_ != State::kIdle && !is_committed(); }

uint32_t ReceiveSchedule::NextBuffer() const {
  return mode_ == Mode::kShadow && shown_version_ ? 1 - shown_buffer_ : 0;
}

bool ReceiveSchedule::HasArrived(const Sender& sender) const {
  for (uint32_t l = 0; l < sender.lane_count; ++l) {
    if (!gate_.arrived(sender.first_lane + l)) return false;
  }
  return true;
}

// Late writes of a sender would overwrite the next update in the same pages. So a buffer that was
// offered may only be offered again as it is if the last write of every sender has landed.
void ReceiveSchedule::AbandonUnlessQuiescent() {
  if (state_ == State::kLacking) Abandon(buffer_);
  if (state_ != State::kReceiving && state_ != State::kFailed) return;
  for (const Sender& sender : senders_) {
    if (!HasArrived(sender)) return Abandon(buffer_);
  }
}

}  // namespace waybill
