// SPDX-License-Identifier: Apache-2.0

// How long a job waits where its users say nothing. waybill.h and the bindings state these numbers.
#ifndef WAYBILL_CORE_PROTOCOL_TIMEOUTS_H_
#define WAYBILL_CORE_PROTOCOL_TIMEOUTS_H_

#include "absl/time/time.h"

namespace waybill {

// For a rank that joins, until the others are there.
inline constexpr absl::Duration kJoinTimeout = absl::Minutes(2);
// For a publish, from the call to the outcome.
inline constexpr absl::Duration kPublishTimeout = absl::Minutes(1);
// For what a group catches up on, to be moved. Only a worker or lender that stands still needs it:
// whatever dies is noticed at once.
inline constexpr absl::Duration kCatchUpTimeout = absl::Minutes(10);
// How long after its deadline a rank still waits for the controller to report the timeout.
inline constexpr absl::Duration kAnswerMargin = absl::Milliseconds(500);

// How long writes of an update that was aborted may be outstanding before their lanes are closed.
inline constexpr absl::Duration kQuiescenceTimeout = absl::Seconds(1);

}  // namespace waybill

#endif  // WAYBILL_CORE_PROTOCOL_TIMEOUTS_H_
