#include "core/fabric/verbs/send_queue.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace waybill::verbs {

SendQueue::SendQueue(uint32_t lane, const SendQueueLimits& limits, SendCounts* counts,
                     uint64_t first)
    : lane_(lane),
      limits_(limits),
      counts_(*counts),
      appended_(first),
      posted_(first),
      retired_(first),
      signalled_(first),
      items_(256),
      posts_(limits.posts),
      requests_(limits.chain),
      pieces_(limits.chain) {
  for (size_t i = 0; i < requests_.size(); ++i) {
    requests_[i] = {};
    requests_[i].sg_list = &pieces_[i];
  }
}

void SendQueue::Append(absl::Span<const RemoteWrite> writes, std::optional<uint32_t> immediate,
                       uint64_t token) {
  const RemoteWrite nothing;
  if (writes.empty()) writes = absl::MakeConstSpan(&nothing, 1);
  for (size_t i = 0; i < writes.size(); ++i) {
    RemoteWrite rest = writes[i];
    while (rest.size_bytes > limits_.message_bytes) {
      RemoteWrite part = rest;
      part.size_bytes = limits_.message_bytes;
      Push({part, std::nullopt});
      rest.local_address += part.size_bytes;
      rest.remote_address += part.size_bytes;
      rest.size_bytes -= part.size_bytes;
    }
    Push({rest, i + 1 == writes.size() ? immediate : std::nullopt});
  }
  posts_[posts_end_++ % posts_.size()] = {token, appended_};
}

void SendQueue::Push(const Item& item) {
  if (appended_ - posted_ == items_.size()) {
    std::vector<Item> larger(items_.size() * 2);
    for (uint64_t i = posted_; i < appended_; ++i) larger[i & (larger.size() - 1)] = At(i);
    items_ = std::move(larger);
  }
  At(appended_++) = item;
}

absl::Status SendQueue::Pump(Verbs& verbs, ibv_qp* qp, bool flush) {
  while (has_waiting()) {
    const uint64_t credits = limits_.depth - outstanding();
    if (credits == 0 || (!flush && appended_ - posted_ < limits_.chain)) break;
    const uint32_t count = BuildChain(credits);
    ibv_send_wr* bad = nullptr;
    ++counts_.doorbells;
    const int error = verbs.PostSend(qp, requests_.data(), &bad);
    if (error == 0) {
      posted_ += count;
      signalled_ = posted_;
      counts_.requests += count;
      continue;
    }
    // What stands before the bad one was posted, without its end, which is the signalled one.
    const auto accepted = static_cast<uint64_t>(bad - requests_.data());
    posted_ += accepted;
    counts_.requests += accepted;
    if (error == ENOMEM && signalled_ > retired_) break;  // Again when something is complete.
    if (error == ENOMEM && accepted > 0) continue;        // Else nothing would tell when that is.
    return absl::InternalError(absl::StrCat("ibv_post_send: request ", accepted + 1, " of ", count,
                                            " refused: ", std::strerror(error), " (errno ", error,
                                            ")"));
  }
  return absl::OkStatus();
}

// One signalled request a chain, its last: its completion retires all before it.
uint32_t SendQueue::BuildChain(uint64_t credits) {
  const uint64_t most =
      std::min<uint64_t>({appended_ - posted_, credits, static_cast<uint64_t>(limits_.chain)});
  uint64_t bytes = 0;
  uint32_t count = 0;
  while (count < most && bytes < limits_.chain_bytes) {
    const Item& item = At(posted_ + count);
    ibv_send_wr& request = requests_[count];
    ibv_sge& piece = pieces_[count];
    piece = {.addr = item.write.local_address,
             .length = static_cast<uint32_t>(item.write.size_bytes),
             .lkey = item.write.local_key};
    request.num_sge = item.write.size_bytes > 0 ? 1 : 0;
    request.opcode = item.immediate ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
    request.imm_data = htonl(item.immediate.value_or(0));
    request.send_flags =
        item.write.may_inline && item.write.size_bytes <= inline_bytes_ && item.write.size_bytes > 0
            ? static_cast<unsigned>(IBV_SEND_INLINE)
            : 0u;
    request.wr.rdma = {.remote_addr = item.write.remote_address, .rkey = item.write.remote_key};
    request.wr_id = uint64_t{lane_} << 32 | static_cast<uint32_t>(posted_ + count + 1);
    request.next = &request + 1;
    bytes += item.write.size_bytes;
    ++count;
  }
  requests_[count - 1].next = nullptr;
  requests_[count - 1].send_flags |= IBV_SEND_SIGNALED;
  return count;
}

void SendQueue::Retire(uint64_t wr_id, std::vector<uint64_t>& tokens) {
  const uint32_t ahead = static_cast<uint32_t>(wr_id) - static_cast<uint32_t>(retired_);
  if (ahead > outstanding()) return;  // A number of no request that is outstanding.
  retired_ += ahead;
  while (posts_begin_ < posts_end_ && posts_[posts_begin_ % posts_.size()].end <= retired_) {
    tokens.push_back(posts_[posts_begin_++ % posts_.size()].token);
  }
}

}  // namespace waybill::verbs
