// One worker, as the trainer's engine sees it: lanes, its buffers, and how far the update is.
#ifndef WAYBILL_CORE_ENGINE_TRAINER_PEER_H_
#define WAYBILL_CORE_ENGINE_TRAINER_PEER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/engine/update.h"
#include "core/fabric/fabric.h"
#include "core/plan/chunks.h"
#include "core/plan/route_table.h"

namespace waybill {

// A region of a worker's buffer, ready to be written to.
struct RegionAccess {
  RemoteRegionId remote = RemoteRegionId::kNone;
  uint64_t offset_bytes = 0;
  std::byte* mapped = nullptr;  // The region's first byte in this process, where it can be mapped.
};

struct BufferAccess {
  std::vector<RegionAccess> regions;
  RegionAccess ledger;
};

// Imports every region of a buffer, and maps those that can be. kFailedPrecondition: the worker's
// grants are not here yet.
absl::StatusOr<BufferAccess> OpenBuffer(Fabric& fabric, LaneId lane, const BufferAddress& address);

// One lane to a worker.
struct TrainerLane {
  LaneId id = LaneId::kNone;
  std::string nic;                    // Its NIC here; empty: any.
  std::vector<BufferAccess> buffers;  // From the worker's hello on.
  bool greeted = false;
  bool up = false;

  // Of the update at hand.
  uint32_t posted_left = 0;  // Chunks to be staged and posted.
  uint32_t posts_outstanding = 0;
  bool ended = false;  // Its last immediate is on the way or complete.
};

struct TrainerPeer {
  uint32_t worker = 0;
  uint32_t first_route = 0;  // Routes [first, last) of the table, and their chunks.
  uint32_t last_route = 0;
  uint32_t first_chunk = 0;
  uint32_t last_chunk = 0;
  std::vector<TrainerLane> lanes;  // The ledger goes by the first.

  std::vector<BufferAddress> addresses;  // While connecting.

  std::atomic<bool> failed = false;
  bool quiet = false;  // Failed, and nothing of it is in flight any more.

  // Of the update at hand.
  bool targeted = false;  // It goes to this worker.
  uint32_t buffer_index = 0;
  std::optional<BufferAddress> to_open;   // Renewed, and not imported anew yet.
  std::atomic<uint32_t> direct_left = 0;  // Chunks to be stored through the mapping.
  uint32_t ledger_sent = 0;               // Entries on the way or complete.

  bool takes_part() const { return targeted && !failed; }
  uint32_t route_count() const { return last_route - first_route; }
  bool up() const;
  uint32_t posts_outstanding() const;  // Of all lanes.
  // kInvalidArgument: the worker has not as many as the plan.
  absl::Status CheckLaneCount(size_t there) const;
  void BeginUpdate();
  // Opens the buffer anew that the worker has renewed, on every lane. kFailedPrecondition: its
  // grants are not here yet.
  absl::Status OpenRenewed(Fabric& fabric);
  // All of the worker's buffers, for one of its lanes.
  absl::Status OpenBuffers(Fabric& fabric, TrainerLane& lane) const;
  void CloseLanes(Fabric& fabric) const;
  // Every chunk is at its place or on its way.
  bool all_sent() const;
  // And so are the ledger and the immediates, and all of it is complete.
  bool done() const;
  BufferAccess& buffer(uint32_t lane) { return lanes[lane].buffers[buffer_index]; }
};

// The workers of a table, in its order, with their routes and chunks, and for each chunk the lane
// that carries it. A worker that `lanes` does not name has one, on any NIC.
struct Peers {
  std::deque<TrainerPeer> peers;  // Addresses are stable.
  std::vector<TrainerPeer*> peer_of_chunk;
  std::vector<uint32_t> lane_of_chunk;

  // kInvalidArgument: the plan has no route to it.
  absl::StatusOr<TrainerPeer*> Find(uint32_t worker);
  // This end of every lane.
  absl::StatusOr<std::vector<LaneOffer>> OpenLanes(Fabric& fabric);
  std::vector<LaneReport> Report(const Fabric& fabric) const;
  // Null, null: a lane that is none of theirs, or of a peer that failed.
  std::pair<TrainerPeer*, TrainerLane*> FindLane(LaneId id);
  bool up() const;  // Every lane.
  uint32_t posts_outstanding() const;
  // Of those that take part in the update.
  bool all_sent() const;
  // Nothing of it is on its way any more, to anyone.
  bool done() const;
};
Peers MakePeers(const RouteTable& routes, const ChunkList& list,
                const std::vector<PeerLanes>& lanes);

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_TRAINER_PEER_H_
