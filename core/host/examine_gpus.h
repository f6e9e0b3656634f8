// SPDX-License-Identifier: Apache-2.0

// Examines what lies between a host's GPUs and its NICs, and what limits it.
#ifndef WAYBILL_CORE_HOST_EXAMINE_GPUS_H_
#define WAYBILL_CORE_HOST_EXAMINE_GPUS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/device/gpu_survey.h"
#include "core/fabric/verbs/survey.h"
#include "core/host/finding.h"

namespace waybill {

// The GPUs' driver, and for each GPU its link, what reaches its memory, its nearest NIC, and what
// the processor does to traffic between the two. `root` stands before /sys and /proc.
std::vector<Finding> ExamineGpus(const std::string& root,
                                 const absl::StatusOr<std::vector<SurveyedGpu>>& gpus,
                                 const std::vector<SurveyedPort>& ports);

}  // namespace waybill

#endif  // WAYBILL_CORE_HOST_EXAMINE_GPUS_H_
