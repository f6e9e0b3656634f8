// SPDX-License-Identifier: Apache-2.0

// Receives for a lane: frames, and payloads that go from the socket to their final address.
#ifndef WAYBILL_CORE_FABRIC_TCP_INBOX_H_
#define WAYBILL_CORE_FABRIC_TCP_INBOX_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "core/fabric/fabric.h"
#include "core/fabric/tcp/frames.h"

namespace waybill::tcp {

class Inbox {
 public:
  enum class Step {
    kFrame,    // frame() is new. Where payloads follow, Await() and Land() say where they go.
    kLanded,   // All payloads that were awaited are there.
    kPaused,   // The allowance is used up; there may be more.
    kDrained,  // The socket is empty. Asked again, it is looked at again.
  };

  // Returns the next thing that the socket brings. Subtracts the received bytes from
  // `allowance_bytes`, which may become negative.
  //
  // kAborted: the peer is gone, and all that it sent has been handed out.
  absl::StatusOr<Step> Next(int socket, int64_t& allowance_bytes, uint64_t& calls);

  const Frame& frame() const { return frame_; }

  // Adds a payload of `size_bytes` to those that the stream will bring, in this order. At most
  // kMostFramesAhead payloads may be awaited.
  void Await(std::byte* to, uint64_t size_bytes, RegionId region = RegionId::kNone);
  // Returns the number of awaited payloads. Call this only before Land().
  size_t awaited_count() const { return end_; }
  // Returns true if a payload that is not complete goes to that region.
  bool Awaits(RegionId region) const;
  // Says that the awaited payloads come next.
  void Land();

  // Returns the number of bytes that the landing payloads lack, or 0 if none is landing.
  uint64_t left_bytes() const { return is_landing_ ? left_bytes_ : 0; }

 private:
  struct Payload {
    std::byte* to = nullptr;
    uint64_t size_bytes = 0;  // The bytes that have not arrived.
    RegionId region = RegionId::kNone;
  };

  absl::StatusOr<Step> Receive(int socket, int64_t& allowance_bytes, uint64_t& calls);
  // Counts the next `size_bytes` of the payloads as arrived. Copies them if `from` is not null.
  void TakeLanded(uint64_t size_bytes, const std::byte* from);

  Frame frame_;
  bool is_landing_ = false;
  std::array<Payload, kMostFramesAhead> payloads_;
  size_t begin_ = 0;  // The payloads from here to `end_` are awaited.
  size_t end_ = 0;
  uint64_t left_bytes_ = 0;  // The sum of the awaited payloads' sizes.
  bool are_long_ = false;    // The payloads that are landing, or have landed last, are long.
  bool was_short_ = false;   // The socket had less than was asked for, so it is empty.
  // Received behind the payloads that were awaited: frames, and payloads that are small.
  std::array<std::byte, 16 << 10> ahead_;
  size_t ahead_begin_ = 0;
  size_t ahead_end_ = 0;
};

}  // namespace waybill::tcp

#endif  // WAYBILL_CORE_FABRIC_TCP_INBOX_H_
