// SPDX-License-Identifier: Apache-2.0

// The layouts of the narrow types, in the form that vector code needs.

#ifndef KERNELS_NARROW_LAYOUT_H_
#define KERNELS_NARROW_LAYOUT_H_

#include <cstdint>

#include "kernels/elements.h"

namespace waybill::kernels {

template <Narrow type>
struct NarrowLayout;

template <>
struct NarrowLayout<Narrow::kE4m3> {
  static constexpr int kMantissaBits = 3;
  static constexpr int kBias = 7;
  // The exponent of the smallest normal number, as the field of a float.
  static constexpr uint32_t kLeastField = 127 - 6;
  static constexpr uint8_t kLargestCode = 0x7e;
};

template <>
struct NarrowLayout<Narrow::kE5m2> {
  static constexpr int kMantissaBits = 2;
  static constexpr int kBias = 15;
  static constexpr uint32_t kLeastField = 127 - 14;
  static constexpr uint8_t kLargestCode = 0x7b;
};

}  // namespace waybill::kernels

#endif  // KERNELS_NARROW_LAYOUT_H_
