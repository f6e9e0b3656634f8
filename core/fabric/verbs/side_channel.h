// SPDX-License-Identifier: Apache-2.0

// A lane's connection beside its queue pair: it carries grants, tells at once of a peer that died
// or closed its end, and says why a lane was given up. No data.
#ifndef WAYBILL_CORE_FABRIC_VERBS_SIDE_CHANNEL_H_
#define WAYBILL_CORE_FABRIC_VERBS_SIDE_CHANNEL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/unique_fd.h"

namespace waybill::verbs {

enum class FrameKind : uint32_t {
  kGrant = 1,      // Regions may be written to. Body: for each a GrantBody, then its name.
  kRevoke = 2,     // The region with that key was renewed or released: the key.
  kGoodbye = 3,    // The lane is given up. Body: why, as text.
  kTaken = 4,      // A frame of grants was taken in. No body.
  kRing = 5,       // The sender's bounce ring: PeerRing. Told once, before the first grant of a
                   // region that could not be registered.
  kDelivered = 6,  // So many bounced pieces were taken out of the ring, in all: a uint64_t.
  kRefused = 7,    // A bounced write is refused and the lane is given up. Body: why, as text.
  kProbe = 8,      // Where the receiver is to write its probe: ProbeBody. Once, and first.
};

struct ProbeBody {
  uint64_t address = 0;
  uint32_t remote_key = 0;
  uint32_t size_bytes = 0;  // 0: there is no memory for it, and an empty write has to do.
};

struct GrantBody {
  uint64_t key = 0;      // The key that describes the region.
  uint64_t address = 0;  // 0 if it is bounced, and so is remote_key.
  uint64_t size_bytes = 0;
  uint32_t remote_key = 0;
  uint16_t is_bounced = 0;
  uint16_t name_bytes = 0;
};

// Returns the bytes of a body, or of its beginning.
template <typename T>
absl::string_view Packed(const T& fields) {
  return {reinterpret_cast<const char*>(&fields), sizeof(fields)};
}

struct Frame {
  FrameKind kind = FrameKind::kGrant;
  std::string body;
};

class SideChannel {
 public:
  SideChannel() = default;
  explicit SideChannel(UniqueFd socket) : socket_(std::move(socket)) {}

  int fd() const { return socket_.get(); }
  bool open() const { return socket_.valid(); }
  void Close() { socket_.Reset(); }

  // Sends, or keeps it for Flush() where the socket is full. kAborted: the peer is gone.
  absl::Status Send(FrameKind kind, absl::string_view body);
  absl::Status Flush();
  bool has_unsent() const { return !unsent_.empty(); }

  // The frames that have come. kAborted: the peer is gone; kDataLoss: these are no frames.
  absl::Status Read(std::vector<Frame>& frames);

 private:
  UniqueFd socket_;
  std::string unsent_;
  std::string received_;
};

}  // namespace waybill::verbs

#endif  // WAYBILL_CORE_FABRIC_VERBS_SIDE_CHANNEL_H_
