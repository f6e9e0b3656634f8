// SPDX-License-Identifier: Apache-2.0

// The arithmetic of one element and of one word, in operations that every processor has: both the
// kernels of a GPU and their tests on the host are compiled from it, so what is tested there is
// what runs here. Equal to scalar.h, scalar_elements.h and scale.h bit for bit.
//
// Needs IEEE arithmetic as written: no contraction, exact division, no flushing to zero.

#ifndef KERNELS_CUDA_ELEMENT_ARITHMETIC_H_
#define KERNELS_CUDA_ELEMENT_ARITHMETIC_H_

#include <bit>
#include <cstdint>

#include "kernels/elements.h"
#include "kernels/scalar.h"
#include "kernels/scale.h"

namespace waybill::kernels::cuda {

inline constexpr uint32_t kMagnitudeBits = 0x7fff'ffff;
inline constexpr uint32_t kInfinityBits = 0x7f80'0000;
inline constexpr uint32_t kNanBits = 0x7fc0'0000;

constexpr uint32_t BitsOf(float value) { return std::bit_cast<uint32_t>(value); }
constexpr float FloatOf(uint32_t bits) { return std::bit_cast<float>(bits); }
constexpr bool IsNanBits(uint32_t bits) { return (bits & kMagnitudeBits) > kInfinityBits; }

// A binary float with subnormals: as scalar::Layout.
template <int kMantissaBits, int kLeastExponent>
struct FloatLayout {
  static constexpr int kDroppedBits = 23 - kMantissaBits;
  static constexpr uint32_t kLeastNormalBits = static_cast<uint32_t>(127 + kLeastExponent) << 23;
  // The exponent of a float whose last place is the unit of the layout's subnormals.
  static constexpr uint32_t kUnitBits = static_cast<uint32_t>(150 + kLeastExponent - kMantissaBits)
                                        << 23;
  static constexpr uint32_t kExponentShift = static_cast<uint32_t>(126 + kLeastExponent);

  // As scalar::NearestCode. `magnitude` is finite and not negative.
  static constexpr uint32_t Nearest(float magnitude) {
    const uint32_t bits = BitsOf(magnitude);
    if (bits < kLeastNormalBits) {
      // The sum is rounded to that unit, to nearest even.
      return BitsOf(magnitude + FloatOf(kUnitBits)) - kUnitBits;
    }
    const uint32_t odd = bits >> kDroppedBits & 1;
    const uint32_t rounded = bits + ((1U << (kDroppedBits - 1)) - 1) + odd;
    return (rounded >> kDroppedBits) - (kExponentShift << kMantissaBits);
  }

