// SPDX-License-Identifier: Apache-2.0

// The format of a tcp lane's stream: frames, each group of them followed by the bytes that it
// announces. Numbers are little-endian, as on every machine that Waybill runs on.
//
// A post sends the frames of its writes first, at most kMostFramesAhead at a time, and then the
// bytes of these writes in the same order. So the receiver knows where the bytes belong before it
// takes them out of the socket.
#ifndef WAYBILL_CORE_FABRIC_TCP_FRAMES_H_
#define WAYBILL_CORE_FABRIC_TCP_FRAMES_H_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace waybill::tcp {

static_assert(std::endian::native == std::endian::little);

enum class FrameKind : uint16_t {
  kWelcome = 1,    // Both ends are there.
  kGrant = 2,      // The region with that key and size may be written to.
  kRevoke = 3,     // It may not any more.
  kWrite = 4,      // `size_bytes` for that place follow, behind the bytes of the writes before.
  kEmptyPost = 5,  // A post without a write.
  kImmediate = 6,  // Belongs to no post.
  kDone = 7,       // So many posts (`size_bytes`) have landed since the lane was made.
  kRefused = 8,  // A write is not allowed, and the lane is dead; `immediate` is a code, and a text
                 // of `size_bytes` follows.
};

// Flags of what belongs to a post.
inline constexpr uint16_t kEndsPost = 1;
inline constexpr uint16_t kHasImmediate = 2;

struct Frame {
  FrameKind kind = FrameKind::kWelcome;
  uint16_t flags = 0;
  uint32_t immediate = 0;
  uint64_t key = 0;
  uint64_t offset_bytes = 0;
  uint64_t size_bytes = 0;
};
static_assert(sizeof(Frame) == 32);

// 32 hexadecimal digits that only the control channel tells.
using Secret = std::array<char, 32>;

// The first bytes on a connection, from the end that made it.
struct Hello {
  std::array<char, 8> magic = kMagic;
  Secret wanted_lane = {};
  Secret own_lane = {};

  static constexpr std::array<char, 8> kMagic = {'w', 'a', 'y', 'b', 'i', 'l', 'l', '2'};
};
static_assert(sizeof(Hello) == 72);

// The largest number of write frames that the sender sends before the bytes of these writes.
inline constexpr size_t kMostFramesAhead = 256;

// Returns true if the bytes come after this frame, the `frames`-th write without its bytes yet.
inline bool AreBytesBehind(const Frame& write, size_t frames) {
  return (write.flags & kEndsPost) != 0 || frames == kMostFramesAhead;
}

inline constexpr uint64_t kMaxWriteBytes = uint64_t{64} << 20;
inline constexpr uint64_t kMostRefusalBytes = 512;

}  // namespace waybill::tcp

#endif  // WAYBILL_CORE_FABRIC_TCP_FRAMES_H_
