// SPDX-License-Identifier: Apache-2.0

// Decides how a trainer sends one update: which chunk is stored, staged or posted next, which
// staging slot it gets, and when each lane is ended by its immediate.
//
// The schedule is pure. It has no thread, clock, memory or network: its caller executes the
// commands that Next() returns, and reports what became of them.
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
  kStaged,  // It is staged in a slot, and posted from there.
  kDirect,  // It is posted from where it lies.
};

// One chunk of an update.
struct Payload {
  uint32_t id = 0;  // The caller's name for it, less than `most_payloads`; commands give it back.
  SendLane lane;
  uint64_t size_bytes = 0;
  SendWay way = SendWay::kStaged;
  bool held = false;            // Its bytes are not there before Release().
  bool digested_apart = false;  // OnDigested() tells when its digest is taken.
};

enum class TakesPart : uint8_t { kNo, kYes };

// When lanes may be ended.
enum class FinishRule : uint8_t {
  kAtOnce,       // As soon as everything of their peer is on its way.
  kWhenAllowed,  // After kCheck, which asks for AllowFinish() or RefuseFinish().
};

struct SendCommand {
  enum class Kind : uint8_t {
    kStore,     // Store `payload`. OnStored() follows.
    kStage,     // Write `payload` into `slot`. OnStaged() follows.
    kPost,      // Post `payload` from `slot`, or from where it lies if that is kNoSlot.
                // OnAccepted(), OnRefused() or OnPeerFailed() follows.
    kEndLane,   // Post the immediate behind everything on the lane, and on a peer's first lane its
                // ledger ahead of that: every payload of the peer is on its way. Answered like
                // kPost.
    kClose,     // Close the lanes of the failed peer, then call OnClosed().
    kPeerDone,  // Everything for the peer is complete.
    kCheck,     // Everything is on its way: call AllowFinish() or RefuseFinish().
    kSent,      // Everything is complete, except for peers that failed. The update is over.
    kQuiet,     // After Abort(): nothing of the update is on its way. The update is over.
  };
  Kind kind = Kind::kStore;
  SendLane lane;
  uint32_t payload = 0;  // The payload's id.
  uint32_t slot = 0;
};

// What was handed over so far. After kSent the counts are a function of the payloads.
struct SendCounts {
  uint64_t bytes = 0;
  uint64_t stores = 0;
  uint64_t immediates = 0;

  bool operator==(const SendCounts&) const = default;
};

// The staging slots of a trainer, which its schedules share: each group that it sends to has one.
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

  // The number of peers, of all schedules, that need slots now.
  uint32_t claims() const { return claims_; }
  // A schedule's peers that need slots were `before`, and are `now`.
  void Claim(uint32_t before, uint32_t now);
  // Changes whenever a schedule that found no slot may find one.
  uint64_t changes() const { return changes_; }

 private:
  const uint32_t count_;
  std::vector<uint32_t> free_;
  uint32_t high_water_ = 0;
  uint32_t claims_ = 0;
  uint64_t changes_ = 0;
};

// Slots are shared fairly: a peer holds at most its share of them while other peers need slots, so
// a peer that is slow, or whose lane is full, delays only itself. A slot goes to the peer that
// holds the fewest, and of several to the one that was served least recently.
//
// Nothing allocates after SetPeers(). Not thread-safe.
class SendSchedule {
 public:
  static constexpr uint32_t kNoSlot = SlotPool::kNone;
  // How many direct payloads of a lane are on their way at a time, unless SetPeers() is told
  // another number. They keep the network busy, and bound what an update that is given up waits
  // for.
  static constexpr uint32_t kMostDirectPosts = 16;

  // The pool outlives the schedule.
  explicit SendSchedule(SlotPool* pool) : pool_(*pool), slots_(pool->count()) {}
  ~SendSchedule() { SetPeers({}, 0); }
  SendSchedule(const SendSchedule&) = delete;
  SendSchedule& operator=(const SendSchedule&) = delete;

  // Replaces the peers by those with `lane_counts` lanes, and frees every slot of this schedule. An
  // update that was going on is over. An update has at most `most_payloads` payloads.
  void SetPeers(absl::Span<const uint32_t> lane_counts, uint32_t most_payloads,
                uint32_t most_direct_posts = kMostDirectPosts);

