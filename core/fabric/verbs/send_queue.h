// The sending half of one queue pair: writes wait here, go out in chains of work requests, and are
// retired by the completion of each chain's last one.
#ifndef WAYBILL_CORE_FABRIC_VERBS_SEND_QUEUE_H_
#define WAYBILL_CORE_FABRIC_VERBS_SEND_QUEUE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/fabric/verbs/verbs.h"

namespace waybill::verbs {

// A write with its addresses and keys looked up.
struct RemoteWrite {
  uint64_t local_address = 0;
  uint64_t remote_address = 0;
  uint64_t size_bytes = 0;
  uint32_t local_key = 0;
  uint32_t remote_key = 0;
  bool may_inline = false;  // The source is memory of the host.
};

struct SendQueueLimits {
  uint32_t depth = 256;              // Work requests that may be outstanding: the credits.
  uint32_t chain = 16;               // Work requests of one ibv_post_send().
  uint64_t chain_bytes = 1 << 20;    // A chain is closed when it has as many.
  uint64_t message_bytes = 1 << 30;  // Longer writes are split.
  uint32_t posts = 64;               // Posts that may be incomplete.
};

// Of all lanes together.
struct SendCounts {
  uint64_t requests = 0;   // Work requests that were posted.
  uint64_t doorbells = 0;  // Calls of ibv_post_send().
};

class SendQueue {
 public:
  // `counts` outlives it. Requests are numbered from `first` on.
  SendQueue(uint32_t lane, const SendQueueLimits& limits, SendCounts* counts, uint64_t first = 0);
  SendQueue(const SendQueue&) = delete;  // Work requests point at each other.
  SendQueue& operator=(const SendQueue&) = delete;

  // Sources of at most as many bytes ride in the request; what the queue pair was granted.
  void AllowInline(uint32_t bytes) { inline_bytes_ = bytes; }

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

  static uint32_t LaneOf(uint64_t wr_id) { return static_cast<uint32_t>(wr_id >> 32); }

  uint64_t outstanding() const { return posted_ - retired_; }
  bool has_waiting() const { return appended_ > posted_; }

 private:
  struct Item {
    RemoteWrite write;
    std::optional<uint32_t> immediate;
  };
  struct Pending {
    uint64_t token;
    uint64_t end;  // Behind its last request.
  };

  void Push(const Item& item);
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
  // What never changes in them is filled in once.
  std::vector<ibv_send_wr> requests_;
  std::vector<ibv_sge> pieces_;
};

}  // namespace waybill::verbs

#endif  // WAYBILL_CORE_FABRIC_VERBS_SEND_QUEUE_H_
