// One end of a local lane: its socket, what waits to be sent, and what the peer granted.
#ifndef WAYBILL_CORE_FABRIC_LOCAL_LOCAL_LANE_H_
#define WAYBILL_CORE_FABRIC_LOCAL_LOCAL_LANE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/base/unique_fd.h"
#include "core/fabric/fabric.h"
#include "core/fabric/local/frames.h"
#include "core/fabric/local/read_permit.h"
#include "core/fabric/shared_pages.h"

namespace waybill::local {

// A region of the peer's that we may use.
struct PeerRegion {
  uint64_t size_bytes = 0;
  UniqueFd fd;  // Where the peer allocated it, until it is mapped.
  bool has_pages = false;
  bool revoked = false;  // Its mapping stays until the lane is closed.
  std::optional<SharedPages> mapping;

  // Maps the pages when they are first wanted.
  absl::StatusOr<MemorySpan> Memory();
};

class LocalLane {
 public:
  LocalLane(std::string peer, uint64_t secret) : peer_(std::move(peer)), secret_(secret) {}
  LocalLane(const LocalLane&) = delete;
  LocalLane& operator=(const LocalLane&) = delete;
  ~LocalLane() { Disconnect(); }

  const std::string& peer() const { return peer_; }
  uint64_t secret() const { return secret_; }

  UniqueFd socket;
  uint64_t peer_secret = 0;  // That ConnectLane() was told; 0 before.
  uint64_t hello_from = 0;   // That the peer's hello said; 0 before.
  bool connected = false;
  absl::Status status;  // Not OK: dead.
  uint32_t outstanding_posts = 0;
  std::optional<ReadPermit> own_permit;   // From the beginning of connecting.
  std::optional<ReadPermit> peer_permit;  // From the peer's hello or welcome.

  // After this the peer reads none of this end's memory.
  void Disconnect();

  // What the peer said of its regions. A mapping is never moved or ended by it.
  absl::Status TakeGrant(absl::Span<const std::byte> body, UniqueFd fd);
  absl::Status TakeRevocation(absl::Span<const std::byte> body);
  // Null where it granted none by that key, or took it back.
  PeerRegion* FindGrantedByPeer(uint64_t key);

  // Sends, or keeps it for Flush() where the socket is full: order is kept.
  absl::Status SendFrame(const FrameHeader& header, absl::Span<const std::byte> body, int fd = -1);
  absl::Status Flush();
  bool has_unsent() const { return !unsent_.empty(); }

 private:
  struct Unsent {
    std::vector<std::byte> bytes;
    UniqueFd fd;
  };

  std::string peer_;
  uint64_t secret_;
  std::map<uint64_t, PeerRegion> granted_by_peer_;  // By key.
  std::deque<Unsent> unsent_;
};

// Why the peer refused a write, as it said; never OK.
absl::Status RefusalIn(absl::Span<const std::byte> body);

}  // namespace waybill::local

#endif  // WAYBILL_CORE_FABRIC_LOCAL_LOCAL_LANE_H_
