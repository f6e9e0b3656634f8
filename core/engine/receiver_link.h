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
  // How many bytes are mapped from there on. ~0 if not mapped: the other end refuses what is
  // beyond.
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
  bool kept = false;  // It is there since an earlier term.
  // What is imported on it, each at its offset 0. Regions of one arena share a descriptor.
  std::map<std::string, RegionAccess> imports;  // By descriptor.
  std::optional<uint32_t>
      granted;  // The latest term for which the receiver has granted its buffers.

  // The term at hand.
  std::vector<BufferAccess> buffers;  // Filled when the receiver has granted them.
  bool up = false;                    // Either end has told the other what it grants.
  bool reads_sources = false;         // It can read the registered tensors.
  bool reads_device_slots = false;    // Likewise.
  bool copies_posts = false;          // As Fabric::CopiesPosts() says.
  std::string why_staged;             // Why not, or why not all are registered.
  std::string why_host_slots;         // Why no slots are on the GPU that has the tensors.

  // Whether weights are stored.
  bool mapped() const {
    return !buffers.empty() &&
           std::any_of(buffers[0].regions.begin(), buffers[0].regions.end(),
                       [](const RegionAccess& region) { return region.mapped != nullptr; });
  }
  // A kept lane belongs to another term from now on.
  void BeginTerm();
};

struct ReceiverBuffer {
  BufferAddress address;
  bool to_open = false;  // It is not imported on every lane yet: it is new, or was paused.
};

struct ReceiverLink {
  uint32_t receiver = 0;
  uint32_t index = 0;        // In ReceiverLinks::links, and its peer number in the send schedule.
  uint32_t first_route = 0;  // Routes [first, last) of the table, and their chunks.
  uint32_t last_route = 0;
  uint32_t first_chunk = 0;
  uint32_t last_chunk = 0;
  uint32_t first_ledger_entry = 0;  // The place of the first route in the receiver's ledger.
  std::vector<ReceiverLane> lanes;  // The first one carries the ledger.

  std::vector<ReceiverBuffer> buffers;

  std::atomic<bool> failed = false;  // Threads that store read it.

  // The update at hand.
  bool targeted = false;  // The update goes to this receiver.
  uint32_t buffer_index = 0;
  std::atomic<uint32_t> stores_left = 0;   // Stores that have begun and not ended.
  uint32_t stores_begun = 0;               // Stores whose end the schedule was not told yet.
  std::atomic<uint32_t> digests_left = 0;  // Chunks whose tensors' digests are not taken yet.

  bool takes_part() const { return targeted && !failed; }
  uint32_t route_count() const { return last_route - first_route; }
  bool up() const;
  // Returns kInvalidArgument unless the receiver has as many lanes as the plan.
  absl::Status CheckLaneCount(size_t there) const;
  // Takes a new address of a buffer. kInvalidArgument: there is no such buffer, or it has another
  // number of regions.
  absl::Status SetBufferAddress(uint32_t b, BufferAddress address);
  // Opens the buffer of this update on every lane, if its address is new. `routes` is the table
  // with this link's routes. kFailedPrecondition: the grants are not here yet. kInvalidArgument: a
  // route ends beyond its region.
  absl::Status OpenTarget(Fabric& fabric, const RouteTable& routes);
  // Opens all of the receiver's buffers on one of its lanes, except for those with a new address.
  absl::Status OpenBuffers(Fabric& fabric, const RouteTable& routes, ReceiverLane& lane) const;
  void CloseLanes(Fabric& fabric) const;
  BufferAccess& buffer(uint32_t lane) { return lanes[lane].buffers[buffer_index]; }

 private:
  absl::StatusOr<BufferAccess> Open(Fabric& fabric, const RouteTable& routes, ReceiverLane& lane,
                                    const BufferAddress& address) const;
  // Ends the imports that no buffer needs any more.
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
