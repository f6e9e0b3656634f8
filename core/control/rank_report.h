// SPDX-License-Identifier: Apache-2.0

// A rank's report about itself, for its user and for the controller.
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

// The latest update is the update that was begun last. It may have failed.
struct TrainerReport {
  uint64_t version = 0;        // The latest update's.
  uint64_t planned_bytes = 0;  // Bytes sent in every update of this plan.
  TransferCounts counts;       // The latest update's, so far.
  TransferCounts total;        // The sum over all updates that were sent before the latest.
  // What was left out of all versions: elements that had changed, and bytes of tensors that were
  // not selected.
  uint64_t left_out_elements = 0;
  uint64_t unselected_bytes = 0;
  StageSpans stages;  // The latest update's.
  // The times at which the parts of the latest update began on this rank.
  absl::Time published;  // publish() was called.
  absl::Time started;    // START arrived, and data began to move.
  absl::Time sent;
  absl::Duration enqueued;    // How long SenderEngine::Start() took, summed over the groups.
  absl::Duration maxima_cpu;  // Processor time for computing maxima before they are traded.
  absl::Duration trade_cpu;   // Processor time for trading them.
  uint64_t ring_high_water_bytes = 0;
  // Shards with NaNs or infinities among the elements that the last sent update quantised.
  std::vector<NonFinite> nonfinite;
  std::vector<LaneReport> lanes;    // How each peer is reached.
  std::vector<LaneRate> rates;      // The latest update's.
  std::vector<std::string> groups;  // The groups in whose terms this rank's lanes work.
};

struct WorkerReport {
  uint64_t version = 0;        // The latest update's.
  uint64_t planned_bytes = 0;  // Bytes received in every update of this plan.
  uint64_t arrived_bytes = 0;  // The latest update's, so far.
  StageSpans stages;           // The latest update's.
  ReceiverCounts counts;
  std::vector<LaneReport> lanes;  // How each peer is reached.
  // The worker voted for a version, and lost the controller before it learned the decision.
  bool in_doubt = false;
  // Another group lends a version that this worker's group has missed.
  bool catching_up = false;
  // What is shown is all of the trainers' tensors, exactly.
  bool exact = true;
};

// Encode a report for the controller, with the fabric's counters added to the rank's own.
proto::RankReport EncodeReport(const TrainerReport& report, const Fabric& fabric);
proto::RankReport EncodeReport(const WorkerReport& report, const Fabric& fabric);

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_RANK_REPORT_H_
