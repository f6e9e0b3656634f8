// The seam to a network. Everything that moves bytes between ranks is behind this class: each kind
// of network implements it, and so do the fault injector and the tests' own network.
//
// The words for done. A post is *accepted* when Post() returns OK. It is *complete* when its event
// comes: the source memory may be reused, and the bytes lie at their destination before anything
// that is later on the lane. A lane is *quiescent* when CloseLane() has returned: nothing that was
// posted on it reads or writes this process's memory any more, whatever became of it.
//
// Thread-safety: one thread (the progress thread) calls everything but Wake(), which any may call.
// Memory that Map() returned may be stored to from any thread.
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
  kPinned = 2,  // Host memory that a device can reach.
  kDevice = 3,
};

struct MemorySpan {
  MemoryKind kind = MemoryKind::kHost;
  std::byte* data = nullptr;
  uint64_t size_bytes = 0;
  // Of a device's memory where it was exported: what RDMA devices register best. -1: none.
  int dmabuf_fd = -1;
  uint64_t dmabuf_offset_bytes = 0;
};

// Numbers that a fabric gives out; 0 is none. Never used again within a fabric's life.
enum class RegionId : uint32_t { kNone = 0 };
enum class RemoteRegionId : uint32_t { kNone = 0 };
enum class LaneId : uint32_t { kNone = 0 };

// Memory of this process that peers may write to, or that writes may read.
struct Region {
  RegionId id = RegionId::kNone;
  MemorySpan memory;
};

// What becomes of a region's bytes when its pages or keys are renewed.
enum class Contents { kKept, kZeroed };

struct Capabilities {
  std::string name;
  // Map() works on regions that the peer allocated.
  bool can_map = false;
  // A write's source has to lie in a region that this fabric allocated and granted to the lane.
  bool source_must_be_granted = false;
  // The longest single write; longer ones are refused.
  uint64_t max_write_bytes = 0;
  // Posts of a lane that may be incomplete at a time.
  uint32_t max_outstanding_posts = 0;
};

struct Write {
  RegionId source = RegionId::kNone;
  uint64_t source_offset_bytes = 0;
  RemoteRegionId destination = RemoteRegionId::kNone;
  uint64_t destination_offset_bytes = 0;
  uint64_t size_bytes = 0;
};

// A way out of this host.
struct FabricNic {
  std::string name;
  uint32_t rail = 0;
  uint32_t numa_node = 0;
  uint64_t bytes_per_second = 0;
};

// One number for operators: what was done, or fell back, since the fabric was made.
struct FabricCount {
  std::string name;
  uint64_t value = 0;
};

struct FabricEvent {
  enum class Kind : uint8_t {
    kConnected = 1,  // Both ends of the lane are there.
    kComplete = 2,   // The post with this token is complete.
    kImmediate = 3,  // The peer's immediate; all it sent before on this lane has landed.
    kFailed = 4,  // The lane is dead, once per lane; its posts complete no more. See LaneStatus().
  };
  Kind kind = Kind::kConnected;
  LaneId lane = LaneId::kNone;
  uint64_t token = 0;      // Of kComplete.
  uint32_t immediate = 0;  // Of kImmediate.
};

class Fabric {
 public:
  virtual ~Fabric() = default;

  virtual const Capabilities& capabilities() const = 0;

  // --- memory of this process ---

  // Memory that the caller owns and keeps until Release(). `name` is for errors.
  virtual absl::StatusOr<Region> Register(const MemorySpan& memory, absl::string_view name) = 0;

  // Zeroed memory that the fabric owns. Every page is there when it returns: a lack of memory is
  // kResourceExhausted now, and never a signal later.
  virtual absl::StatusOr<Region> Allocate(uint64_t size_bytes, absl::string_view name) = 0;

  virtual absl::Status Release(RegionId region) = 0;

  // Ends all grants of the region: what a peer writes by an earlier grant or mapping does not reach
  // it from now on. The address stays. Granted and described anew, it can be used again.
  virtual absl::Status Renew(RegionId region, Contents contents) = 0;

  // What a peer passes to Import(): printable, for the control channel.
  virtual absl::StatusOr<std::string> Describe(RegionId region) = 0;

  // Lets the peer of `lane` use the region. Before the peer imports it; the peer knows of it when
  // anything arrives that was posted on the lane afterwards.
  virtual absl::Status Grant(LaneId lane, RegionId region) = 0;

  // --- memory of a peer ---

  // kFailedPrecondition: not granted on this lane (yet), or renewed since it was described.
  virtual absl::StatusOr<RemoteRegionId> Import(LaneId lane, absl::string_view descriptor) = 0;

  // The peer's memory in this address space, until the lane is closed. kUnimplemented: this region
  // cannot be mapped; use Post().
  virtual absl::StatusOr<MemorySpan> Map(RemoteRegionId region) = 0;

  // --- lanes ---

  // What lanes can be bound to and works now; empty where the fabric has no choice to offer.
  virtual std::vector<FabricNic> Nics() const { return {}; }

  // This end of a lane, bound to the NIC of that name (empty: to any), and the address that the
  // other end needs; `peer` is for errors. kUnavailable: there is no such NIC, or it is dead.
  virtual absl::StatusOr<LaneId> OpenLane(absl::string_view peer, absl::string_view nic) = 0;
  virtual absl::StatusOr<std::string> LaneAddress(LaneId lane) const = 0;

  // Begins to connect; kConnected or kFailed follows. Both ends call it.
  virtual absl::Status ConnectLane(LaneId lane, absl::string_view peer_address) = 0;

  // Makes the lane quiescent and forgets it. Its events that were not polled are dropped.
  virtual absl::Status CloseLane(LaneId lane) = 0;

  // Why the lane failed; OK where it did not.
  virtual absl::Status LaneStatus(LaneId lane) const = 0;

  // For people: which network carries it, from where to where, and why none better does.
  virtual std::string DescribeLane(LaneId lane) const = 0;

  // --- data ---

  // Performs the writes in order, at the latest from the next Poll() or Wait() on, then delivers
  // the immediate if there is one. One kComplete with `token` follows. An empty span of writes is
  // allowed. kResourceExhausted: more posts than capabilities().max_outstanding_posts; nothing was
  // posted.
  virtual absl::Status Post(LaneId lane, absl::Span<const Write> writes,
                            std::optional<uint32_t> immediate, uint64_t token) = 0;

  // Delivers `immediate` behind every store that this process made through mappings before the
  // call.
  virtual absl::Status Publish(LaneId lane, uint32_t immediate) = 0;

  // Appends what has happened to `events`, and does what is to be done meanwhile. Never blocks; at
  // most `events.capacity()` in all where that is not 0, so that a caller that reserved does not
  // allocate.
  virtual void Poll(std::vector<FabricEvent>& events) = 0;

  // Blocks until Poll() may have something, the deadline, or Wake(), which counts if it came after
  // the last Wait(), whatever was polled between.
  virtual void Wait(absl::Time deadline) = 0;
  virtual void Wake() = 0;

  // For who waits on several fabrics at once: where ArmWait() says so, sleep until the descriptor
  // is readable; else Poll() has something already. -1: this fabric waits alone.
  virtual int wait_descriptor() const { return -1; }
  virtual bool ArmWait() { return false; }

  // --- for operators ---

  virtual std::vector<FabricCount> Counts() const { return {}; }
};

}  // namespace waybill

#endif  // WAYBILL_CORE_FABRIC_FABRIC_H_
