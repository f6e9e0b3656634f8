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

  // The next thing that the socket brings. `allowance_bytes` goes down by what was received, also
  // below 0.
  // kAborted: the peer is gone, and all that it sent has been handed out.
  absl::StatusOr<Step> Next(int socket, int64_t& allowance_bytes, uint64_t& calls);

  const Frame& frame() const { return frame_; }

  // `size_bytes` of the stream will go there, behind what is awaited already: kMostFramesAhead at
  // most.
  void Await(std::byte* to, uint64_t size_bytes, RegionId region = RegionId::kNone);
  // They come next.
  void Land() { is_landing_ = true; }
  size_t awaited() const { return end_; }
  // Whether some of what is awaited goes to that region.
  bool Awaits(RegionId region) const;

  // What is missing of payloads that come next.
  uint64_t left_bytes() const { return is_landing_ ? left_bytes_ : 0; }

 private:
  struct Payload {
    std::byte* to = nullptr;
    uint64_t size_bytes = 0;  // What is missing.
    RegionId region = RegionId::kNone;
  };

  absl::StatusOr<Step> Receive(int socket, int64_t& allowance_bytes, uint64_t& calls);
  // So many bytes of the payloads are there; where `from` is given, they are copied.
  void TakeLanded(uint64_t size_bytes, const std::byte* from);

  Frame frame_;
  bool is_landing_ = false;
  std::array<Payload, kMostFramesAhead> payloads_;
  size_t begin_ = 0;  // The payloads from here to `end_` are awaited.
  size_t end_ = 0;
  uint64_t left_bytes_ = 0;  // Of all of them.
  bool was_short_ = false;   // The socket had less than was asked for, so it is empty.
  // Received behind the payloads that were awaited: frames, and payloads that are small.
  std::array<std::byte, 16 << 10> ahead_;
  size_t ahead_begin_ = 0;
  size_t ahead_end_ = 0;
};

}  // namespace waybill::tcp

#endif  // WAYBILL_CORE_FABRIC_TCP_INBOX_H_
