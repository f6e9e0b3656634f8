// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/tcp/inbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/types/span.h"
#include "core/base/status.h"
#include "core/net/tcp_socket.h"

namespace waybill::tcp {
namespace {

// Payloads are long if they exceed this on average. Little is received behind them: the next
// payload is probably as long, and what comes of it together with its frame has to be copied.
constexpr uint64_t kLongBytes = 64 << 10;
constexpr size_t kAheadOfLongBytes = 4 * sizeof(Frame);

}  // namespace

void Inbox::Await(std::byte* to, uint64_t size_bytes, RegionId region) {
  payloads_[end_++] = {to, size_bytes, region};
  left_bytes_ += size_bytes;
}

void Inbox::Land() {
  is_landing_ = true;
  are_long_ = left_bytes_ > kLongBytes * awaited_count();
}

bool Inbox::Awaits(RegionId region) const {
  return std::any_of(payloads_.begin() + begin_, payloads_.begin() + end_,
                     [region](const Payload& payload) { return payload.region == region; });
}

void Inbox::TakeLanded(uint64_t size_bytes, const std::byte* from) {
  left_bytes_ -= size_bytes;
  while (size_bytes > 0) {
    Payload& payload = payloads_[begin_];
    const uint64_t size = std::min(size_bytes, payload.size_bytes);
    if (from != nullptr) {
      std::memcpy(payload.to, from, size);
      from += size;
    }
    payload.to += size;
    payload.size_bytes -= size;
    size_bytes -= size;
    if (payload.size_bytes == 0) ++begin_;
  }
}

absl::StatusOr<Inbox::Step> Inbox::Next(int socket, int64_t& allowance_bytes, uint64_t& calls) {
  while (true) {
    const size_t ahead = ahead_end_ - ahead_begin_;
    if (is_landing_) {
      const size_t size = std::min<uint64_t>(left_bytes_, ahead);
      TakeLanded(size, ahead_.data() + ahead_begin_);
      ahead_begin_ += size;
      if (left_bytes_ == 0) {
        is_landing_ = false;
        begin_ = end_ = 0;
        return Step::kLanded;
      }
    } else if (ahead >= sizeof(Frame)) {
      std::memcpy(&frame_, ahead_.data() + ahead_begin_, sizeof(Frame));
      ahead_begin_ += sizeof(Frame);
      return Step::kFrame;
    }
    if (std::exchange(was_short_, false)) return Step::kDrained;
    if (allowance_bytes <= 0) return Step::kPaused;
    WAYBILL_ASSIGN_OR_RETURN(const Step step, Receive(socket, allowance_bytes, calls));
    if (step == Step::kDrained) return step;
  }
}

// Here nothing lies ahead but the beginning of a frame.
absl::StatusOr<Inbox::Step> Inbox::Receive(int socket, int64_t& allowance_bytes, uint64_t& calls) {
  if (ahead_begin_ > 0) {
    std::memmove(ahead_.data(), ahead_.data() + ahead_begin_, ahead_end_ - ahead_begin_);
    ahead_end_ -= ahead_begin_;
    ahead_begin_ = 0;
  }
  const uint64_t left = left_bytes(), most = static_cast<uint64_t>(allowance_bytes);
  std::array<iovec, kMostFramesAhead + 1> parts;
  size_t count = 0;
  uint64_t payload = 0;
  for (size_t i = begin_; payload < std::min(left, most); ++i) {
    const uint64_t size = std::min(payloads_[i].size_bytes, most - payload);
    parts[count++] = {payloads_[i].to, size};
    payload += size;
  }
  // Behind payloads that are not asked for whole nothing can be received yet.
  const size_t behind = payload < left ? 0
                        : are_long_    ? kAheadOfLongBytes
                                       : ahead_.size() - ahead_end_;
  parts[count++] = {ahead_.data() + ahead_end_, behind};
  ++calls;
  WAYBILL_ASSIGN_OR_RETURN(const size_t received,
                           net::ReceiveParts(socket, absl::MakeSpan(parts).first(count)));
  was_short_ = received > 0 && received < payload + behind;
  if (received == 0) return Step::kDrained;
  allowance_bytes -= static_cast<int64_t>(received);
  const uint64_t landed = std::min<uint64_t>(received, payload);
  TakeLanded(landed, nullptr);
  ahead_end_ += received - landed;
  return Step::kPaused;
}

}  // namespace waybill::tcp