  // Begins an update. The last one must be over. `peers` has one entry for each peer. Both spans
  // are read during the call only. Payloads of peers that failed or do not take part are left out.
  void Begin(absl::Span<const Payload> payloads, absl::Span<const TakesPart> peers,
             FinishRule finish);

  // Returns the next command in `command`, or false until something else happens.
  bool Next(SendCommand& command);

  // --- what happened ---

  // `count` of the stores to the peer have ended.
  void OnStored(uint32_t peer, uint32_t count);
  // The slot is written.
  void OnStaged(uint32_t slot);
  // The post is on its way. OnComplete() follows.
  void OnAccepted(const SendCommand& command);
  // The lane is full. The same is tried again after Retry().
  void OnRefused(const SendCommand& command);
  // A post from `slot`, or with kNoSlot another one, is complete. A completion that nobody waits
  // for is ignored.
  void OnComplete(SendLane lane, uint32_t slot);
  // The digests of all payloads of the peer that are digested apart are taken: its first lane,
  // which carries the ledger, may be ended.
  void OnDigested(uint32_t peer);
  // Lanes that were full may be tried again if `has_room` returns true for them.
  void Retry(absl::FunctionRef<bool(SendLane lane)> has_room);

  // The bytes of a held payload are there. Again it does nothing.
  void Release(uint32_t id);
  // All maxima of other trainers are here.
  void OnScalesKnown();
  // The trade of maxima with other trainers has nothing on its way, nor will it in this update.
  void OnTradeQuiet();

  // Answers kCheck. RefuseFinish() may come at any time: no lane is ended from now on, and the
  // update ends by Abort() only.
  void AllowFinish();
  void RefuseFinish();

  // Nothing more is sent to the peer until SetPeers(). Returns true if its lanes are to be closed
  // at once, with OnClosed(); otherwise kClose follows when no thread stores or stages for it any
  // more.
  bool OnPeerFailed(uint32_t peer);
  // Every lane of the failed peer is closed: its slots are free again.
  void OnClosed(uint32_t peer);

  // Ends the update. No thread stores or stages for it any more. kQuiet follows.
  void Abort();

  // --- for the caller ---

  // The number of accepted posts to the peer that are not complete.
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
    uint32_t direct_posts = 0;  // Those that are not complete.
    uint32_t slots = 0;
    uint32_t posts_outstanding = 0;
    bool full = false;   // It refused a post; Retry() is to come.
    bool ended = false;  // Its immediate was handed out.
  };
  struct Peer {
    uint32_t first_lane = 0;  // In lanes_.
    uint32_t lane_count = 0;
    bool failed = false;
    bool closed = false;  // Failed, and nothing of it is on its way any more.

    // The update at hand.
    bool takes_part = false;
    uint32_t to_store = 0;       // Stores that have not ended.
    uint32_t stores_active = 0;  // Those of them that a thread may be doing.
    uint32_t to_stage = 0;       // Staged payloads without a slot yet, but for those that are held.
    uint32_t to_post = 0;        // Staged and direct payloads that no lane has accepted yet.
    bool digesting = false;      // A thread may be reading what is digested apart.
    uint32_t staging = 0;        // Slots that a thread may be writing.
    uint32_t slots = 0;
    uint64_t served = 0;  // When it got a slot last; smaller is longer ago.
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
  uint32_t Pop(Queue& queue);  // kNone if it is empty.
  // Puts it where NextStore(), NextStage() or NextDirectPost() finds it.
  void MakeReady(uint32_t entry);

  static bool IsServed(const Peer& peer) { return peer.takes_part && !peer.failed; }
  static bool IsOnItsWay(const Peer& peer) { return peer.to_store == 0 && peer.to_post == 0; }
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
  bool changed_ = false;            // Since Next() returned false.
  uint64_t seen_pool_changes_ = 0;  // When it did.
  std::vector<Peer> peers_;
  std::vector<Lane> lanes_;
  std::vector<Entry> entries_;
  std::vector<uint32_t> held_;  // The entries of held payloads, by id; kNone: it is not held.
  Queue stores_;
  std::vector<Slot> slots_;  // By number; free are also those that other schedules use.
  uint32_t written_ = 0;     // Slots in kWritten.
  uint32_t claims_ = 0;      // As the pool knows them.
  uint64_t turn_ = 0;
  SendCounts counts_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PROTOCOL_SEND_SCHEDULE_H_
