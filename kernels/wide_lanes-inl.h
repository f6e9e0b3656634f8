// SPDX-License-Identifier: Apache-2.0

// Elements of 16 and 32 bits as floats in vectors. Compiled for each target of the file that
// includes this.

#if defined(KERNELS_WIDE_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KERNELS_WIDE_LANES_INL_H_
#undef KERNELS_WIDE_LANES_INL_H_
#else
#define KERNELS_WIDE_LANES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "kernels/elements.h"

HWY_BEFORE_NAMESPACE();
namespace waybill::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR

using D32 = hn::ScalableTag<uint32_t>;
using DF = hn::ScalableTag<float>;
using D16 = hn::ScalableTag<uint16_t>;
using V32 = hn::Vec<D32>;
using VF = hn::Vec<DF>;
using V16 = hn::Vec<D16>;

// As many elements as a vector has lanes of 16 bits, in two vectors of lanes of 32 bits. For
// elements of 16 bits, `a` has those of even index and `b` those of odd index, so that unpacking is
// a shift and a mask. For elements of 32 bits, `a` has the first half.
template <class V>
struct Pair {
  V a;
  V b;
};

template <Wide type>
HWY_INLINE V16 JoinLowHalves(V32 a, V32 b) {
  const D16 d16;
  if constexpr (type == Wide::kF32) {
    return hn::ConcatEven(d16, hn::BitCast(d16, b), hn::BitCast(d16, a));
  } else {
    return hn::OddEven(hn::BitCast(d16, hn::ShiftLeft<16>(b)), hn::BitCast(d16, a));
  }
}

template <Wide type>
HWY_INLINE V16 JoinHighHalves(V32 a, V32 b) {
  const D16 d16;
  if constexpr (type == Wide::kF32) {
    return hn::ConcatOdd(d16, hn::BitCast(d16, b), hn::BitCast(d16, a));
  } else {
    return hn::OddEven(hn::BitCast(d16, b), hn::BitCast(d16, hn::ShiftRight<16>(a)));
  }
}

HWY_INLINE hn::Mask<D32> Above(V32 a, uint32_t b) {  // Both are below 2^31.
  const hn::RebindToSigned<D32> d;
  return hn::RebindMask(D32(), hn::Gt(hn::BitCast(d, a), hn::Set(d, static_cast<int32_t>(b))));
}

// Returns the float of an F16 in the lower half of a lane.
HWY_INLINE V32 F16ToF32(V32 half) {
  const D32 d;
  const DF df;
  const V32 magnitude = hn::And(half, hn::Set(d, 0x7fff));
  const V32 sign = hn::ShiftLeft<16>(hn::Xor(half, magnitude));
  const V32 shifted = hn::ShiftLeft<13>(magnitude);
  const V32 normal = hn::Add(shifted, hn::Set(d, (127 - 15) << 23));
  // A subnormal gets a hidden bit, which is subtracted again.
  const VF hidden = hn::BitCast(df, hn::Set(d, (127 - 14) << 23));
  const V32 subnormal =
      hn::BitCast(d, hn::Sub(hn::BitCast(df, hn::Add(shifted, hn::BitCast(d, hidden))), hidden));
  V32 bits = hn::IfThenElse(Above(magnitude, 0x3ff), normal, subnormal);
  bits = hn::IfThenElse(Above(magnitude, 0x7bff), hn::Or(shifted, hn::Set(d, 0x7f80'0000)), bits);
  return hn::Or(bits, sign);
}

// Rounds a float to an F16 in the lower half of its lane. NaNs as scalar::F32ToF16.
HWY_INLINE V32 F32ToF16(V32 bits) {
  const D32 d;
  const DF df;
  const V32 magnitude = hn::And(bits, hn::Set(d, 0x7fff'ffff));
  const V32 sign = hn::ShiftRight<16>(hn::Xor(bits, magnitude));
  const V32 odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d, 1));
  const V32 rounded = hn::Add(hn::Add(magnitude, hn::Set(d, 0xfff)), odd);
  const V32 normal = hn::ShiftRight<13>(hn::Sub(rounded, hn::Set(d, (127 - 15) << 23)));
  // Adding a number with the unit of the subnormals rounds to that unit, and leaves their count in
  // the lower bits.
  const VF unit = hn::BitCast(df, hn::Set(d, (127 - 24 + 23) << 23));
  const V32 subnormal =
      hn::Sub(hn::BitCast(d, hn::Add(hn::BitCast(df, magnitude), unit)), hn::BitCast(d, unit));
  V32 half = hn::IfThenElse(Above(magnitude, 0x387f'ffff), normal, subnormal);
  half = hn::IfThenElse(Above(magnitude, 0x477f'efff), hn::Set(d, 0x7c00), half);
  half = hn::IfThenElse(Above(magnitude, 0x7f80'0000), hn::Set(d, 0x7e00), half);
  return hn::Or(half, sign);
}

// Rounds a float so that the upper half of its lane is the BF16. NaNs as scalar::F32ToBf16.
HWY_INLINE V32 RoundToBf16(V32 bits) {
  const D32 d;
  const V32 odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1));
  const V32 rounded = hn::Add(hn::Add(bits, hn::Set(d, 0x7fff)), odd);
  const auto is_nan = Above(hn::And(bits, hn::Set(d, 0x7fff'ffff)), 0x7f80'0000);
  return hn::IfThenElse(is_nan, hn::Or(bits, hn::Set(d, 0x0040'0000)), rounded);
}

// Rounds a float to `via`. Does nothing if `type` has no more bits than that.
template <Wide type, Wide via>
HWY_INLINE V32 RoundVia(V32 bits) {
  if constexpr (type == via || via == Wide::kF32) return bits;
  if constexpr (via == Wide::kBf16) {
    return hn::And(RoundToBf16(bits), hn::Set(D32(), 0xffff'0000));
  } else {
    return F16ToF32(F32ToF16(bits));
  }
}

// Returns the bits of floats.
template <Wide type, Wide via>
HWY_INLINE Pair<V32> LoadPair(const std::byte* src) {
  const D32 d;
  const V32 first = hn::LoadU(d, reinterpret_cast<const uint32_t*>(src));
  V32 a;
  V32 b;
  if constexpr (type == Wide::kF32) {
    a = first;
    b = hn::LoadU(d, reinterpret_cast<const uint32_t*>(src) + hn::Lanes(d));
  } else if constexpr (type == Wide::kBf16) {
    a = hn::ShiftLeft<16>(first);
    b = hn::And(first, hn::Set(d, 0xffff'0000));
  } else {
    a = F16ToF32(hn::And(first, hn::Set(d, 0xffff)));
    b = F16ToF32(hn::ShiftRight<16>(first));
  }
  return {RoundVia<type, via>(a), RoundVia<type, via>(b)};
}

#endif  // HWY_TARGET != HWY_SCALAR

}  // namespace waybill::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // Included once for each target.
