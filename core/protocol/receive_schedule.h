// SPDX-License-Identifier: Apache-2.0

// Decides how a worker receives one update: whether the update is admitted and into which buffer,
// which chunks are verified next, which may be passed on, what is lacking, and which buffers need
// fresh pages before they are offered again.
//
// The schedule is pure. It has no thread, clock, memory or network: its caller executes the
// commands that Next() returns, and reports what became of them.
#ifndef WAYBILL_CORE_PROTOCOL_RECEIVE_SCHEDULE_H_
#define WAYBILL_CORE_PROTOCOL_RECEIVE_SCHEDULE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/protocol/arrival_gate.h"
#include "core/protocol/update.h"

namespace waybill {

// One sender of a plan. The caller numbers the senders, and the lanes of each sender, from 0. It
// numbers the plan's chunks from 0 too, and those of one sender are neighbours, in the order of the
// senders.
struct ReceiveSender {
  uint32_t lane_count = 0;
  uint32_t chunk_count = 0;
};

// Tells whether chunks are digested.
enum class Verification : uint8_t { kOff, kOn };

struct ReceiveCommand {
  enum class Kind : uint8_t {
    kOffer,        // Offer `buffer` for `update`, with fresh pages if it is abandoned.
                   // OnOffered() or OnOfferFailed() follows.
    kContinue,     // The same, with fresh pages in any case. The buffer keeps its bytes.
    kExpire,       // Refuse `update`: its buffer did not become free by its deadline.
    kMakeVisible,  // Make everything that has come from `sender` visible to whoever reads memory.
                   // OnVisible(), OnSenderFailed() or Fail() follows.
    kPassOn,       // `chunks` can be read, and may be passed on.
    kDigest,       // Digest `chunks`, on any threads. OnDigested() follows.
    kCompare,      // Compare the digests of the sender's part with its ledger. OnVerified() or
                   // Fail() follows.
    kCheck,        // Every part is verified. Compare what concerns parts of several senders.
                   // OnArrived() or Fail() follows.
    kLacking,      // Everything is verified except the parts of the lost senders.
    kCopy,         // Copy `buffer` to the memory that readers see. OnCopied() follows.
    kShow,         // Show `update`, which is in `buffer`. The update is over.
  };
  Kind kind = Kind::kOffer;
  UpdateId update;
  uint32_t buffer = 0;
  uint32_t sender = 0;
  absl::Span<const uint32_t> chunks = {};  // Valid until the next update or SetSenders().
};

// Every command is answered before the next call of Next(), except kDigest and kCopy. An update
// allocates nothing. Not thread-safe.
class ReceiveSchedule {
 public:
  explicit ReceiveSchedule(Mode mode) : mode_(mode) {}

  // Ends the term: nobody sends any more. An update that was prepared or being received is over.
  // Returns true if there is still one at hand: it lacks a part or has arrived, and waits as
  // before, or it is committed, and is shown.
  bool EndTerm();
  // Replaces the senders, after EndTerm(). A wave of digests has at least `at_once` chunks, except
  // a sender's last one.
  void SetSenders(uint64_t plan_hash, absl::Span<const ReceiveSender> senders, uint32_t at_once);
  // Turns the passing on of arriving chunks on or off; it is off after EndTerm().
  void set_passes_on(bool passes_on) { passes_on_ = passes_on; }
  // Every lane works: updates may be prepared.
  void OnConnected() { connected_ = true; }
  bool connected() const { return connected_; }

  // --- commands of the caller ---

  // Admits an update, or returns why not (kFailedPrecondition); nothing has changed then. kOffer
  // follows once its buffer is free, or kExpire after the deadline.
  absl::Status Prepare(const UpdateId& update, Verification verification, absl::Time deadline);
  // Goes on with what has arrived of the update `from`, as the update `to` of the present plan. If
  // it lacks something, kContinue follows. kFailedPrecondition: nothing of it is kept.
  absl::Status Continue(const UpdateId& from, const UpdateId& to);
  // Shows the update if it has arrived, and returns true. Final: Abort() does not undo it.
  bool Commit(const UpdateId& update);
  // Gives the update up, unless it is committed. `begun`: data may have landed. Returns true if the
  // update had been offered. Nothing reads the buffer for it any more.
  bool Abort(const UpdateId& update, bool begun);

  // Looks for buffers that have become free. `claim` returns true if no reader holds the buffer,
  // and keeps new readers from it if it is the memory that readers see.
  void Retry(absl::Time now, absl::FunctionRef<bool(uint32_t buffer)> claim);

  // Returns the next command in `command`, or false until something else happens.
  bool Next(ReceiveCommand& command);

  // --- what happened ---

