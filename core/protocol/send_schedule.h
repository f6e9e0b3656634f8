// SPDX-License-Identifier: Apache-2.0

// Decides how a sender sends one update: which chunk is stored, staged or posted next, which
// staging slot it gets, and when each lane is ended by its immediate.
//
// The schedule is pure. It has no thread, clock, memory or network: its caller executes the
// commands that Next() returns, and reports their results.
#ifndef WAYBILL_CORE_PROTOCOL_SEND_SCHEDULE_H_
#define WAYBILL_CORE_PROTOCOL_SEND_SCHEDULE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"

namespace waybill {

// A lane of a peer. The caller numbers its peers, and the lanes of each peer, from 0.
struct SendLane {
  uint32_t peer = 0;
  uint32_t index = 0;

  bool operator==(const SendLane&) const = default;
};

// How a payload reaches its peer.
enum class SendWay : uint8_t {
  kStored,  // It is stored through a mapping of the peer's memory, by any thread.
  kStaged,  // It is staged in a slot, and posted from the slot.
  kDirect,  // It is posted from its source.
};

// One chunk of an update.
struct Payload {
  uint32_t id = 0;  // Chosen by the caller, less than `most_payloads`; commands name it.
  SendLane lane;
  uint64_t size_bytes = 0;
  SendWay way = SendWay::kStaged;
  bool held = false;            // Its bytes are not present before Release().
  bool digested_apart = false;  // Its digest is computed separately; OnDigested() reports the end.
};

enum class TakesPart : uint8_t { kNo, kYes };

// When lanes may be ended.
enum class FinishRule : uint8_t {
  kAtOnce,       // As soon as all payloads of the peer are stored or posted.
  kWhenAllowed,  // After kCheck, which asks for AllowFinish() or RefuseFinish().
};

struct SendCommand {
  enum class Kind : uint8_t {
    kStore,     // Store `payload`. OnStored() follows.
    kStage,     // Write `payload` into `slot`. OnStaged() follows.
    kPost,      // Post `payload` from `slot`, or from its source if `slot` is kNoSlot.
                // OnAccepted(), OnRefused() or OnPeerFailed() follows.
    kEndLane,   // Post the immediate behind everything on the lane, and on a peer's first lane its
                // ledger ahead of that: every payload of the peer is on its way. Answered like
                // kPost.
    kClose,     // Close the lanes of the failed peer, then call OnClosed().
    kPeerDone,  // All posts and stores for the peer are complete.
    kCheck,     // All payloads are stored or posted: call AllowFinish() or RefuseFinish().
    kSent,      // Everything is complete, except for failed peers. The update is over.
    kQuiet,     // After Abort(): no post of the update is outstanding. The update is over.
  };
  Kind kind = Kind::kStore;
  SendLane lane;
  uint32_t payload = 0;  // The payload's id.
  uint32_t slot = 0;
};

// Counts of the update so far. After kSent they depend on the payloads only.
struct SendCounts {
  uint64_t bytes = 0;
  uint64_t stores = 0;
  uint64_t immediates = 0;

  bool operator==(const SendCounts&) const = default;
};

// The staging slots of a sender, which its schedules share. There is one schedule for each group to
// which it sends.
class SlotPool {
 public:
  static constexpr uint32_t kNone = ~uint32_t{0};

  explicit SlotPool(uint32_t count);

  uint32_t count() const { return count_; }
  uint32_t in_use() const { return count_ - static_cast<uint32_t>(free_.size()); }
  // Returns the largest number of slots that were ever in use.
  uint32_t high_water() const { return high_water_; }

  // Takes a free slot and returns its number, or kNone if all are in use.
  uint32_t Take();
  void Free(uint32_t slot);

  // Returns the number of peers, over all schedules, that need slots now.
  uint32_t claims() const { return claims_; }
  // Changes the number of a schedule's peers that need slots from `before` to `now`.
  void Claim(uint32_t before, uint32_t now);
  // Returns a counter that changes whenever a schedule that got no slot may get one.
  uint64_t changes() const { return changes_; }

