// One trainer, as a worker's engine sees it: its lanes, and how far its part of the update is.
#ifndef WAYBILL_CORE_ENGINE_TRAINER_LINK_H_
#define WAYBILL_CORE_ENGINE_TRAINER_LINK_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/fabric/fabric.h"
#include "core/plan/chunks.h"
#include "core/plan/route_table.h"
#include "core/protocol/update.h"
#include "core/stage/work_pool.h"

namespace waybill {

struct TrainerLane {
  LaneId id = LaneId::kNone;
  std::string nic;       // The worker's NIC; empty means any.
  bool granted = false;  // The trainer has granted its ring.
};

struct TrainerLink {
  uint32_t trainer = 0;
  std::vector<TrainerLane> lanes;
  uint32_t first_gate = 0;   // The number of its first lane in the arrival gate.
  uint32_t first_route = 0;  // Routes [first, last), neighbours in the ledger.
  uint32_t last_route = 0;
  uint32_t first_chunk = 0;
  uint32_t last_chunk = 0;
  bool failed = false;

  // The update at hand.
  bool verifying = false;
  bool verified = false;
  std::atomic<bool> digested = false;  // The pool has computed all its digests.
  std::unique_ptr<WorkPool::Batch> digest_batch;

  // Returns kInvalidArgument unless the trainer has as many lanes as the plan.
  absl::Status CheckLaneCount(size_t there) const;
  void Report(const Fabric& fabric, std::vector<LaneReport>& reports) const;
};

// Fills `sources` with the trainers of a table, in its order. A trainer that `lanes` does not name
// has one, on any NIC. How many lanes there are in all.
uint32_t MakeTrainerLinks(const RouteTable& arrivals, const ChunkList& chunks,
                          const std::vector<PeerLanes>& lanes, std::deque<TrainerLink>& links);

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_TRAINER_LINK_H_
