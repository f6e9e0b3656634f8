// SPDX-License-Identifier: Apache-2.0

// The lanes of a job, as a table for people.
#ifndef WAYBILL_TOOLS_WAYBILL_RUNNING_JOB_LANE_TABLE_H_
#define WAYBILL_TOOLS_WAYBILL_RUNNING_JOB_LANE_TABLE_H_

#include <string>
#include <vector>

#include "absl/types/span.h"

namespace waybill {

enum class LaneDetail { kSummary, kAll };

// Returns a line for each way that lanes take, with their number. The summary leaves ports out, so
// that all lanes between two hosts, or by two NICs, are one line.
std::string LaneTable(absl::Span<const std::string> paths, LaneDetail detail);

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_RUNNING_JOB_LANE_TABLE_H_
