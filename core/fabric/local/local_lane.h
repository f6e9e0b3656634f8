// SPDX-License-Identifier: Apache-2.0

// One end of a local lane: its socket, what waits to be sent, and what the peer granted.
#ifndef WAYBILL_CORE_FABRIC_LOCAL_LOCAL_LANE_H_
#define WAYBILL_CORE_FABRIC_LOCAL_LOCAL_LANE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/base/unique_fd.h"
#include "core/device/created_memory.h"
#include "core/device/device.h"
#include "core/device/shared_memory.h"
#include "core/fabric/fabric.h"
#include "core/fabric/local/frames.h"
#include "core/fabric/local/read_permit.h"
#include "core/fabric/ring.h"
#include "core/fabric/shared_pages.h"

namespace waybill::local {

// A region of the peer's that we may use.
struct PeerRegion {
  uint64_t size_bytes = 0;
  UniqueFd fd;  // The peer's pages, until they are mapped.
  bool has_pages = false;
  SharedMemoryName gpu_memory;
  std::vector<PartHandle> parts;  // Of that, until they are mapped.
  absl::Status parts_status;      // Not OK: a part could not be imported.
  bool revoked = false;           // Its mapping stays until its import ends.
  std::optional<SharedPages> mapping;
  PinnedMemory pinned;  // The mapping, if a GPU copies from it.
  std::optional<OpenedMemory> opened;

  // Maps the pages when they are first wanted, or opens a GPU's memory, as `receiver` reaches it.
  absl::StatusOr<MemorySpan> Memory(const std::shared_ptr<Device>& receiver);
};

// Whether a peer can open GPU memory of this end.
struct Openings {
  absl::Status allocated;  // Memory of cuMemAlloc().
  absl::Status created;    // Memory of cuMemCreate().
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
  uint64_t peer_secret = 0;  // From ConnectLane(); 0 before.
  uint64_t hello_from = 0;   // From the peer's hello; 0 before.
  bool connected = false;
  ProbeBody peer_probe;  // From its hello, with what came along.
  UniqueFd peer_probe_file;
  std::optional<Openings> opens_ours;  // Empty until the peer has said so.
  absl::Status why_not_asked;  // Why the peer was not asked to open memory of cuMemCreate().
  absl::Status status;         // Not OK: dead.
  Ring<uint64_t> tokens;       // The posts that the peer has not reported as done, in order.
  std::optional<ReadPermit> own_permit;   // Set by ConnectLane().
  std::optional<ReadPermit> peer_permit;  // From the peer's hello or welcome.

  // The end that sent the hello waits for the welcome. The other end sends it, and hears nothing
  // before.
  bool Expects(FrameKind kind) const {
    if (kind == FrameKind::kWelcome) return !connected && hello_from == 0;
    if (kind == FrameKind::kTried) return connected && !opens_ours;
    return connected;
  }

  // After this the peer reads none of this end's memory.
  void Disconnect();

  // Handle the peer's frames about its regions. They never move or end a mapping.
  absl::Status TakeGrant(absl::Span<const std::byte> body, UniqueFd fd);
  // Imports an allocation of the region that is granted next. Where the driver refuses, that
  // region has no memory.
  absl::Status TakePart(absl::Span<const std::byte> body, const UniqueFd& file,
                        const std::shared_ptr<Device>& receiver);
  absl::Status TakeRevocation(absl::Span<const std::byte> body);
  // Returns null if the peer granted no region by that key, or revoked it.
  PeerRegion* FindGrantedByPeer(uint64_t key);
  // Nothing stores to that region any more: ends its mapping if the peer has revoked it.
  void ForgetIfRevoked(uint64_t key);
  // Ends all mappings of the peer's GPU memory. Nothing is copied from there any more.
  void ForgetGpuMemory();

  // Sends, or keeps it for Flush() where the socket is full: order is kept. kResourceExhausted: it
  // cannot keep descriptors.
  absl::Status SendFrame(const FrameHeader& header, absl::Span<const std::byte> body,
                         absl::Span<const int> fds = {});
  absl::Status Flush();
  bool has_unsent() const { return !unsent_.empty(); }

  // kDataLoss: the peer says that a post is done which is not the oldest one outstanding.
  absl::Status TakeDone(uint64_t token);
  // Says that the peer's post is done. kResourceExhausted: the peer posts on and on without reading
  // what it is told.
  absl::Status TellDone(uint64_t token);
  // Says why the peer's writes are refused.
  void TellRefused(const absl::Status& why);

 private:
  struct Unsent {
    std::vector<std::byte> bytes;
    std::vector<UniqueFd> fds;
    bool is_done = false;  // A frame of kDone.
  };

  void ForgetNextParts();

  std::string peer_;
  uint64_t secret_;
  std::map<uint64_t, PeerRegion> granted_by_peer_;  // By key.
  std::vector<PartHandle> next_parts_;              // Of the region that is granted next.
  absl::Status next_parts_status_;
  std::deque<Unsent> unsent_;
  size_t unsent_dones_ = 0;
};

RefusalBody ToRefusal(const absl::Status& status);
// Returns OK if it is none.
absl::Status FromRefusal(RefusalBody refusal);

}  // namespace waybill::local

#endif  // WAYBILL_CORE_FABRIC_LOCAL_LOCAL_LANE_H_
