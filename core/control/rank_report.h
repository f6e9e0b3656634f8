// SPDX-License-Identifier: Apache-2.0

// What a rank reports about itself, as its user reads it and as the controller is told.
#ifndef WAYBILL_CORE_CONTROL_RANK_REPORT_H_
#define WAYBILL_CORE_CONTROL_RANK_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/engine/receiver_engine.h"
#include "core/engine/timeline.h"
#include "core/fabric/fabric.h"
#include "core/protocol/messages.pb.h"
#include "core/protocol/update.h"

namespace waybill {

// The latest update is the one that was begun last; it may have failed.
struct TrainerReport {
  uint64_t version = 0;        // The latest update's.
  uint64_t planned_bytes = 0;  // Sent in every update of this plan.
  TransferCounts counts;       // The latest update's, so far.
  TransferCounts total;        // Those of all updates that were sent before it.
  StageSpans stages;           // The latest update's.
  // When the parts of the latest update began on this rank.
  absl::Time published;  // publish() was called.
  absl::Time started;    // START came: data moves from here on.
  absl::Time sent;
  absl::Duration enqueued;    // How long handing the plan to the engine took.
  absl::Duration maxima_cpu;  // Processor time for working out maxima before they are traded.
  absl::Duration trade_cpu;   // Processor time for trading them.
  uint64_t ring_high_water_bytes = 0;
  // Shards with NaNs or infinities among what the last update that was sent quantised.
  std::vector<NonFinite> nonfinite;
  std::vector<LaneReport> lanes;    // How each peer is reached.
  std::vector<std::string> groups;  // Those in whose terms this rank's lanes carry.
};

struct WorkerReport {
  uint64_t version = 0;        // The latest update's.
  uint64_t planned_bytes = 0;  // Received in every update of this plan.
  uint64_t arrived_bytes = 0;  // The latest update's, so far.
  StageSpans stages;           // The latest update's.
  ReceiverCounts counts;
  std::vector<LaneReport> lanes;  // How each peer is reached.
  // It voted for a version and lost the controller before it heard the decision.
  bool in_doubt = false;
  // Another group lends the version that this one has missed.
  bool catching_up = false;
};

// What the controller is told, with the fabric's counters among the rank's own.
proto::RankReport EncodeReport(const TrainerReport& report, const Fabric& fabric);
proto::RankReport EncodeReport(const WorkerReport& report, const Fabric& fabric);

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_RANK_REPORT_H_
