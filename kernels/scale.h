// From a block's largest magnitude to its scale. Each way is somebody's: README.md says whose.

#ifndef KERNELS_SCALE_H_
#define KERNELS_SCALE_H_

#include <cstdint>

#include "kernels/elements.h"

namespace waybill::kernels {

// With m the block's maximum and L the largest magnitude of the narrow type.
enum class ScaleRounding : uint8_t {
  kNone,          // m / L, a float.
  kPowerOfTwoUp,  // The least power of two that is not below m / L. NVIDIA's RCEIL.
  // Powers of two as OCP's MX has them: 2^(the exponent that m becomes) / 2^(the exponent of L).
  kFloorExponent,  // Down: what the specification of MX says.
  kEvenExponent,   // Of m rounded (half up) to as many bits as the narrow type has.
  kCeilExponent,   // Up.
};

// How an element becomes what is rounded to the narrow type. With powers of two all give the same.
enum class Division : uint8_t {
  kMultiplyByReciprocal,          // x * (1 / scale), each rounded to a float.
  kMultiplyByLargestOverMaximum,  // x * (L / m). With powers of two: as the first.
  kDivide,                        // x / scale
};

struct ScaleRule {
  Narrow to = Narrow::kE4m3;
  float epsilon = 1e-4F;  // Smaller maxima count as this. Not a NaN, not negative; 0 for MX.
  ScaleRounding rounding = ScaleRounding::kNone;
  Division division = Division::kMultiplyByReciprocal;
};

struct Scale {
  float scale;   // Of dequantisation: an element is about its code's value times this.
  float factor;  // What QuantiseRows multiplies elements by, or divides them by.
};

// Every maximum has a scale above 0 and a finite factor unless it is an infinity or a NaN:
//   - kNone: maxima so small that the scale would be below 2^-126, the least normal float, count as
//     those that give 2^-126. So a block of zeros has that scale with an epsilon of 0.
//   - Powers of two are held within [2^-127, 2^127], which E8M0 has.
// A NaN gives NaNs; an infinity an infinite scale (kNone) or a large one, as the references do.
Scale ScaleOf(float maximum, const ScaleRule& rule);

// The byte of a power of two in [2^-127, 2^127]: its exponent plus 127. 0xff for a NaN.
uint8_t ToE8m0(float power_of_two);
float FromE8m0(uint8_t code);

}  // namespace waybill::kernels

#endif  // KERNELS_SCALE_H_
