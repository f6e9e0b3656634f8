// SPDX-License-Identifier: Apache-2.0

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
#include "absl/types/span.h"
#include "core/fabric/fabric.h"
#include "core/plan/chunks.h"
#include "core/plan/route_table.h"
#include "core/protocol/update.h"
#include "core/stage/work_pool.h"

namespace waybill {

struct TrainerLane {
  LaneId id = LaneId::kNone;
  std::string nic;       // The worker's NIC; empty means any.
  bool kept = false;     // It is there since an earlier term.
  bool granted = false;  // The trainer has granted its ring, in this term.
};

struct TrainerLink {
  uint32_t index = 0;    // In the order of the ledger, as ReceiveSchedule counts senders.
  uint32_t trainer = 0;  // As the plan counts trainers.
  RankId id;             // A trainer, or a worker that relays or lends.
  std::vector<TrainerLane> lanes;
  uint32_t first_route = 0;  // Routes [first, last), neighbours in the ledger.
  uint32_t last_route = 0;
  uint64_t bytes = 0;  // The number that these routes write.
  uint32_t chunk_count = 0;
  bool failed = false;

  // The update at hand.
  uint64_t counted_bytes = 0;       // How much of what it sends is in WorkerCounts::arrived_bytes.
  absl::Span<const uint32_t> wave;  // The chunks that are being digested.
  std::atomic<bool> wave_is_over = false;  // The pool has done it.
  std::unique_ptr<WorkPool::Batch> digest_batch;

  // Nothing has come.
  void BeginUpdate() {
    counted_bytes = 0;
    wave = {};
  }

  // Returns kInvalidArgument unless the trainer has as many lanes as the plan.
  absl::Status CheckLaneCount(size_t there) const;
  void Report(const Fabric& fabric, std::vector<LaneReport>& reports) const;
};

// Fills `links` with the trainers of a table, in its order.
//
// kInvalidArgument: `lanes` does not name one of the trainers.
absl::Status MakeTrainerLinks(const RouteTable& arrivals, const ChunkList& chunks,
                              const TermLanes& lanes, std::deque<TrainerLink>& links);

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_TRAINER_LINK_H_
