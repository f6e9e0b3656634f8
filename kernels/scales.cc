// SPDX-License-Identifier: Apache-2.0

#include "kernels/scales.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/scales.cc"
#include <hwy/foreach_target.h>  // Includes this file once for each target.
//
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/wide_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace waybill::kernels::HWY_NAMESPACE {

// Those of whole vectors; says how many.
#if HWY_TARGET == HWY_SCALAR

size_t WholeVectors(float*, float*, const float*, size_t, const ScaleRule&) { return 0; }

#else

// The exponent's field of the scale, which is a power of two; E8M0 has 0 to 254.
template <ScaleRounding rounding>
HWY_INLINE V32 FieldOf(VF maximum, Narrow to) {
  const D32 d;
  const hn::RebindToSigned<D32> di;
  const auto largest = hn::Set(DF(), LargestOf(to));
  const auto largest_field =
      hn::Set(di, static_cast<int32_t>((std::bit_cast<uint32_t>(LargestOf(to)) >> 23) - 127));
  constexpr uint32_t kMantissaMask = 0x007f'ffff;
  V32 bits = hn::BitCast(d, maximum);
  if constexpr (rounding == ScaleRounding::kPowerOfTwoUp) {
    bits = hn::BitCast(d, hn::Div(maximum, largest));
    const V32 field = hn::ShiftRight<23>(hn::Add(bits, hn::Set(d, kMantissaMask)));
    // 2^-127 is half of the least normal float.
    return hn::IfThenElse(Above(bits, 0x0040'0000), hn::Min(field, hn::Set(d, 254)), hn::Zero(d));
  }
  if constexpr (rounding == ScaleRounding::kEvenExponent) {
    bits = hn::Add(bits, hn::Set(d, to == Narrow::kE4m3 ? 1 << 19 : 1 << 20));
  } else if constexpr (rounding == ScaleRounding::kCeilExponent) {
    bits = hn::Add(bits, hn::Set(d, kMantissaMask));
  }
  const auto field = hn::Sub(hn::BitCast(di, hn::ShiftRight<23>(bits)), largest_field);
  return hn::BitCast(d, hn::Max(field, hn::Zero(di)));
}

template <ScaleRounding rounding>
size_t Run(float* scales, float* factors, const float* maxima, size_t count,
           const ScaleRule& rule) {
  const D32 d;
  const DF df;
  const hn::RebindToSigned<D32> di;
  const size_t lanes = hn::Lanes(df);
  const VF one = hn::Set(df, 1.0F);
  const VF largest = hn::Set(df, LargestOf(rule.to));
  float least = rule.epsilon;
  if (rounding == ScaleRounding::kNone) {
    least = std::max(least, LargestOf(rule.to) * std::numeric_limits<float>::min());
  }
  const auto least_bits = hn::BitCast(di, hn::Set(df, least));
  const VF nan = hn::BitCast(df, hn::Set(d, 0x7fc0'0000));
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const VF found = hn::LoadU(df, maxima + i);
    // Magnitudes are in order as integers, too. What becomes of a NaN is not looked at.
    const VF maximum = hn::BitCast(df, hn::Max(hn::BitCast(di, found), least_bits));
    VF scale;
    VF factor;
    if constexpr (rounding == ScaleRounding::kNone) {
      scale = hn::Div(maximum, largest);
      factor = rule.division == Division::kDivide ? scale
               : rule.division == Division::kMultiplyByLargestOverMaximum
                   ? hn::Div(largest, maximum)
                   : hn::Div(one, scale);
    } else {
      const V32 field = FieldOf<rounding>(maximum, rule.to);
      const V32 bits = hn::IfThenElse(hn::Eq(field, hn::Zero(d)), hn::Set(d, 0x0040'0000),
                                      hn::ShiftLeft<23>(field));
      scale = hn::BitCast(df, bits);
      factor = rule.division == Division::kDivide ? scale : hn::Div(one, scale);
    }
    const auto is_nan = hn::IsNaN(found);
    hn::StoreU(hn::IfThenElse(is_nan, nan, scale), df, scales + i);
    hn::StoreU(hn::IfThenElse(is_nan, nan, factor), df, factors + i);
  }
  return i;
}

size_t WholeVectors(float* scales, float* factors, const float* maxima, size_t count,
                    const ScaleRule& rule) {
  switch (rule.rounding) {
    case ScaleRounding::kNone:
      return Run<ScaleRounding::kNone>(scales, factors, maxima, count, rule);
    case ScaleRounding::kPowerOfTwoUp:
      return Run<ScaleRounding::kPowerOfTwoUp>(scales, factors, maxima, count, rule);
    case ScaleRounding::kFloorExponent:
      return Run<ScaleRounding::kFloorExponent>(scales, factors, maxima, count, rule);
    case ScaleRounding::kEvenExponent:
      return Run<ScaleRounding::kEvenExponent>(scales, factors, maxima, count, rule);
    case ScaleRounding::kCeilExponent:
      return Run<ScaleRounding::kCeilExponent>(scales, factors, maxima, count, rule);
  }
  return 0;
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace waybill::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace waybill::kernels {

HWY_EXPORT(WholeVectors);

void ScalesOf(float* scales, float* factors, const float* maxima, size_t count,
              const ScaleRule& rule) {
  for (size_t i = HWY_DYNAMIC_DISPATCH(WholeVectors)(scales, factors, maxima, count, rule);
       i < count; ++i) {
    const Scale scale = ScaleOf(maxima[i], rule);
    scales[i] = scale.scale;
    factors[i] = scale.factor;
  }
}

}  // namespace waybill::kernels
#endif  // HWY_ONCE