  // As scalar::MagnitudeOf.
  static constexpr float Magnitude(uint32_t code) {
    // As a float's, the fields are those of a number smaller by the difference of the biases.
    return FloatOf(code << kDroppedBits) * FloatOf((kExponentShift + 127) << 23);
  }
};

using F16Layout = FloatLayout<10, -14>;
using E4m3Layout = FloatLayout<3, -6>;
using E5m2Layout = FloatLayout<2, -14>;

constexpr float F16ToF32(uint32_t bits) {
  const uint32_t sign = (bits & 0x8000) << 16;
  const uint32_t magnitude = bits & 0x7fff;
  if (magnitude >= 0x7c00) return FloatOf(sign | kInfinityBits | (magnitude & 0x3ff) << 13);
  return FloatOf(sign | BitsOf(F16Layout::Magnitude(magnitude)));
}

constexpr uint32_t F32ToF16(float value) {
  const uint32_t sign = BitsOf(value) >> 16 & 0x8000;
  const float magnitude = FloatOf(BitsOf(value) & kMagnitudeBits);
  if (IsNanBits(BitsOf(value))) return sign | 0x7e00;
  if (magnitude >= 65520.0F) return sign | 0x7c00;
  return sign | F16Layout::Nearest(magnitude);
}

// `bits`: the element's, in the lower ones.
constexpr float WideToF32(uint32_t bits, Wide type) {
  if (type == Wide::kF32) return FloatOf(bits);
  return type == Wide::kF16 ? F16ToF32(bits) : FloatOf(bits << 16);
}

constexpr uint32_t F32ToWide(float value, Wide type) {
  if (type == Wide::kF32) return BitsOf(value);
  return type == Wide::kF16 ? F32ToF16(value) : scalar::F32ToBf16(value);
}

constexpr float Via(float value, Wide via) { return WideToF32(F32ToWide(value, via), via); }

// Returns the code of a magnitude, or of a NaN of either sign. Saturates; a NaN gives 0x7f.
constexpr uint32_t MagnitudeToNarrow(float magnitude, Narrow to) {
  if (IsNanBits(BitsOf(magnitude))) return 0x7f;
  const float largest = LargestOf(to);
  const float clamped = magnitude < largest ? magnitude : largest;
  return to == Narrow::kE4m3 ? E4m3Layout::Nearest(clamped) : E5m2Layout::Nearest(clamped);
}

// `code` without its sign.
constexpr float NarrowMagnitude(uint32_t code, Narrow from) {
  if (from == Narrow::kE4m3) return code == 0x7f ? FloatOf(kNanBits) : E4m3Layout::Magnitude(code);
  if (code >= 0x7c) return FloatOf(code == 0x7c ? kInfinityBits : kNanBits);
  return E5m2Layout::Magnitude(code);
}

// Returns the value to round to the narrow type, as in scalar::QuantiseRun. May be a NaN.
constexpr float Scaled(float value, float factor, Division division) {
  const float magnitude = FloatOf(BitsOf(value) & kMagnitudeBits);
  return division == Division::kDivide ? magnitude / factor : magnitude * factor;
}

// The value is of the type that elements are rounded to first.
constexpr uint32_t QuantiseElement(float value, float factor, Narrow to, Division division) {
  const uint32_t sign = BitsOf(value) >> 24 & 0x80;
  return sign | MagnitudeToNarrow(Scaled(value, factor, division), to);
}

// The larger of two magnitudes as CombineMaximum has it, of bits. A NaN's are larger than all
// others, so the largest integer is the largest magnitude once each NaN is this one.
constexpr uint32_t CanonicalMagnitude(uint32_t magnitude_bits) {
  return IsNanBits(magnitude_bits) ? kNanBits : magnitude_bits;
}

// The largest bits without sign of elements of a type, as the bits of the float that it is by
// `via`. Rounding keeps the order of magnitudes: what was largest before is so afterwards.
constexpr uint32_t MaximumBits(uint32_t largest, Wide type, Wide via) {
  const float magnitude = WideToF32(largest, type);
  return CanonicalMagnitude(BitsOf(via == type ? magnitude : Via(magnitude, via)));
}

constexpr int ExponentOf(float value) { return static_cast<int>(BitsOf(value) >> 23) - 127; }

// The least e such that 2^e is not below `value`, at least -127.
constexpr int CeilExponent(float value) {
  const uint32_t mantissa = BitsOf(value) & 0x007f'ffff;
  const int exponent = ExponentOf(value);
  if (exponent == -127) return mantissa <= 0x0040'0000 ? -127 : -126;
  return exponent + (mantissa != 0 ? 1 : 0);
}

constexpr int ScaleExponent(float maximum, const ScaleRule& rule) {
  const int largest_exponent = rule.to == Narrow::kE4m3 ? 8 : 15;
  if (rule.rounding == ScaleRounding::kFloorExponent) {
    return ExponentOf(maximum) - largest_exponent;
  }
  if (rule.rounding == ScaleRounding::kEvenExponent) {
    const uint32_t half_a_unit = rule.to == Narrow::kE4m3 ? 1 << 19 : 1 << 20;
    return ExponentOf(FloatOf(BitsOf(maximum) + half_a_unit)) - largest_exponent;
  }
  if (rule.rounding == ScaleRounding::kCeilExponent) {
    return CeilExponent(maximum) - largest_exponent;
  }
  return CeilExponent(maximum / LargestOf(rule.to));
}

// As FromE8m0 of scale.h has it, of codes below 0xff.
constexpr float PowerOfE8m0(uint32_t code) { return FloatOf(code == 0 ? 0x0040'0000 : code << 23); }

// As ScaleOf of scale.h.
constexpr Scale ScaleOfMaximum(float maximum, const ScaleRule& rule) {
  if (IsNanBits(BitsOf(maximum))) return {FloatOf(kNanBits), FloatOf(kNanBits)};
  if (maximum < rule.epsilon) maximum = rule.epsilon;
  const float largest = LargestOf(rule.to);
  if (rule.rounding == ScaleRounding::kNone) {
    const float least = largest * FloatOf(0x0080'0000);
    if (maximum < least) maximum = least;
    const float scale = maximum / largest;
    if (rule.division == Division::kMultiplyByLargestOverMaximum) return {scale, largest / maximum};
    return {scale, rule.division == Division::kDivide ? scale : 1.0F / scale};
  }
  const int exponent = ScaleExponent(maximum, rule);
  const int held = exponent < -127 ? -127 : exponent > 127 ? 127 : exponent;
  const float scale = PowerOfE8m0(static_cast<uint32_t>(held + 127));
  return {scale, rule.division == Division::kDivide ? scale : 1.0F / scale};
}

// As ToE8m0 of scale.h.
constexpr uint32_t E8m0Of(float power_of_two) { return BitsOf(power_of_two) >> 23 & 0xff; }

// A digest's word, to both lanes of its pair.
constexpr uint64_t KeyedProduct(uint64_t word, uint64_t key) {
  const uint32_t low = static_cast<uint32_t>(word) + static_cast<uint32_t>(key);
  const uint32_t high = static_cast<uint32_t>(word >> 32) + static_cast<uint32_t>(key >> 32);
  return uint64_t{low} * high;
}

}  // namespace waybill::kernels::cuda

#endif  // KERNELS_CUDA_ELEMENT_ARITHMETIC_H_