  void OnOffered();
  void OnOfferFailed();
  // The last immediate of a lane has come.
  void OnLaneEnd(uint32_t sender, uint32_t lane, uint32_t sequence);
  // A chunk of the sender has come ahead of the end of its lane. Returns its number among the
  // chunks of all senders, or nullopt if the update has no such chunk or it had come before.
  std::optional<uint32_t> OnChunk(uint32_t sender, const ChunkImmediate& chunk);
  // Everything that had come from the sender can be read. Returns true if its whole part and its
  // ledger can be read from now on.
  bool OnVisible(uint32_t sender);
  void OnDigested(uint32_t sender);
  void OnVerified(uint32_t sender) { senders_[sender].verified = true; }
  void OnArrived() { state_ = State::kArrived; }
  // A lane of the sender is dead, and all of its lanes are closed. If everything had come before,
  // call OnVisible() ahead of this, and its part is verified as if the lane worked.
  void OnSenderFailed(uint32_t sender) { senders_[sender].failed = true; }
  // The update is wrong. Abort() or EndTerm() is to come.
  void Fail() { state_ = State::kFailed; }
  // If it is not `ok`, the update is over, and nothing is shown.
  void OnCopied(bool ok);
  // The buffer must have fresh pages before it is offered again.
  void Abandon(uint32_t buffer) { abandoned_[buffer] = true; }

  // --- for the caller ---

  // Returns the update that is prepared, being received, or not shown yet; null if there is none.
  const UpdateId* at_hand() const;
  // The update that was offered last, and where it arrives.
  const UpdateId& update() const { return update_; }
  uint32_t buffer() const { return buffer_; }
  Verification verification() const { return verification_; }
  // Returns true if parts of the update have arrived by another plan.
  bool continued() const { return continued_; }
  // Returns true if the update is committed, and not shown yet.
  bool is_committed() const { return state_ >= State::kCommitted; }
  bool is_abandoned(uint32_t buffer) const { return abandoned_[buffer]; }
  // Returns true if every lane of the sender has ended, and OnVisible() has not been called since.
  bool waits_for_visibility(uint32_t sender) const;
  bool is_complete(uint32_t sender) const { return senders_[sender].complete; }
  // Returns true if a wave of digests of the sender runs, and is still of use.
  bool is_digesting(uint32_t sender) const {
    return state_ == State::kReceiving && senders_[sender].wave_runs && !is_lost(sender);
  }
  bool is_verified(uint32_t sender) const { return senders_[sender].verified; }
  // Returns true if the sender failed before its whole part had come.
  bool is_lost(uint32_t sender) const { return IsLost(senders_[sender]); }

  uint64_t early_chunks() const { return early_chunks_; }
  uint64_t stragglers() const { return gate_.stragglers(); }
  uint64_t repeats() const { return gate_.repeats(); }

 private:
  enum class State : uint8_t {
    kIdle,
    kReceiving,  // It was offered.
    kArrived,    // Everything is here and right; the decision is awaited.
    kLacking,    // So is all that did not come from lost senders; Continue() is awaited.
    kFailed,     // Abort() is awaited.
    kCommitted,  // It is to be copied once nobody reads what is shown.
    kToCopy,     // kCopy comes next.
    kCopying,
    kToShow,  // kShow comes next.
  };
  struct Sender {
    uint32_t first_lane = 0;  // In the gate.
    uint32_t lane_count = 0;
    uint32_t first_chunk = 0;
    uint32_t chunk_count = 0;
    bool failed = false;

    // The update at hand.
    std::vector<uint32_t> come = {};  // Chunks in the order in which they came.
    std::vector<bool> has_come = {};  // By chunk, from first_chunk.
    uint32_t visible = 0;             // In `come`: one past the last that can be read.
    uint32_t passed_on = 0;           // In `come`: one past the last that was passed on.
    uint32_t digested = 0;            // In `come`: one past the last that a wave took.
    bool wave_runs = false;
    bool complete = false;  // The whole part and the ledger can be read.
    bool verified = false;
  };
  // An update that is to be offered.
  struct Prepared {
    enum class Step : uint8_t {
      kWaits,  // Its buffer is not free.
      kOffer,  // kOffer comes next, and so on.
      kContinue,
      kExpire,
      kOffered,  // OnOffered() or OnOfferFailed() is awaited.
    };
    UpdateId update;
    Verification verification = Verification::kOn;
    absl::Time deadline;
    Step step = Step::kWaits;
  };

  static bool IsLost(const Sender& sender) { return sender.failed && !sender.complete; }
  bool IsUndecided() const;
  uint32_t NextBuffer() const;
  bool HasArrived(const Sender& sender) const;
  void AbandonUnlessQuiescent();
  static bool AddChunk(Sender& sender, uint32_t chunk);

  bool NextOffer(ReceiveCommand& command);
  bool NextOf(Sender& sender, ReceiveCommand& command);
  bool NextWave(Sender& sender, ReceiveCommand& command);
  bool NextVerdict(ReceiveCommand& command);
  bool NextShow(ReceiveCommand& command);

  const Mode mode_;
  uint64_t plan_hash_ = 0;
  uint32_t at_once_ = 1;
  bool passes_on_ = false;
  bool connected_ = false;
  std::vector<Sender> senders_;
  ArrivalGate gate_{0};

  std::optional<Prepared> prepared_;
  State state_ = State::kIdle;
  UpdateId update_;
  Verification verification_ = Verification::kOn;
  uint32_t buffer_ = 0;
  bool continued_ = false;
  std::array<bool, 2> abandoned_ = {};
  std::optional<uint64_t> shown_version_;
  uint32_t shown_buffer_ = 0;
  uint64_t early_chunks_ = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PROTOCOL_RECEIVE_SCHEDULE_H_
