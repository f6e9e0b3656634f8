// SPDX-License-Identifier: Apache-2.0

// Scalar reference arithmetic of one element: floats of 16 and 8 bits, as their definitions read.

#ifndef KERNELS_SCALAR_ELEMENTS_H_
#define KERNELS_SCALAR_ELEMENTS_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/elements.h"
#include "kernels/scalar.h"

namespace waybill::kernels::scalar {

// A binary float's layout: sign, exponent, mantissa.
struct Layout {
  int mantissa_bits;
  int least_exponent;  // The smallest exponent of a normal number.
};

inline constexpr Layout kF16Layout = {10, -14};
inline constexpr Layout kE4m3Layout = {3, -6};
inline constexpr Layout kE5m2Layout = {2, -14};
inline constexpr Layout kE2m1Layout = {1, 0};

constexpr Layout LayoutOf(Narrow type) { return type == Narrow::kE4m3 ? kE4m3Layout : kE5m2Layout; }

// Returns the code of the largest finite magnitude.
constexpr uint8_t LargestCode(Narrow type) { return type == Narrow::kE4m3 ? 0x7e : 0x7b; }

inline constexpr uint8_t kNarrowNan = 0x7f;

// Returns the code of the nearest number of a layout, or of the even one if two are equally near.
// Does not saturate: codes continue beyond the layout's largest number. `magnitude` is finite and
// not negative.
inline uint32_t NearestCode(float magnitude, Layout layout) {
  const int exponent = std::max(magnitude == 0 ? layout.least_exponent : std::ilogb(magnitude),
                                layout.least_exponent);
  // The magnitude in units of the last place. A normal number has at least 2^mantissa_bits of them.
  // A count that is rounded up to the next power of two carries into the exponent, as it must.
  const double count =
      std::nearbyint(std::ldexp(double{magnitude}, layout.mantissa_bits - exponent));
  return (static_cast<uint32_t>(exponent - layout.least_exponent) << layout.mantissa_bits) +
         static_cast<uint32_t>(count);
}

// Returns the magnitude of a code of a finite number.
inline float MagnitudeOf(uint32_t code, Layout layout) {
  const uint32_t field = code >> layout.mantissa_bits;
  const uint32_t hidden = field == 0 ? 0 : uint32_t{1} << layout.mantissa_bits;
  const uint32_t count = (code & ((uint32_t{1} << layout.mantissa_bits) - 1)) + hidden;
  const int exponent = layout.least_exponent + static_cast<int>(std::max(field, 1U) - 1);
  return std::ldexp(static_cast<float>(count), exponent - layout.mantissa_bits);
}

constexpr float Bf16ToF32(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

inline float F16ToF32(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000U} << 16;
  const uint32_t magnitude = bits & 0x7fff;
  if (magnitude >= 0x7c00) {  // Infinity, and NaNs with their payloads.
    return std::bit_cast<float>(sign | 0x7f80'0000 | (magnitude & 0x3ff) << 13);
  }
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(MagnitudeOf(magnitude, kF16Layout)));
}

// A NaN becomes the quiet NaN without payload, with its sign.
inline uint16_t F32ToF16(float value) {
  const uint16_t sign = std::bit_cast<uint32_t>(value) >> 16 & 0x8000;
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return sign | 0x7e00;
  if (magnitude >= 65520.0F) return sign | 0x7c00;  // Half a unit past the largest: infinity.
  return static_cast<uint16_t>(sign | NearestCode(magnitude, kF16Layout));
}

// Saturates.
inline uint8_t F32ToNarrow(float value, Narrow to) {
  const uint8_t sign = std::bit_cast<uint32_t>(value) >> 24 & 0x80;
  if (std::isnan(value)) return sign | kNarrowNan;
  const float clamped = std::min(std::fabs(value), LargestOf(to));
  return static_cast<uint8_t>(sign | NearestCode(clamped, LayoutOf(to)));
}

inline float NarrowToF32(uint8_t code, Narrow from) {
  const uint32_t sign = uint32_t{code & 0x80U} << 24;
  const uint8_t magnitude = code & 0x7f;
  if (magnitude <= LargestCode(from)) {
    return std::bit_cast<float>(sign |
                                std::bit_cast<uint32_t>(MagnitudeOf(magnitude, LayoutOf(from))));
  }
  const bool infinite = from == Narrow::kE5m2 && magnitude == 0x7c;
  return std::bit_cast<float>(sign | (infinite ? 0x7f80'0000 : 0x7fc0'0000));
}

inline float LoadWide(const void* src, Wide type) {
  if (type == Wide::kF32) {
    float value;
    std::memcpy(&value, src, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, src, 2);
  return type == Wide::kF16 ? F16ToF32(bits) : Bf16ToF32(bits);
}

// Rounds to nearest even; past the type's range to infinity. A NaN stays one.
inline void StoreWide(void* dst, float value, Wide type) {
  if (type == Wide::kF32) {
    std::memcpy(dst, &value, 4);
    return;
  }
  const uint16_t bits = type == Wide::kF16 ? F32ToF16(value) : F32ToBf16(value);
  std::memcpy(dst, &bits, 2);
}

// Returns the value rounded to a type.
inline float Via(float value, Wide via) {
  std::byte rounded[4];
  StoreWide(rounded, value, via);
  return LoadWide(rounded, via);
}

}  // namespace waybill::kernels::scalar

#endif  // KERNELS_SCALAR_ELEMENTS_H_
