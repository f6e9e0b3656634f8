// SPDX-License-Identifier: Apache-2.0

// Deadlines for gRPC.
#ifndef WAYBILL_CORE_CONTROL_GRPC_DEADLINE_H_
#define WAYBILL_CORE_CONTROL_GRPC_DEADLINE_H_

#include <grpc/support/time.h>
#include <time.h>

#include "absl/time/time.h"

namespace waybill {

// Converts a time of SteadyNow() to a gRPC deadline.
inline gpr_timespec ToGrpcDeadline(absl::Time deadline) {
  const timespec time = absl::ToTimespec(deadline);
  return {.tv_sec = time.tv_sec,
          .tv_nsec = static_cast<int32_t>(time.tv_nsec),
          .clock_type = GPR_CLOCK_MONOTONIC};
}

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_GRPC_DEADLINE_H_
