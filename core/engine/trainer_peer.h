// One worker, as the trainer's engine sees it: a lane, its buffers, and how far the update is.
#ifndef WAYBILL_CORE_ENGINE_TRAINER_PEER_H_
#define WAYBILL_CORE_ENGINE_TRAINER_PEER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/engine/update.h"
#include "core/fabric/fabric.h"

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

struct TrainerPeer {
  uint32_t worker = 0;
  LaneId lane = LaneId::kNone;
  uint32_t first_route = 0;  // Routes [first, last) of the table, and their chunks.
  uint32_t last_route = 0;
  uint32_t first_chunk = 0;
  uint32_t last_chunk = 0;

  // Connecting.
  std::vector<BufferAddress> addresses;
  std::vector<BufferAccess> buffers;
  bool greeted = false;  // Its hello came.
  bool up = false;

  std::atomic<bool> failed = false;

  // Of the update at hand.
  bool targeted = false;  // It goes to this worker.
  uint32_t buffer_index = 0;
  std::optional<BufferAddress> to_open;   // Renewed, and not imported anew yet.
  std::atomic<uint32_t> direct_left = 0;  // Chunks to be stored through the mapping.
  uint32_t posted_left = 0;               // Chunks to be staged and posted.
  uint32_t posts_outstanding = 0;
  uint32_t ledger_sent = 0;  // Entries on the way or complete.

  bool takes_part() const { return targeted && !failed; }
  uint32_t route_count() const { return last_route - first_route; }
};

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_TRAINER_PEER_H_
