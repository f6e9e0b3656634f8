// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/verbs/send_queue.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace waybill::verbs {

std::vector<FabricCount> SendCounts::Counts() const {
  return {{"work_requests", requests},
          {"doorbells", doorbells},
          {"copied_bytes", copied_bytes},
          {"bounced_bytes", bounced_bytes}};
}

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
      pieces_(limits.chain * kPieces) {
  for (size_t i = 0; i < requests_.size(); ++i) {
    requests_[i] = {};
    requests_[i].sg_list = &pieces_[i * kPieces];
  }
}

void SendQueue::UseRing(BounceRing* ring) {
  ring_ = ring;
  slot_ends_.assign(ring->limits().slots, 0);
}

uint64_t SendQueue::MostBytesOf(const RemoteWrite& write) const {
  uint64_t most = limits_.message_bytes;
  if (write.goes_by_ring()) most = std::min(most, ring_->limits().slot_bytes);
  if (write.bounced) most = std::min(most, peer_ring_.slot_bytes);
  return most;
}

void SendQueue::Append(absl::Span<const RemoteWrite> writes, std::optional<uint32_t> immediate,
                       uint64_t token) {
  const RemoteWrite nothing;
  if (writes.empty()) writes = absl::MakeConstSpan(&nothing, 1);
  for (size_t i = 0; i < writes.size(); ++i) {
    const std::optional<uint32_t> last = i + 1 == writes.size() ? immediate : std::nullopt;
    const uint64_t most = MostBytesOf(writes[i]);
    RemoteWrite rest = writes[i];
    while (rest.size_bytes > most) {
      RemoteWrite part = rest;
      part.size_bytes = most;
      PushPiece(part, std::nullopt);
      rest.local_address += part.size_bytes;
      if (rest.copied_from != nullptr) rest.copied_from += part.size_bytes;
      rest.remote_address += part.size_bytes;
      rest.size_bytes -= part.size_bytes;
    }
    PushPiece(rest, last);
  }
  posts_[posts_end_++ % posts_.size()] = {token, appended_, bounced_};
}

// The immediate of a bounced piece goes behind what tells of the piece.
void SendQueue::PushPiece(const RemoteWrite& piece, std::optional<uint32_t> immediate) {
  if (!piece.bounced) return Push({piece, immediate});
  ++bounced_;
  Push({piece, std::nullopt});
  Push({.write = {}, .immediate = std::nullopt, .tells = true});
  if (immediate) Push({{}, immediate});
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
    if (count == 0) break;  // No room in a ring: until something is complete, or taken.
    ibv_send_wr* bad = nullptr;
    ++counts_.doorbells;
    const int error = verbs.PostSend(qp, requests_.data(), &bad);
    if (error == 0) {
      posted_ += count;
      signalled_ = posted_;
      counts_.requests += count;
      continue;
    }
    // What stands before the bad one was posted, without its end, which is the signalled one. A
    // library whose kernel refused the whole call names none.
    const uint64_t accepted = bad == nullptr ? 0 : static_cast<uint64_t>(bad - requests_.data());
    TakeFromRing(posted_ + accepted, posted_ + count);
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
    RemoteWrite write = item.write;
    ibv_sge* piece = &pieces_[count * kPieces];
    ibv_sge header{};
    if (write.goes_by_ring() && !PutInRing(posted_ + count + 1, write, header)) break;
    ibv_send_wr& request = requests_[count];
    request.num_sge = 0;
    if (header.length > 0) piece[request.num_sge++] = header;
    if (write.size_bytes > 0) {
      piece[request.num_sge++] = {.addr = write.local_address,
                                  .length = static_cast<uint32_t>(write.size_bytes),
                                  .lkey = write.local_key};
    }
    request.opcode = item.tells       ? IBV_WR_SEND
                     : item.immediate ? IBV_WR_RDMA_WRITE_WITH_IMM
                                      : IBV_WR_RDMA_WRITE;
    request.imm_data = htonl(item.immediate.value_or(0));
    request.send_flags =
        write.may_inline && write.size_bytes <= inline_bytes_ && write.size_bytes > 0
            ? static_cast<unsigned>(IBV_SEND_INLINE)
            : 0u;
    request.wr.rdma = {.remote_addr = write.remote_address, .rkey = write.remote_key};
    request.wr_id = uint64_t{lane_} << 32 | static_cast<uint32_t>(posted_ + count + 1);
    request.next = &request + 1;
    bytes += item.write.size_bytes;
    ++count;
  }
  if (count == 0) return 0;
  requests_[count - 1].next = nullptr;
  requests_[count - 1].send_flags |= IBV_SEND_SIGNALED;
  return count;
}

