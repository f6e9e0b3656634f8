// Receives for a lane: frames, and payloads that go from the socket to their final address.
#ifndef WAYBILL_CORE_FABRIC_TCP_INBOX_H_
#define WAYBILL_CORE_FABRIC_TCP_INBOX_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "core/fabric/tcp/frames.h"

namespace waybill::tcp {

class Inbox {
 public:
  enum class Step {
    kFrame,    // frame() is new. Where it announces a payload, Land() says where it goes.
    kLanded,   // All of the payload that frame() announced is there.
    kPaused,   // The allowance is used up; there may be more.
    kDrained,  // The socket is empty. Asked again, it is looked at again.
  };

  // The next thing that the socket brings. `allowance_bytes` goes down by what was received.
  // kAborted: the peer is gone, and all that it sent has been handed out.
  absl::StatusOr<Step> Next(int socket, uint64_t& allowance_bytes, uint64_t& calls);

  const Frame& frame() const { return frame_; }
  // The next `size_bytes` of the stream go there.
  void Land(std::byte* to, uint64_t size_bytes);

  // Whether a payload is awaited.
  bool is_landing() const { return is_landing_; }
  uint64_t left_bytes() const { return left_bytes_; }

 private:
  absl::StatusOr<Step> Receive(int socket, uint64_t& allowance_bytes, uint64_t& calls);

  Frame frame_;
  bool is_landing_ = false;
  std::byte* to_ = nullptr;
  uint64_t left_bytes_ = 0;  // 0 where none is awaited.
  bool was_short_ = false;   // The socket had less than was asked for, so it is empty.
  // Received behind the payload that was awaited: frames, and payloads that are small.
  std::array<std::byte, 16 << 10> ahead_;
  size_t ahead_begin_ = 0;
  size_t ahead_end_ = 0;
};

}  // namespace waybill::tcp

#endif  // WAYBILL_CORE_FABRIC_TCP_INBOX_H_
