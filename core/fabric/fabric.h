// SPDX-License-Identifier: Apache-2.0

// The interface to a network. Each kind of network implements it, and so do the fault injector and
// the network of the tests. Nothing else moves bytes between ranks.
//
// A post is *accepted* when Post() returns OK. It is *complete* when its kComplete event comes: the
// source memory may be reused, and the bytes are at their destination before anything later on the
// lane. A lane is *quiescent* when CloseLane() has returned: nothing that was posted on the lane
// reads or writes this process's memory any more, whether it completed or not. There is one
// exception: a receiver on the local fabric that is stopped in the middle of a copy goes on reading
// when it continues, and never reports that write.
//
// Thread-safety: one thread, the progress thread, calls everything except Wake(), which any thread
// may call. Any thread may store to memory that Map() returned.
#ifndef WAYBILL_CORE_FABRIC_FABRIC_H_
#define WAYBILL_CORE_FABRIC_FABRIC_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace waybill {

enum class MemoryKind : uint8_t {
  kHost = 1,
  kDevice = 2,
};

struct MemorySpan {
  MemoryKind kind = MemoryKind::kHost;
  std::byte* data = nullptr;
  uint64_t size_bytes = 0;
  // The dma-buf of a GPU's memory, which is the best way for NICs to register it, or -1 for none.
  int dmabuf_fd = -1;
  uint64_t dmabuf_offset_bytes = 0;
  // True if what NICs write to a GPU's memory is visible only after ReadBack().
  bool needs_read_back = false;
};

// Numbers that a fabric assigns. 0 means none. A fabric never uses a number again.
enum class RegionId : uint32_t { kNone = 0 };
enum class RemoteRegionId : uint32_t { kNone = 0 };
enum class LaneId : uint32_t { kNone = 0 };

// Memory of this process that peers may write, or that posts may read.
struct Region {
  RegionId id = RegionId::kNone;
  MemorySpan memory;
};

// Says what Renew() does to the bytes of a region.
enum class Contents { kKept, kZeroed };

struct Capabilities {
  std::string name;
  // True if Map() works for regions that the peer allocated.
  bool can_map = false;
  // True if the source of a write must lie in a region that this fabric allocated and granted on
  // the lane.
  bool source_must_be_granted = false;
  // The maximum size of a single write. Longer writes are refused.
  uint64_t max_write_bytes = 0;
  // The maximum number of incomplete posts per lane.
  uint32_t max_outstanding_posts = 0;
};

struct Write {
  RegionId source = RegionId::kNone;
  uint64_t source_offset_bytes = 0;
  RemoteRegionId destination = RemoteRegionId::kNone;
  uint64_t destination_offset_bytes = 0;
  uint64_t size_bytes = 0;
};

// A NIC that lanes can be bound to.
struct FabricNic {
  std::string name;
  uint32_t rail = 0;
  uint32_t numa_node = 0;
  uint64_t bytes_per_second = 0;
};

// A counter for operators. It starts at 0 when the fabric is made. Two fabrics may use the same
// name, so a caller with several fabrics puts the fabric's name before it.
struct FabricCount {
  std::string name;
  uint64_t value = 0;
};

struct FabricEvent {
  enum class Kind : uint8_t {
    // Both ends of the lane are connected, and each has heard from the other on it: nothing above
    // the fabric has to try it out.
    kConnected = 1,
    // The post with this token is complete.
    kComplete = 2,
    // The peer's immediate has arrived, and so has everything that the peer sent before it on this
    // lane.
    kImmediate = 3,
    // The lane is dead; LaneStatus() says why. Comes once per lane, and is the lane's last event.
    // It
    // may come before this end calls ConnectLane(), if the peer connects its end and dies.
    kFailed = 4,
  };
  Kind kind = Kind::kConnected;
  LaneId lane = LaneId::kNone;
  uint64_t token = 0;      // For kComplete.
  uint32_t immediate = 0;  // For kImmediate.
};

class Fabric {
 public:
  virtual ~Fabric() = default;

  virtual const Capabilities& capabilities() const = 0;

  // --- memory of this process ---

  // Registers memory of the caller, who keeps it until Release() has returned. `name` appears in
  // errors.
  virtual absl::StatusOr<Region> Register(const MemorySpan& memory, absl::string_view name) = 0;

  // Registers memory of the caller that posts may read and no peer reaches; the caller keeps it
  // until Release() has returned. Fails if the network cannot read the memory directly. The caller
  // should then copy the bytes into memory of Allocate() before it posts them.
  //
  // kUnimplemented: this network reads granted memory only.
  virtual absl::StatusOr<Region> RegisterSource(const MemorySpan& memory, absl::string_view name) {
    return Register(memory, name);
  }

  // Allocates zeroed memory that the fabric owns. Reserves every page before it returns, so that a
  // lack of memory is kResourceExhausted here and never a signal later.
  virtual absl::StatusOr<Region> Allocate(uint64_t size_bytes, absl::string_view name) = 0;

  // Ends all grants and forgets the region. When it returns, no peer reaches the memory any more. A
  // lane with an incomplete post that reads the memory may fail.
  virtual absl::Status Release(RegionId region) = 0;

  // Ends all grants of the region: when it returns, writes by an earlier grant or mapping no longer
  // reach it. The address stays the same. To use the region again, grant and describe it again.
  virtual absl::Status Renew(RegionId region, Contents contents) = 0;

