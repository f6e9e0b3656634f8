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
  kGrant = 1,      // A region may be written to: GrantBody, then its name.
  kRevoke = 2,     // The region with that key was renewed or released: the key.
  kGoodbye = 3,    // The lane is given up: why, as text.
  kTaken = 4,      // A grant was taken in: nothing.
  kRing = 5,       // Where what is staged may be written: PeerRing. Once, before the first grant
                   // of a region that is.
  kDelivered = 6,  // So many staged pieces were taken out of the ring, in all: a uint64_t.
  kRefused = 7,    // Of a staged write, and the lane is given up: why, as text.
};

struct GrantBody {
  uint64_t key = 0;      // By which the region is described.
  uint64_t address = 0;  // 0 where it is staged, as is the next but one.
  uint64_t size_bytes = 0;
  uint32_t remote_key = 0;
  uint32_t is_staged = 0;
};

// A body, or the beginning of one.
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
