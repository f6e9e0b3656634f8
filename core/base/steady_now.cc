// SPDX-License-Identifier: Apache-2.0

#include "core/base/steady_now.h"

namespace waybill {

absl::Time SteadyNow() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

std::chrono::steady_clock::time_point ToSteadyTimePoint(absl::Time time) {
  return std::chrono::steady_clock::time_point(absl::ToChronoNanoseconds(time - absl::UnixEpoch()));
}

}  // namespace waybill