  // Returns the printable text that a peer passes to Import(). The control channel carries it.
  virtual absl::StatusOr<std::string> Describe(RegionId region) = 0;

  // Allows the peer of `lane` to use the region. The peer can import the region once it has
  // received anything that was posted on the lane after this call.
  virtual absl::Status Grant(LaneId lane, RegionId region) = 0;

  // --- memory of a peer ---

  // Imports a region of the peer by the text that Describe() returned there. The import is valid
  // until EndImport(), or until the lane is closed.
  //
  // kFailedPrecondition: the region is not granted on this lane (yet), or was renewed since it was
  // described.
  virtual absl::StatusOr<RemoteRegionId> Import(LaneId lane, absl::string_view descriptor) = 0;

  // Maps the peer's memory into this address space until the import ends.
  //
  // kUnimplemented: this region cannot be mapped; use Post().
  virtual absl::StatusOr<MemorySpan> Map(RemoteRegionId region) = 0;

  // Ends an import and its mapping. Before the call, every post to the region must be complete, and
  // no thread may store to the mapping any more. Memory that the peer has renewed or released goes
  // back to the system only then. kInvalidArgument: there is no such import.
  virtual absl::Status EndImport(RemoteRegionId region) = 0;

  // --- lanes ---

  // Returns the working NICs that lanes can be bound to. Empty if there is nothing to choose.
  virtual std::vector<FabricNic> Nics() const { return {}; }

  // Opens this end of a lane on the NIC of that name, or on any NIC if `nic` is empty. `peer`
  // appears in errors.
  //
  // kUnavailable: there is no such NIC, or it is dead.
  virtual absl::StatusOr<LaneId> OpenLane(absl::string_view peer, absl::string_view nic) = 0;

  // Returns the address of this end, which the other end passes to ConnectLane().
  virtual absl::StatusOr<std::string> LaneAddress(LaneId lane) const = 0;

  // Begins to connect. Both ends must call it. kConnected or kFailed follows.
  virtual absl::Status ConnectLane(LaneId lane, absl::string_view peer_address) = 0;

  // Makes the lane quiescent and forgets it. Drops its events that were not polled.
  virtual absl::Status CloseLane(LaneId lane) = 0;

  // Returns OK if posts on the connected lane can read a region of RegisterSource(), else why not.
  virtual absl::Status CheckRead(LaneId /*lane*/, RegionId /*source*/) const {
    return absl::OkStatus();
  }

  // Makes what has arrived on the lane visible to the device whose memory `needs_read_back`: the
  // lane's NIC reads a byte of that memory, if an immediate has come since it read last. All such
  // memory of a fabric is of one device. The lane may have failed, but not be closed. Blocks for
  // microseconds, or for up to two seconds if the NIC does not answer.
  //
  // kUnavailable, kDeadlineExceeded: the NIC does not read, so what has arrived on the lane may not
  // be visible. kNotFound: there is no such lane.
  virtual absl::Status ReadBack(LaneId /*lane*/) { return absl::OkStatus(); }

  // Returns true if the progress thread itself copies what is posted on the connected lane. Then
  // its cache has the bytes of a post soon after Post(), if there was room for it, and those that
  // have arrived after the Poll() that says so.
  virtual bool CopiesPosts(LaneId /*lane*/) const { return false; }

  // Returns true if the network takes a post soon, rather than after others that wait for it. It is
  // never an error to post without room. Wait() ends when a lane has room again.
  virtual bool HasRoom(LaneId /*lane*/) const { return true; }

  // Returns why the lane failed, or OK if it did not.
  virtual absl::Status LaneStatus(LaneId lane) const = 0;

  // Returns a text for operators: which network carries the lane, from where to where, and why a
  // better network does not.
  virtual std::string DescribeLane(LaneId lane) const = 0;

  // --- data ---

  // Performs the writes in order, then delivers the immediate if there is one. The network begins
  // at the latest with the next Poll() or Wait(). One kComplete with `token` follows unless the
  // lane fails. `writes` may be empty.
  //
  // kResourceExhausted: the lane has capabilities().max_outstanding_posts incomplete posts; nothing
  // was posted.
  virtual absl::Status Post(LaneId lane, absl::Span<const Write> writes,
                            std::optional<uint32_t> immediate, uint64_t token) = 0;

  // Delivers `immediate` after every store that this process made through mappings before the call.
  virtual absl::Status Signal(LaneId lane, uint32_t immediate) = 0;

  // Makes progress and appends new events to `events`. Never blocks. If events.capacity() is not 0,
  // never exceeds it, so that `events` does not allocate.
  virtual void Poll(std::vector<FabricEvent>& events) = 0;

  // Blocks until Poll() may have an event, the deadline has passed or Wake() is called. Returns at
  // once if Wake() was called since the last Wait().
  virtual void Wait(absl::Time deadline) = 0;
  // Ends the current Wait(), or the next one.
  virtual void Wake() = 0;

  // Support a caller that waits for several fabrics at once. If ArmWait() returns true, the caller
  // may sleep until the descriptor is readable; otherwise Poll() has an event already. A descriptor
  // of -1 means that a caller can wait for this fabric only by Wait().
  virtual int wait_descriptor() const { return -1; }
  virtual bool ArmWait() { return false; }

  // --- for operators ---

  virtual std::vector<FabricCount> Counts() const { return {}; }
};

}  // namespace waybill

#endif  // WAYBILL_CORE_FABRIC_FABRIC_H_
