// SPDX-License-Identifier: Apache-2.0

// Plans a described job without running it: makes the manifests of all ranks and plans them.
#ifndef WAYBILL_TOOLS_WAYBILL_DESCRIBED_JOB_PLANNED_JOB_H_
#define WAYBILL_TOOLS_WAYBILL_DESCRIBED_JOB_PLANNED_JOB_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/plan/explain.h"
#include "core/plan/plan.h"
#include "tools/waybill/described_job/cluster_file.h"

namespace waybill {

struct PlannedJob {
  Plan plan;
  HeldBytes held;
  double seconds = 0;  // Planning took.
  std::vector<std::string> warnings;
};

// The plan knows the hosts and the NICs of the description.
//
// kInvalidArgument: whatever core/layout and core/plan refuse, by the tensor's or key's name.
absl::StatusOr<PlannedJob> PlanJob(const ClusterFile& file);

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_DESCRIBED_JOB_PLANNED_JOB_H_
