// SPDX-License-Identifier: Apache-2.0

// One receiver, as the sender's engine sees it: its lanes and its buffers.
#ifndef WAYBILL_CORE_ENGINE_RECEIVER_LINK_H_
#define WAYBILL_CORE_ENGINE_RECEIVER_LINK_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/fabric/fabric.h"
#include "core/plan/chunks.h"
#include "core/plan/route_table.h"
#include "core/protocol/update.h"

namespace waybill {

// A region of a receiver's buffer, ready to be written to.
struct RegionAccess {
  RemoteRegionId remote = RemoteRegionId::kNone;
  uint64_t offset_bytes = 0;
  std::byte* mapped = nullptr;  // The region's first byte in this process, or null if not mapped.
  // The number of bytes mapped from there on; ~0 if not mapped, where the receiver's network
  // refuses a write beyond the region.
  uint64_t size_bytes = ~uint64_t{0};
};

struct BufferAccess {
  std::vector<RegionAccess> regions;
  RegionAccess ledger;
};

// One lane to a receiver.
struct ReceiverLane {
  LaneId id = LaneId::kNone;
  std::string nic;    // The sender's NIC; empty means any.
  bool kept = false;  // The lane was opened in an earlier term.
  // The imports of the lane, each from its offset 0. Regions of one arena share a descriptor.
  std::map<std::string, RegionAccess> imports;  // By descriptor.
  std::optional<uint32_t>
      granted;  // The latest term for which the receiver has granted its buffers.

  uint64_t shared_granted = 0;  // See SharedChunks::GrantTo().

  // The state in the current term.
  std::vector<BufferAccess> buffers;  // Filled when the receiver has granted them.
  bool up = false;                    // Both ends have granted their memory.
  bool reads_sources = false;         // The lane's network can read the registered tensors.
  bool reads_device_slots = false;    // The lane's network can read the slots in GPU memory.
  bool copies_posts = false;          // The value of Fabric::CopiesPosts().
  // Why the lane cannot read the tensors, or why not all are registered; empty if it can.
  std::string why_staged;
  std::string why_host_slots;  // Why the slots are not in the GPU memory that holds the tensors.
  // Why chunks are packed again for each receiver that wants them; empty if they need not be.
  std::string why_not_shared;

  // The lane's part in the current update, or in the last one.
  uint64_t posted_bytes = 0;
  absl::Time first_post = absl::InfiniteFuture();
  absl::Time last_completion = absl::InfinitePast();

  // Returns whether chunks can be stored through a mapping of the receiver's memory.
  bool mapped() const {
    return !buffers.empty() &&
           std::any_of(buffers[0].regions.begin(), buffers[0].regions.end(),
                       [](const RegionAccess& region) { return region.mapped != nullptr; });
  }
  // Prepares a kept lane for a new term.
  void BeginTerm();
  void BeginUpdate() {
    posted_bytes = 0;
    first_post = absl::InfiniteFuture();
    last_completion = absl::InfinitePast();
  }
};

struct ReceiverBuffer {
  BufferAddress address;
  // The buffer still has to be imported on every lane: its address is new, or it was paused.
  bool to_open = false;
};

struct ReceiverLink {
  uint32_t receiver = 0;
  uint32_t index = 0;  // In ReceiverLinks::links, and its peer number in the send schedule.
  // The link's routes are [first, last) of the table; likewise its chunks.
  uint32_t first_route = 0;
  uint32_t last_route = 0;
  uint32_t first_chunk = 0;
  uint32_t last_chunk = 0;
  // The index of the first route's entry in the receiver's ledger.
  uint32_t first_ledger_entry = 0;
  std::vector<ReceiverLane> lanes;  // The first one carries the ledger.

  std::vector<ReceiverBuffer> buffers;

  std::atomic<bool> failed = false;  // Read by the threads that store.

  // The state in the current update.
  bool targeted = false;    // The update goes to this receiver.
  bool has_before = false;  // It shows the version since which changes are known.
  uint32_t buffer_index = 0;
  std::atomic<uint32_t> stores_left = 0;   // Stores that have begun and not ended.
  uint32_t stores_begun = 0;               // Stores whose end was not yet reported to the schedule.
  std::atomic<uint32_t> digests_left = 0;  // Chunks whose direct bytes are not digested yet.

  bool takes_part() const { return targeted && !failed; }
  uint32_t route_count() const { return last_route - first_route; }
  bool up() const;
  // Returns kInvalidArgument unless the receiver has as many lanes as the plan.
  absl::Status CheckLaneCount(size_t there) const;
  // Sets a buffer's address. kInvalidArgument: there is no such buffer, or the address has another
  // number of regions.
  absl::Status SetBufferAddress(uint32_t b, BufferAddress address);
  // Opens the buffer of this update on every lane, if its address is new. `routes` is the table
  // with this link's routes. kFailedPrecondition: the receiver's grants have not arrived yet.
  // kInvalidArgument: a route ends beyond its region.
  absl::Status OpenTarget(Fabric& fabric, const RouteTable& routes);
  // Opens all of the receiver's buffers on one of its lanes, except for those with a new address.
  absl::Status OpenBuffers(Fabric& fabric, const RouteTable& routes, ReceiverLane& lane) const;
  void CloseLanes(Fabric& fabric) const;
  BufferAccess& buffer(uint32_t lane) { return lanes[lane].buffers[buffer_index]; }

 private:
  absl::StatusOr<BufferAccess> Open(Fabric& fabric, const RouteTable& routes, ReceiverLane& lane,
                                    const BufferAddress& address) const;
  // Ends the imports that no buffer needs.
  void EndOldImports(Fabric& fabric, ReceiverLane& lane) const;
};

// The receivers of a routing table, in its order, and for each chunk the receiver and the lane that
// carries it.
struct ReceiverLinks {
  std::deque<ReceiverLink> links;  // Addresses are stable.
  std::vector<ReceiverLink*> link_of_chunk;
  std::vector<uint32_t> lane_of_chunk;

  // Returns the link to a receiver, or kInvalidArgument if the plan has no route to it.
  absl::StatusOr<ReceiverLink*> Find(uint32_t receiver);
  // Opens this end of every lane that is not kept, and returns all of them.
  absl::StatusOr<std::vector<LaneOffer>> OpenLanes(Fabric& fabric);
  std::vector<LaneReport> Report(const Fabric& fabric) const;
  // Returns the rates of the last update. Lanes by which less than 1 MiB was posted have none:
  // their time is that of messages. What is stored through a mapping is not posted.
  std::vector<LaneRate> Rates(const Fabric& fabric) const;
  // Returns the link and the lane with this id, or nulls if there is none or the receiver has
  // failed.
  std::pair<ReceiverLink*, ReceiverLane*> FindLane(LaneId id);
  // Returns whether every lane works.
  bool up() const;
};
// Imports every region of a buffer that is not imported, and maps the regions that can be mapped.
//
// kFailedPrecondition: the receiver's grants have not arrived yet. kInvalidArgument: a region lies
// beyond what is mapped.
absl::StatusOr<BufferAccess> OpenBuffer(Fabric& fabric, ReceiverLane& lane,
                                        const BufferAddress& address);

// Makes the links of a table. kInvalidArgument: `lanes` does not name one of its receivers.
absl::StatusOr<ReceiverLinks> MakeReceiverLinks(const RouteTable& routes, const ChunkList& list,
                                                const std::vector<PeerLanes>& lanes);

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_RECEIVER_LINK_H_
