// SPDX-License-Identifier: Apache-2.0

// The costs and the sizes of updates in which trainers send only what changed since the version
// before (core/change). The elements are of two bytes, and change by one unit in the last place at
// random places. The numbers are measured: docs/performance.md, "What changed".
#ifndef WAYBILL_CORE_SIMULATE_CHANGED_PART_H_
#define WAYBILL_CORE_SIMULATE_CHANGED_PART_H_

#include <cmath>

namespace waybill::simulate {

inline constexpr double kElementBytes = 2;
// The time of the encoder and of the decoder for each element that changed, beside reading and
// copying.
inline constexpr double kEncodeSeconds = 15e-9;
inline constexpr double kDecodeSeconds = 10e-9;

// Returns the encoded bytes of so many, of whose elements the part `changed`, from 0 to 0.5,
// differ. The code needs 1.13 (for 1 %) to 1.33 (for a half) of the entropy: of the places, and of
// a sign for each change.
inline double EncodedBytes(double bytes, double changed) {
  if (changed <= 0) return 0;
  const double places = -changed * std::log2(changed) - (1 - changed) * std::log2(1 - changed);
  return bytes / (8 * kElementBytes) * (places + changed) * (1.13 + 0.4 * changed);
}

}  // namespace waybill::simulate

#endif  // WAYBILL_CORE_SIMULATE_CHANGED_PART_H_
