#include "core/fabric/tcp/inbox.h"

#include <sys/uio.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/status.h"
#include "core/net/tcp_socket.h"

namespace waybill::tcp {
namespace {

// While more than this of a payload is missing, little is received behind it: what comes there is
// the next payload, which would have to be copied.
constexpr uint64_t kLongBytes = 64 << 10;
constexpr size_t kAheadOfLongBytes = 4 * sizeof(Frame);

}  // namespace

void Inbox::Land(std::byte* to, uint64_t size_bytes) {
  is_landing_ = true;
  to_ = to;
  left_bytes_ = size_bytes;
}

absl::StatusOr<Inbox::Step> Inbox::Next(int socket, uint64_t& allowance_bytes, uint64_t& calls) {
  while (true) {
    const size_t ahead = ahead_end_ - ahead_begin_;
    if (is_landing_) {
      const size_t size = std::min<uint64_t>(left_bytes_, ahead);
      if (size > 0) {
        std::memcpy(to_, ahead_.data() + ahead_begin_, size);
        to_ += size;
        left_bytes_ -= size;
        ahead_begin_ += size;
      }
      if (left_bytes_ == 0) {
        is_landing_ = false;
        return Step::kLanded;
      }
    } else if (ahead >= sizeof(Frame)) {
      std::memcpy(&frame_, ahead_.data() + ahead_begin_, sizeof(Frame));
      ahead_begin_ += sizeof(Frame);
      return Step::kFrame;
    }
    if (std::exchange(was_short_, false)) return Step::kDrained;
    if (allowance_bytes == 0) return Step::kPaused;
    WAYBILL_ASSIGN_OR_RETURN(const Step step, Receive(socket, allowance_bytes, calls));
    if (step == Step::kDrained) return step;
  }
}

// Here nothing lies ahead but the beginning of a frame.
absl::StatusOr<Inbox::Step> Inbox::Receive(int socket, uint64_t& allowance_bytes, uint64_t& calls) {
  if (ahead_begin_ > 0) {
    std::memmove(ahead_.data(), ahead_.data() + ahead_begin_, ahead_end_ - ahead_begin_);
    ahead_end_ -= ahead_begin_;
    ahead_begin_ = 0;
  }
  const uint64_t payload = is_landing_ ? std::min(left_bytes_, allowance_bytes) : 0;
  // Behind a payload that is not asked for whole nothing can be received yet.
  const size_t behind = payload < left_bytes_  ? 0
                        : payload > kLongBytes ? kAheadOfLongBytes
                                               : ahead_.size() - ahead_end_;
  std::array<iovec, 2> parts = {iovec{to_, payload}, iovec{ahead_.data() + ahead_end_, behind}};
  ++calls;
  WAYBILL_ASSIGN_OR_RETURN(const size_t received, net::ReceiveParts(socket, parts));
  was_short_ = received > 0 && received < payload + behind;
  if (received == 0) return Step::kDrained;
  allowance_bytes -= std::min<uint64_t>(allowance_bytes, received);
  const uint64_t landed = std::min<uint64_t>(received, payload);
  to_ += landed;
  left_bytes_ -= landed;
  ahead_end_ += received - landed;
  return Step::kPaused;
}

}  // namespace waybill::tcp