void SendQueue::Retire(uint64_t wr_id, std::vector<uint64_t>& tokens) {
  const uint32_t ahead = static_cast<uint32_t>(wr_id) - static_cast<uint32_t>(retired_);
  if (ahead > outstanding()) return;  // A number of no request that is outstanding.
  retired_ += ahead;
  CompletePosts(tokens);
}

bool SendQueue::Taken(uint64_t pieces, std::vector<uint64_t>& tokens) {
  if (pieces < taken_ || pieces > in_peer_ring_) return false;
  taken_ = pieces;
  CompletePosts(tokens);
  return true;
}

bool SendQueue::HasWaitingFor(uint64_t region_key, uint32_t remote_key) {
  for (uint64_t i = posted_; i < appended_; ++i) {
    const RemoteWrite& write = At(i).write;
    if (write.size_bytes == 0) continue;
    if (write.bounced ? write.bounced_key == region_key : write.remote_key == remote_key) {
      return true;
    }
  }
  return false;
}

void SendQueue::CompletePosts(std::vector<uint64_t>& tokens) {
  while (posts_begin_ < posts_end_) {
    const Pending& post = posts_[posts_begin_ % posts_.size()];
    if (post.end > retired_ || post.pieces > taken_) break;
    tokens.push_back(post.token);
    ++posts_begin_;
  }
}

bool SendQueue::PutInRing(uint64_t number, RemoteWrite& write, ibv_sge& header) {
  uint64_t& slot_end = slot_ends_[in_ring_ % slot_ends_.size()];
  if (slot_end > retired_) return false;
  if (write.bounced && in_peer_ring_ - taken_ == peer_ring_.slots) return false;
  std::byte* slot = ring_->Outgoing(in_ring_);
  if (write.bounced) {
    const BouncedHeader fields{write.bounced_key, write.remote_address, write.size_bytes};
    std::memcpy(slot, &fields, sizeof(fields));
    header = {.addr = reinterpret_cast<uintptr_t>(slot),
              .length = kBouncedHeaderBytes,
              .lkey = ring_->local_key()};
    write.remote_address = peer_ring_.AddressOf(in_peer_ring_++);
    write.remote_key = peer_ring_.remote_key;
    write.may_inline = false;
    counts_.bounced_bytes += write.size_bytes;
  }
  if (write.copied_from != nullptr) {
    std::byte* data = slot + kBouncedHeaderBytes;
    std::memcpy(data, write.copied_from, write.size_bytes);
    write.local_address = reinterpret_cast<uintptr_t>(data);
    write.local_key = ring_->local_key();
    counts_.copied_bytes += write.size_bytes;
  }
  slot_end = number;
  ++in_ring_;
  return true;
}

void SendQueue::TakeFromRing(uint64_t begin, uint64_t end) {
  for (uint64_t i = begin; i < end; ++i) {
    const RemoteWrite& write = At(i).write;
    if (!write.goes_by_ring()) continue;
    slot_ends_[--in_ring_ % slot_ends_.size()] = 0;
    if (write.bounced) --in_peer_ring_;
    if (write.bounced) counts_.bounced_bytes -= write.size_bytes;
    if (write.copied_from != nullptr) counts_.copied_bytes -= write.size_bytes;
  }
}

}  // namespace waybill::verbs
