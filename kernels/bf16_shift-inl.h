// SPDX-License-Identifier: Apache-2.0

// Quantises BF16s by a power of two, as MX does, in lanes of 16 bits without floats. Compiled for
// each target of the file that includes this.
//
// The factor is added to the exponent. An element that is then a normal number of the narrow type
// has its code after losing bits of its mantissa. Subnormals and NaNs take the general path.

#if defined(KERNELS_BF16_SHIFT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KERNELS_BF16_SHIFT_INL_H_
#undef KERNELS_BF16_SHIFT_INL_H_
#else
#define KERNELS_BF16_SHIFT_INL_H_
#endif

#include <hwy/highway.h>

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/elements.h"
#include "kernels/narrow_layout.h"
#include "kernels/wide_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace waybill::kernels::HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR

// The number that a factor adds to the bits of a BF16 so that they begin with its code. Not above
// 0.
struct Shift {
  int16_t bits;
  bool is_one;  // False if the factor is not a power of two, or is at the ends of their range.
};

template <Narrow to, bool divide>
HWY_INLINE Shift ShiftOf(float factor) {
  const uint32_t bits = std::bit_cast<uint32_t>(factor);
  const int field = static_cast<int>(bits >> 23);
  const int exponent = divide ? 127 - field : field - 127;
  constexpr int kBetweenBiases = 127 - NarrowLayout<to>::kBias;
  const bool is_one =
      (bits & 0x007f'ffff) == 0 && field >= 1 && field <= 253 && exponent <= kBetweenBiases;
  return {static_cast<int16_t>((exponent - kBetweenBiases) * 128), is_one};
}

// Quantises a vector of BF16s. Returns false and stores nothing if one needs the general path.
template <Narrow to>
HWY_INLINE bool QuantiseShifted(uint8_t* dst, const std::byte* src, Shift shift) {
  using L = NarrowLayout<to>;
  const D16 d;
  const hn::RebindToSigned<D16> di;
  const hn::Rebind<uint8_t, D16> d8;
  const V16 value = hn::LoadU(d, reinterpret_cast<const uint16_t*>(src));
  const V16 magnitude = hn::And(value, hn::Set(d, 0x7fff));
  // From the smallest element that becomes a normal number up to infinity, which saturates.
  const uint16_t least = static_cast<uint16_t>(128 - shift.bits);
  const V16 span = hn::Set(d, static_cast<uint16_t>(0x7f81 - least));
  const auto is_ordinary = hn::Lt(hn::Sub(magnitude, hn::Set(d, least)), span);
  if (HWY_UNLIKELY(!hn::AllTrue(d, hn::Or(is_ordinary, hn::Eq(magnitude, hn::Zero(d)))))) {
    return false;
  }
  constexpr int kDropped = 7 - L::kMantissaBits;
  const V16 moved = hn::BitCast(
      d, hn::Max(hn::Add(hn::BitCast(di, magnitude), hn::Set(di, shift.bits)), hn::Zero(di)));
  const V16 odd = hn::And(hn::ShiftRight<kDropped>(moved), hn::Set(d, 1));
  const V16 rounded = hn::Add(hn::Add(moved, hn::Set(d, (1 << (kDropped - 1)) - 1)), odd);
  const auto code = hn::Min(hn::BitCast(di, hn::ShiftRight<kDropped>(rounded)),
                            hn::Set(di, static_cast<int16_t>(L::kLargestCode)));
  const V16 sign = hn::And(hn::ShiftRight<8>(value), hn::Set(d, 0x80));
  hn::StoreU(hn::DemoteTo(d8, hn::Or(code, hn::BitCast(di, sign))), d8, dst);
  return true;
}

#endif  // HWY_TARGET != HWY_SCALAR

}  // namespace waybill::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // Included once for each target.
