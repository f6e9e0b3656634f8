// SPDX-License-Identifier: Apache-2.0

// The sending half of one queue pair: writes wait here, go out in chains of work requests, and are
// retired by the completion of each chain's last one.
#ifndef WAYBILL_CORE_FABRIC_VERBS_SEND_QUEUE_H_
#define WAYBILL_CORE_FABRIC_VERBS_SEND_QUEUE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/fabric/fabric.h"
#include "core/fabric/verbs/bounce_ring.h"
#include "core/fabric/verbs/verbs.h"

namespace waybill::verbs {

// A write with its addresses and keys looked up.
struct RemoteWrite {
  uint64_t local_address = 0;
  uint64_t remote_address = 0;  // For a bounced write: the offset in its region.
  uint64_t size_bytes = 0;
  uint32_t local_key = 0;
  uint32_t remote_key = 0;
  bool may_inline = false;  // The source is memory of the host.
  // Not null: the source has no key, and is copied into the lane's ring first.
  const std::byte* copied_from = nullptr;
  bool bounced = false;      // The destination has none: it goes into the peer's ring,
  uint64_t bounced_key = 0;  // with this key of its region.

  bool goes_by_ring() const { return copied_from != nullptr || bounced; }
};

struct SendQueueLimits {
  uint32_t depth = 256;              // Work requests that may be outstanding: the credits.
  uint32_t chain = 16;               // Work requests of one ibv_post_send().
  uint64_t chain_bytes = 1 << 20;    // A chain is closed when it has as many.
  uint64_t message_bytes = 1 << 30;  // Longer writes are split.
  uint32_t posts = 64;               // Posts that may be incomplete.
};

// Counts over all lanes together.
struct SendCounts {
  uint64_t requests = 0;       // Work requests that were posted.
  uint64_t doorbells = 0;      // Calls of ibv_post_send().
  uint64_t copied_bytes = 0;   // Copied from sources that are not registered,
  uint64_t bounced_bytes = 0;  // and to destinations that are not.

  std::vector<FabricCount> Counts() const;  // The same, for operators.
};

class SendQueue {
 public:
  // `counts` outlives it. Requests are numbered from `first` on.
  SendQueue(uint32_t lane, const SendQueueLimits& limits, SendCounts* counts, uint64_t first = 0);
  SendQueue(const SendQueue&) = delete;  // Work requests point at each other.
  SendQueue& operator=(const SendQueue&) = delete;

  // Sources of at most as many bytes ride in the request; what the queue pair was granted.
  void AllowInline(uint32_t bytes) { inline_bytes_ = bytes; }

  // Before anything copied or bounced is appended: by way of which memory. It outlives the queue.
  void UseRing(BounceRing* ring);
  // And before anything bounced is.
  void BounceAt(const PeerRing& peer) { peer_ring_ = peer; }
  bool may_bounce() const { return peer_ring_.slots > 0; }

  bool full() const { return posts_end_ - posts_begin_ == limits_.posts; }

  // Not when full(). An empty span is one empty write. Allocates nothing once it has held as many.
  void Append(absl::Span<const RemoteWrite> writes, std::optional<uint32_t> immediate,
              uint64_t token);

  // Posts what there are credits for. Without `flush`, whole chains only: what is posted next may
  // join the rest. Credits see to it that the queue is never found full; where it is, what does not
  // fit waits for a completion. kInternal: it was refused, and no completion will come.
  absl::Status Pump(Verbs& verbs, ibv_qp* qp, bool flush);

  // The request `wr_id` of this lane is complete, and so are all before it. Appends the tokens of
  // the posts that are complete now.
  void Retire(uint64_t wr_id, std::vector<uint64_t>& tokens);

  // The peer has taken so many pieces out of its ring in all. False: that cannot be.
  bool Taken(uint64_t pieces, std::vector<uint64_t>& tokens);

  static uint32_t LaneOf(uint64_t wr_id) { return static_cast<uint32_t>(wr_id >> 32); }

  uint64_t outstanding() const { return posted_ - retired_; }
  bool has_waiting() const { return appended_ > posted_; }
  // Returns true if a write that was not posted yet goes to the region of these two keys.
  bool HasWaitingFor(uint64_t region_key, uint32_t remote_key);

 private:
  struct Item {
    RemoteWrite write;
    std::optional<uint32_t> immediate;
    bool tells = false;  // It announces the piece before it, which lies in the peer's ring.
  };
  struct Pending {
    uint64_t token;
    uint64_t end;     // Behind its last request,
    uint64_t pieces;  // and its last bounced piece.
  };
  static constexpr int kPieces = 2;  // The pieces of one request: a header and the data.

  void Push(const Item& item);
  void PushPiece(const RemoteWrite& piece, std::optional<uint32_t> immediate);
  uint64_t MostBytesOf(const RemoteWrite& write) const;
  // Puts what of it has to be there into the lane's ring, as request `number`; `write` becomes what
  // is to be posted, and `header` what goes before it. False: there is no room now.
  bool PutInRing(uint64_t number, RemoteWrite& write, ibv_sge& header);
  // The items [begin, end) are not posted after all.
  void TakeFromRing(uint64_t begin, uint64_t end);
  void CompletePosts(std::vector<uint64_t>& tokens);
  Item& At(uint64_t i) { return items_[i & (items_.size() - 1)]; }
  uint32_t BuildChain(uint64_t credits);

  const uint32_t lane_;
  const SendQueueLimits limits_;
  SendCounts& counts_;
  uint32_t inline_bytes_ = 0;
  // Requests are numbered; these count up: retired <= posted <= appended.
  uint64_t appended_;
  uint64_t posted_;
  uint64_t retired_;
  uint64_t signalled_;          // The last one posted that completes by itself.
  std::vector<Item> items_;     // A ring of a power of two; [posted_, appended_) are in it.
  std::vector<Pending> posts_;  // A ring; [posts_begin_, posts_end_) are in it.
  uint64_t posts_begin_ = 0;
  uint64_t posts_end_ = 0;
  BounceRing* ring_ = nullptr;
  PeerRing peer_ring_;
  std::vector<uint64_t>
      slot_ends_;         // For each slot of the ring: the end of the last request that reads it.
  uint64_t in_ring_ = 0;  // Pieces that used a slot of it,
  uint64_t in_peer_ring_ = 0;  // one of the peer's,
  uint64_t taken_ = 0;         // and that the peer has taken out.
  uint64_t bounced_ = 0;       // Pieces that were appended.
  // Their constant fields are filled in once.
  std::vector<ibv_send_wr> requests_;
  std::vector<ibv_sge> pieces_;
};

}  // namespace waybill::verbs

#endif  // WAYBILL_CORE_FABRIC_VERBS_SEND_QUEUE_H_
