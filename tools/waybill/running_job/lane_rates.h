// SPDX-License-Identifier: Apache-2.0

// Summarises how fast the lanes of a job carried the latest update.
#ifndef WAYBILL_TOOLS_WAYBILL_RUNNING_JOB_LANE_RATES_H_
#define WAYBILL_TOOLS_WAYBILL_RUNNING_JOB_LANE_RATES_H_

#include <map>
#include <string>

#include "core/protocol/messages.pb.h"

namespace waybill {

// In bytes a second.
struct LaneRates {
  double slowest = 0;
  double median = 0;  // The lower one of the two in the middle.
  double fastest = 0;
  std::string slowest_lane;  // Its ends, as "trainer 0 to worker 3 of a".
};

// Returns the rates of the trainers' lanes by the name of their fabric. A fabric without a lane
// that carried enough to be rated is missing.
std::map<std::string, LaneRates> RatesOfLanes(const proto::StatusReply& status);

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_RUNNING_JOB_LANE_RATES_H_