 private:
  const uint32_t count_;
  std::vector<uint32_t> free_;
  uint32_t high_water_ = 0;
  uint32_t claims_ = 0;
  uint64_t changes_ = 0;
};

// Slots are shared fairly. While other peers need slots, a peer holds at most its share, so a slow
// peer, or a peer whose lane is full, delays only itself. A slot goes to the peer that holds the
// fewest slots and, among equals, to the peer that was served least recently.
//
// Nothing allocates after SetPeers(). Not thread-safe.
class SendSchedule {
 public:
  static constexpr uint32_t kNoSlot = SlotPool::kNone;
  // The default of `most_direct_posts`: the most direct payloads outstanding on a lane. The number
  // is enough to keep the network busy, and bounds how long an abandoned update has to wait.
  static constexpr uint32_t kMostDirectPosts = 16;

  // The pool must outlive the schedule.
  explicit SendSchedule(SlotPool* pool) : pool_(*pool), slots_(pool->count()) {}
  ~SendSchedule() { SetPeers({}, 0); }
  SendSchedule(const SendSchedule&) = delete;
  SendSchedule& operator=(const SendSchedule&) = delete;

  // Replaces the peers: peer p has lane_counts[p] lanes. Frees every slot of this schedule, and
  // ends the current update. An update has at most `most_payloads` payloads.
  void SetPeers(absl::Span<const uint32_t> lane_counts, uint32_t most_payloads,
                uint32_t most_direct_posts = kMostDirectPosts);

  // Begins an update. The last one must be over. `peers` has one entry for each peer. Both spans
  // are read only during the call. Payloads of peers that failed or do not take part are skipped.
  void Begin(absl::Span<const Payload> payloads, absl::Span<const TakesPart> peers,
             FinishRule finish);

  // Sets `command` to the next command. Returns false if there is none until another event is
  // reported.
  bool Next(SendCommand& command);

  // --- events ---

  // `count` stores to the peer have ended.
  void OnStored(uint32_t peer, uint32_t count);
  // The slot is written.
  void OnStaged(uint32_t slot);
  // The lane accepted the post. OnComplete() follows.
  void OnAccepted(const SendCommand& command);
  // The lane is full. The command is issued again after Retry().
  void OnRefused(const SendCommand& command);
  // A post from `slot` is complete; kNoSlot stands for any other post. An unexpected completion is
  // ignored.
  void OnComplete(SendLane lane, uint32_t slot);
  // The digests of all `digested_apart` payloads of the peer are computed, so its first lane, which
  // carries the ledger, may be ended.
  void OnDigested(uint32_t peer);
  // Full lanes for which `has_room` returns true are tried again.
  void Retry(absl::FunctionRef<bool(SendLane lane)> has_room);

  // The bytes of a held payload are present. A second call has no effect.
  void Release(uint32_t id);
  // All maxima of other senders have arrived.
  void OnScalesKnown();
  // The trade of maxima with other senders has no writes outstanding, and posts none in the rest of
  // this update.
  void OnTradeQuiet();

  // Answers kCheck. RefuseFinish() may be called at any time. After it no lane is ended, and only
  // Abort() ends the update.
  void AllowFinish();
  void RefuseFinish();

  // Marks the peer as failed: nothing more is sent to it until SetPeers(). Returns true if the
  // caller must close its lanes and call OnClosed() at once. Otherwise kClose follows once no
  // thread stores or stages for the peer.
  bool OnPeerFailed(uint32_t peer);
  // Every lane of the failed peer is closed. Its slots become free.
  void OnClosed(uint32_t peer);

  // Ends the update; kQuiet follows. No thread may be storing or staging for the update.
  void Abort();

  // --- state ---

  // Returns the number of accepted posts to the peer that are not complete.
  uint32_t posts_outstanding(uint32_t peer) const;
  const SendCounts& counts() const { return counts_; }

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};

  enum class Phase : uint8_t { kIdle, kSending, kStopping };
  enum class Finish : uint8_t { kPending, kAsked, kAllowed, kRefused };

