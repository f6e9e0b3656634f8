// SPDX-License-Identifier: Apache-2.0

// The state that a receiver's engine keeps of one sender: its lanes, and the progress of its
// routes.
#ifndef WAYBILL_CORE_ENGINE_SENDER_LINK_H_
#define WAYBILL_CORE_ENGINE_SENDER_LINK_H_

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

struct SenderLane {
  LaneId id = LaneId::kNone;
  std::string nic;       // The receiver's NIC; empty means any.
  bool kept = false;     // The lane was opened in an earlier term.
  bool granted = false;  // The sender has granted its ring, in this term.
};

struct SenderLink {
  uint32_t index = 0;   // The sender's place in the ledger, which is its number in ReceiveSchedule.
  uint32_t sender = 0;  // The sender's number in the plan.
  RankId id;            // A sender, or a receiver that relays or lends.
  std::vector<SenderLane> lanes;
  // The sender's routes are [first, last), which are neighbours in the ledger.
  uint32_t first_route = 0;
  uint32_t last_route = 0;
  uint64_t bytes = 0;  // The number of bytes that these routes write.
  uint32_t chunk_count = 0;
  bool failed = false;

  // The state in the current update. The sender's bytes that are counted in
  // ReceiverCounts::arrived_bytes.
  uint64_t counted_bytes = 0;
  absl::Span<const uint32_t> wave;         // The chunks that are being digested.
  std::atomic<bool> wave_is_over = false;  // The pool has digested the wave.
  std::unique_ptr<WorkPool::Batch> digest_batch;

  // Resets the counts for an update of which nothing has arrived.
  void BeginUpdate() {
    counted_bytes = 0;
    wave = {};
  }

  // Returns kInvalidArgument unless the sender has as many lanes as the plan.
  absl::Status CheckLaneCount(size_t there) const;
  void Report(const Fabric& fabric, std::vector<LaneReport>& reports) const;
};

// Fills `links` with the senders of a table, in its order.
//
// kInvalidArgument: `lanes` does not name one of the senders.
absl::Status MakeSenderLinks(const RouteTable& arrivals, const ChunkList& chunks,
                             const TermLanes& lanes, std::deque<SenderLink>& links);

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_SENDER_LINK_H_
