// SPDX-License-Identifier: Apache-2.0

// Predicts the update of a described job, and presents it.
#ifndef WAYBILL_TOOLS_WAYBILL_DESCRIBED_JOB_PREDICTION_H_
#define WAYBILL_TOOLS_WAYBILL_DESCRIBED_JOB_PREDICTION_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/simulate/result.h"
#include "core/simulate/traffic.h"
#include "tools/waybill/described_job/cluster_file.h"

namespace waybill {

// One job of a sweep.
struct SweepPoint {
  uint32_t ranks = 0;
  double seconds = 0;
  double bound_seconds = 0;
};

struct Prediction {
  ClusterFile file;
  simulate::Traffic traffic;
  simulate::Result result;
  double planning_seconds = 0;
  uint64_t plan_hash = 0;
  std::string swept;  // "workers", or empty.
  std::vector<SweepPoint> sweep;
};

// Plans and simulates the job. kInvalidArgument: whatever the layout, the planner and the
// simulation refuse.
absl::StatusOr<Prediction> Predict(const ClusterFile& file);

// Predicts the job with other numbers of ranks as well: "workers=32..512" doubles from 32 to 512.
// kInvalidArgument: not such a text, or a number of ranks that the sharding cannot have.
absl::Status Sweep(const std::string& what, Prediction& prediction);

std::string FormatPrediction(const Prediction& prediction);
// All of it, as the page shows it and as --json prints it.
nlohmann::json PredictionToJson(const Prediction& prediction);

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_DESCRIBED_JOB_PREDICTION_H_
