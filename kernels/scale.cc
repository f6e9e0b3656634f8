// SPDX-License-Identifier: Apache-2.0

#include "kernels/scale.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace waybill::kernels {
namespace {

constexpr uint32_t kMantissaMask = 0x007f'ffff;
constexpr int kLeastE8m0Exponent = -127;
constexpr int kLargestE8m0Exponent = 127;

// floor(log2(value)) of a normal float; -127 of a smaller one, 128 of infinity.
int ExponentOf(float value) { return static_cast<int>(std::bit_cast<uint32_t>(value) >> 23) - 127; }

// 2^exponent, of those that E8M0 has: of these the least is half of the least normal float.
float PowerOfTwo(int exponent) {
  return std::bit_cast<float>(
      exponent == kLeastE8m0Exponent ? 0x0040'0000 : static_cast<uint32_t>(exponent + 127) << 23);
}

// The least e such that 2^e is not below `value`, where that is above -127.
int CeilExponent(float value) {
  const uint32_t mantissa = std::bit_cast<uint32_t>(value) & kMantissaMask;
  const int exponent = ExponentOf(value);
  // 2^-127 is half of the least normal float.
  if (exponent == kLeastE8m0Exponent) return mantissa <= (kMantissaMask >> 1) + 1 ? -127 : -126;
  return exponent + (mantissa != 0 ? 1 : 0);
}

int ExponentOfScale(float maximum, const ScaleRule& rule) {
  const int largest_exponent = ExponentOf(LargestOf(rule.to));
  switch (rule.rounding) {
    case ScaleRounding::kNone:
    case ScaleRounding::kPowerOfTwoUp:
      return CeilExponent(maximum / LargestOf(rule.to));
    case ScaleRounding::kFloorExponent:
      return ExponentOf(maximum) - largest_exponent;
    case ScaleRounding::kEvenExponent: {
      const uint32_t half_a_unit = rule.to == Narrow::kE4m3 ? 1 << 19 : 1 << 20;
      const uint32_t rounded = std::bit_cast<uint32_t>(maximum) + half_a_unit;
      return ExponentOf(std::bit_cast<float>(rounded)) - largest_exponent;
    }
    case ScaleRounding::kCeilExponent:
      return CeilExponent(maximum) - largest_exponent;
  }
  __builtin_unreachable();
}

}  // namespace

Scale ScaleOf(float maximum, const ScaleRule& rule) {
  if (std::isnan(maximum)) {
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    return {kNan, kNan};
  }
  maximum = std::max(maximum, rule.epsilon);
  const float largest = LargestOf(rule.to);
  float scale;
  if (rule.rounding == ScaleRounding::kNone) {
    maximum = std::max(maximum, largest * std::numeric_limits<float>::min());
    scale = maximum / largest;
    if (rule.division == Division::kMultiplyByLargestOverMaximum) {
      return {scale, largest / maximum};
    }
  } else {
    scale = PowerOfTwo(
        std::clamp(ExponentOfScale(maximum, rule), kLeastE8m0Exponent, kLargestE8m0Exponent));
  }
  return {scale, rule.division == Division::kDivide ? scale : 1.0F / scale};
}

uint8_t ToE8m0(float power_of_two) {
  return static_cast<uint8_t>(std::bit_cast<uint32_t>(power_of_two) >> 23);
}

float FromE8m0(uint8_t code) {
  if (code == 0xff) return std::numeric_limits<float>::quiet_NaN();
  return PowerOfTwo(code - 127);
}

}  // namespace waybill::kernels
