// SPDX-License-Identifier: Apache-2.0

// A live job's reports as the page shows them.
#ifndef WAYBILL_TOOLS_WAYBILL_RUNNING_JOB_STATUS_PAGE_H_
#define WAYBILL_TOOLS_WAYBILL_RUNNING_JOB_STATUS_PAGE_H_

#include <nlohmann/json.hpp>

#include "core/protocol/messages.pb.h"

namespace waybill {

// What is said of a worker that takes no changes any more (ReceiverCounts::wrong_bases).
inline constexpr char kWrongBase[] =
    "has completed a version from memory that was changed, and takes whole versions until it joins "
    "again";

// What is said of a worker whose RankStatus is approximate.
inline constexpr char kApproximate[] =
    "shows a version of which a part is older: trainers published it with `tensors` or `at_most`";

// Returns the data of MakePage(). The times are those of each rank's latest update, counted from
// the first stage of that rank: clocks of hosts differ. What the heat map shows is there if the
// status has it, and changes only with "terms".
nlohmann::json StatusToPage(const proto::StatusReply& status);

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_RUNNING_JOB_STATUS_PAGE_H_
