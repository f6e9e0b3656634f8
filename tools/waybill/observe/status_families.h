// SPDX-License-Identifier: Apache-2.0

// Makes metrics of a controller's status.
#ifndef WAYBILL_TOOLS_WAYBILL_OBSERVE_STATUS_FAMILIES_H_
#define WAYBILL_TOOLS_WAYBILL_OBSERVE_STATUS_FAMILIES_H_

#include <prometheus/metric_family.h>

#include <vector>

#include "absl/time/time.h"
#include "core/protocol/messages.pb.h"
#include "tools/waybill/observe/counter_ledger.h"

namespace waybill {

// kEach adds series for each rank; their number grows with the job.
enum class RankSeries { kNone, kEach };

// Returns the metrics of a status. `ledger` keeps what ranks have counted from one call to the
// next.
std::vector<prometheus::MetricFamily> StatusFamilies(const proto::StatusReply& status,
                                                     RankSeries ranks, CounterLedger& ledger,
                                                     absl::Time now);

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_OBSERVE_STATUS_FAMILIES_H_
