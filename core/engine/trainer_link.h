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
#include "absl/status/statusor.h"
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
  uint32_t trainer = 0;  // As the plan counts trainers.
  RankId id;             // A trainer, or a worker that relays or lends.
  std::vector<TrainerLane> lanes;
  uint32_t first_gate = 0;   // The number of its first lane in the arrival gate.
  uint32_t first_route = 0;  // Routes [first, last), neighbours in the ledger.
  uint32_t last_route = 0;
  uint64_t bytes = 0;  // The number that these routes write.
  uint32_t first_chunk = 0;
  uint32_t last_chunk = 0;
  bool failed = false;

  // The update at hand.
  bool verifying = false;
  bool verified = false;
  // Its chunks that can be digested, in the order in which they came. They are taken in waves: one
  // is all that have come since the last one began.
  std::vector<uint32_t> ready;
  std::vector<bool> is_ready;  // By chunk, from first_chunk.
  uint32_t wave_begin = 0;     // In `ready`.
  uint32_t wave_end = 0;       // Behind the last one that was taken.
  uint32_t counted = 0;        // Behind the last one that is digested, and is in counted_bytes.
  uint64_t counted_bytes = 0;  // How much of what it sends is in WorkerCounts::arrived_bytes.
  uint32_t relayed = 0;        // In `ready`: behind the last one that may be relayed.
  bool wave_runs = false;
  std::atomic<bool> wave_is_over = false;  // The pool has done it.
  std::unique_ptr<WorkPool::Batch> digest_batch;

  uint32_t chunk_count() const { return last_chunk - first_chunk; }
  // Nothing has come.
  void BeginUpdate();
  // A chunk can be digested; again it does nothing.
  void AddReady(uint32_t chunk);
  // Whether all are digested.
  bool digested() const { return !wave_runs && wave_end == chunk_count(); }

  // Returns kInvalidArgument unless the trainer has as many lanes as the plan.
  absl::Status CheckLaneCount(size_t there) const;
  void Report(const Fabric& fabric, std::vector<LaneReport>& reports) const;
};

// Fills `links` with the trainers of a table, in its order. Returns how many lanes there are in
// all.
//
// kInvalidArgument: `lanes` does not name one of the trainers.
absl::StatusOr<uint32_t> MakeTrainerLinks(const RouteTable& arrivals, const ChunkList& chunks,
                                          const TermLanes& lanes, std::deque<TrainerLink>& links);

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_TRAINER_LINK_H_
