// SPDX-License-Identifier: Apache-2.0

// The data of the live page of a job.
#ifndef WAYBILL_TOOLS_WAYBILL_OBSERVE_LIVE_DATA_H_
#define WAYBILL_TOOLS_WAYBILL_OBSERVE_LIVE_DATA_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/time/time.h"
#include "core/protocol/messages.pb.h"
#include "tools/waybill/observe/update_watch.h"

namespace waybill {

// Returns the data of MakePage(): that of StatusToPage(), each group's update, and the last
// failures.
nlohmann::json LiveData(const proto::StatusReply& status, const UpdateWatch& watch, absl::Time now);

// The same of a controller that does not lead the job.
nlohmann::json StandbyData(const std::string& job);

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_OBSERVE_LIVE_DATA_H_
