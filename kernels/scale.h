// SPDX-License-Identifier: Apache-2.0

// Computes the scale of a block from its largest magnitude. README.md says who uses which way.

#ifndef KERNELS_SCALE_H_
#define KERNELS_SCALE_H_

#include <cstdint>

#include "kernels/elements.h"

namespace waybill::kernels {

// The kinds of scales. m is the block's maximum, and L the largest magnitude of the narrow type.
enum class ScaleRounding : uint8_t {
  kNone,          // m / L, a float.
  kPowerOfTwoUp,  // The smallest power of two that is not below m / L. NVIDIA's RCEIL.
  // Powers of two as in OCP MX: 2^(the rounded exponent of m) / 2^(the exponent of L).
  kFloorExponent,  // Rounded down, as the MX specification says.
  kEvenExponent,   // The exponent of m after rounding it (half up) to the bits of the narrow type.
  kCeilExponent,   // Rounded up.
};

// How an element is scaled before it is rounded to the narrow type. With powers of two all are
// equal.
enum class Division : uint8_t {
  kMultiplyByReciprocal,          // x * (1 / scale), each rounded to a float.
  kMultiplyByLargestOverMaximum,  // x * (L / m). With powers of two, as the first.
  kDivide,                        // x / scale
};

struct ScaleRule {
  Narrow to = Narrow::kE4m3;
  float epsilon = 1e-4F;  // Lower bound of maxima. Not a NaN, not negative; 0 for MX.
  ScaleRounding rounding = ScaleRounding::kNone;
  Division division = Division::kMultiplyByReciprocal;
};

struct Scale {
  float scale;   // An element is about its code's value times this.
  float factor;  // QuantiseRows multiplies or divides elements by this.
};

// Returns the scale of a block with maximum `maximum`. Unless it is an infinity or a NaN, the scale
// is above 0 and the factor is finite:
//   - kNone: the scale is at least 2^-126, the smallest normal float. So a block of zeros has that
//     scale with an epsilon of 0.
//   - Powers of two are clamped to [2^-127, 2^127], the range of E8M0.
// A NaN gives NaNs. An infinity gives an infinite scale (kNone) or a large one, as in the
// references.
Scale ScaleOf(float maximum, const ScaleRule& rule);

// Returns the byte of a power of two in [2^-127, 2^127]: its exponent plus 127. A NaN gives 0xff.
uint8_t ToE8m0(float power_of_two);
float FromE8m0(uint8_t code);

}  // namespace waybill::kernels

#endif  // KERNELS_SCALE_H_