  // Payloads in order, linked by Entry::next.
  struct Queue {
    uint32_t head = kNone;
    uint32_t tail = kNone;
  };
  struct Entry {
    Payload payload;
    uint32_t next = kNone;
  };
  struct Lane {
    Queue ready;
    Queue direct;
    uint32_t direct_posts = 0;  // Direct posts that are not complete.
    uint32_t slots = 0;
    uint32_t posts_outstanding = 0;
    bool full = false;   // The lane refused a post, and waits for Retry().
    bool ended = false;  // kEndLane was returned.
  };
  struct Peer {
    uint32_t first_lane = 0;  // In lanes_.
    uint32_t lane_count = 0;
    bool failed = false;
    bool closed = false;  // The peer failed, and no post to it is outstanding.

    // The state in the current update.
    bool takes_part = false;
    uint32_t to_store = 0;       // Stores that have not ended.
    uint32_t stores_active = 0;  // Stores that a thread may be executing.
    uint32_t to_stage = 0;       // Staged payloads without a slot, except held ones.
    uint32_t to_post = 0;        // Staged and direct payloads that no lane has accepted.
    bool digesting = false;      // A thread may be reading `digested_apart` payloads.
    uint32_t staging = 0;        // Slots that a thread may be writing.
    uint32_t slots = 0;
    uint64_t served = 0;  // The value of turn_ when the peer last got a slot.
    bool done = false;
  };
  struct Slot {
    enum class State : uint8_t { kFree, kStaging, kWritten, kPosting, kPosted };
    State state = State::kFree;
    SendLane lane;
    uint32_t payload = kNone;
    uint64_t size_bytes = 0;
  };

  Lane& LaneOf(SendLane lane) { return lanes_[peers_[lane.peer].first_lane + lane.index]; }
  absl::Span<Lane> LanesOf(const Peer& peer) {
    return absl::MakeSpan(lanes_).subspan(peer.first_lane, peer.lane_count);
  }
  void Push(Queue& queue, uint32_t entry);
  uint32_t Pop(Queue& queue);  // Returns kNone if the queue is empty.
  // Adds a payload to the queue of NextStore(), NextStage() or NextDirectPost().
  void MakeReady(uint32_t entry);

  static bool IsServed(const Peer& peer) { return peer.takes_part && !peer.failed; }
  static bool IsPosted(const Peer& peer) { return peer.to_store == 0 && peer.to_post == 0; }
  bool NeedsSlots(const Peer& peer) const;
  void Claim();
  uint32_t Share();
  uint32_t TakeSlot(SendLane lane);
  void FreeSlot(uint32_t slot);

  bool NextClose(SendCommand& command);
  bool NextStore(SendCommand& command);
  bool NextPost(SendCommand& command);
  bool NextDirectPost(SendCommand& command);
  bool NextStage(SendCommand& command);
  bool NextEnd(SendCommand& command);
  bool NextEndOf(uint32_t p, SendCommand& command);
  bool NextVerdict(SendCommand& command);

  SlotPool& pool_;
  uint32_t most_direct_posts_ = kMostDirectPosts;
  Phase phase_ = Phase::kIdle;
  Finish finish_ = Finish::kAllowed;
  bool scales_known_ = false;
  bool trade_quiet_ = false;
  bool changed_ = false;            // An event was reported since Next() returned false.
  uint64_t seen_pool_changes_ = 0;  // pool_.changes() when Next() returned false.
  std::vector<Peer> peers_;
  std::vector<Lane> lanes_;
  std::vector<Entry> entries_;
  std::vector<uint32_t> held_;  // By id: the entry of a held payload, or kNone.
  Queue stores_;
  std::vector<Slot> slots_;  // By number. Slots that other schedules use are kFree.
  uint32_t written_ = 0;     // Slots in kWritten.
  uint32_t claims_ = 0;      // The number of claims that the pool counts for this schedule.
  uint64_t turn_ = 0;
  SendCounts counts_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PROTOCOL_SEND_SCHEDULE_H_
