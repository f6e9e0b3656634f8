// SPDX-License-Identifier: Apache-2.0

// What two ends of a local lane say to each other: one frame a message of a SOCK_SEQPACKET socket.
#ifndef WAYBILL_CORE_FABRIC_LOCAL_FRAMES_H_
#define WAYBILL_CORE_FABRIC_LOCAL_FRAMES_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "core/device/shared_memory.h"

namespace waybill::local {

enum class FrameKind : uint32_t {
  // Each brings its sender's read permit along.
  kHello = 1,      // From the end that connected: which lane it wants, and which it is.
  kWelcome = 2,    // The answer: both ends are there.
  kGrant = 3,      // A region may be used; its pages come along where the sender allocated it.
  kWrites = 4,     // Please copy, from my granted region into yours; `count` records follow.
  kDone = 5,       // The writes with that token are done.
  kRefused = 6,    // They are not, and the lane is dead; `code` and a text follow.
  kImmediate = 7,  // Signalled behind stores through a mapping.
  kRevoke = 8,     // The region with that key was renewed or released.
  kTried = 9,      // Reports which of the probes in the welcome succeeded.
  kPart = 10,      // An allocation of the region that is granted next; its file comes along.
};

struct FrameHeader {
  FrameKind kind = FrameKind::kHello;
  uint32_t immediate = 0;
  uint32_t has_immediate = 0;
  uint32_t count = 0;
  uint32_t wants_done = 0;  // The last frame of a post.
  uint32_t reserved = 0;
  uint64_t token = 0;
};

struct RefusalBody {
  uint32_t code = 0;  // 0: it is no refusal.
  char text[508] = {};
};

// Each end tells the other of GPU memory that it would have read there, if it has any, and hears
// whether the other end can open it. The two ways to allocate it have nothing in common.
struct ProbeBody {
  SharedMemoryName allocated;  // By cuMemAlloc().
  // An allocation of cuMemCreate() of that size, whose file comes along; 0: there is none.
  uint64_t created_bytes = 0;
};

struct TriedBody {
  RefusalBody allocated;
  RefusalBody created;
};

struct HelloBody {
  uint64_t wanted_lane = 0;  // Secrets, told over the control channel only.
  uint64_t own_lane = 0;
  ProbeBody probe;
};

struct WelcomeBody {
  ProbeBody probe;
  TriedBody tried;  // The hello's.
};

struct PartBody {
  uint64_t index = 0;  // Among the region's parts. A first one begins anew.
  uint64_t size_bytes = 0;
};

struct GrantBody {
  uint64_t key = 0;
  uint64_t size_bytes = 0;
  uint32_t has_pages = 0;
  uint32_t reserved = 0;
  SharedMemoryName gpu_memory;  // If the region is that. Frames of its parts came before.
};

struct WriteRecord {
  uint64_t source_key = 0;
  uint64_t source_offset_bytes = 0;
  uint64_t destination_key = 0;
  uint64_t destination_offset_bytes = 0;
  uint64_t size_bytes = 0;
};

inline constexpr uint32_t kMostOutstandingPosts = 1024;
// How many frames of a lane are read before those of other lanes. A GPU copies what all of them ask
// for before it is waited for.
inline constexpr int kMostFramesAtOnce = 128;
inline constexpr size_t kMostParts = size_t{1} << 16;  // Of a region; 128 GiB at 2 MiB each.

// A post of more writes is several frames; the last one carries immediate and token.
inline constexpr uint32_t kMostRecords = 512;
inline constexpr size_t kMostFrameBytes = sizeof(FrameHeader) + kMostRecords * sizeof(WriteRecord);

template <typename T>
absl::Span<const std::byte> BytesOf(const T& value) {
  return {reinterpret_cast<const std::byte*>(&value), sizeof(value)};
}

}  // namespace waybill::local

#endif  // WAYBILL_CORE_FABRIC_LOCAL_FRAMES_H_
