// One trainer, as a worker's engine sees it: lanes, and how far its part of the update is.
#ifndef WAYBILL_CORE_ENGINE_WORKER_SOURCE_H_
#define WAYBILL_CORE_ENGINE_WORKER_SOURCE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/engine/update.h"
#include "core/fabric/fabric.h"
#include "core/plan/chunks.h"
#include "core/plan/route_table.h"
#include "core/stage/work_pool.h"

namespace waybill {

struct SourceLane {
  LaneId id = LaneId::kNone;
  std::string nic;  // Its NIC here; empty: any.
  bool greeted = false;
};

struct Source {
  uint32_t trainer = 0;
  std::vector<SourceLane> lanes;
  uint32_t first_gate = 0;   // Where its lanes are counted.
  uint32_t first_route = 0;  // Its routes are neighbours in the ledger.
  uint32_t last_route = 0;
  uint32_t first_chunk = 0;
  uint32_t last_chunk = 0;
  bool failed = false;

  // Of the update at hand.
  bool verifying = false;
  bool verified = false;
  std::atomic<bool> digested = false;  // The pool is through with it.
  std::unique_ptr<WorkPool::Batch> digest_batch;

  // kInvalidArgument: the trainer has not as many as the plan.
  absl::Status CheckLaneCount(size_t there) const;
  void Report(const Fabric& fabric, std::vector<LaneReport>& reports) const;
};

// Fills `sources` with the trainers of a table, in its order. A trainer that `lanes` does not name
// has one, on any NIC. How many lanes there are in all.
uint32_t MakeSources(const RouteTable& arrivals, const ChunkList& chunks,
                     const std::vector<PeerLanes>& lanes, std::deque<Source>& sources);

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_WORKER_SOURCE_H_
