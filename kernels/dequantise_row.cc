#include "kernels/dequantise_row.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/dequantise_row.cc"
#include <hwy/foreach_target.h>  // Includes this file once for each target.
//
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/narrow_layout.h"
#include "kernels/scalar_quantise.h"
#include "kernels/wide_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace waybill::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

void PrepareScalesOf(PreparedScale* prepared, const float* scales, size_t count, Wide, Narrow) {
  for (size_t i = 0; i < count; ++i) prepared[i].scale = scales[i];
}

void DequantiseRowOf(std::byte* dst, Wide to, const uint8_t* src, Narrow from, const BlockRow& row,
                     const PreparedScale* scales) {
  for (BlockCursor at(row); !at.AtEnd(); at.Next()) {
    scalar::DequantiseRun(dst + at.column() * SizeBytes(to), to, src + at.column(), from,
                          at.count(), scales[at.block()].scale);
  }
}

#else

using D8 = hn::Rebind<uint8_t, D16>;  // Half a vector.

// The bits of a code's magnitude times the scale, with the code's sign.
template <Narrow from>
HWY_INLINE V32 DequantiseLanes(V32 code, VF scale) {
  using L = NarrowLayout<from>;
  const D32 d;
  const DF df;
  const V32 magnitude = hn::And(code, hn::Set(d, 0x7f));
  const V32 sign = hn::ShiftLeft<24>(hn::Xor(code, magnitude));
  const V32 shifted = hn::ShiftLeft<23 - L::kMantissaBits>(magnitude);
  const V32 normal = hn::Add(shifted, hn::Set(d, (L::kLeastField - 1) << 23));
  // A subnormal gets a hidden bit, which is then subtracted again.
  const V32 hidden = hn::Set(d, L::kLeastField << 23);
  const V32 subnormal =
      hn::BitCast(d, hn::Sub(hn::BitCast(df, hn::Add(shifted, hidden)), hn::BitCast(df, hidden)));
  V32 bits = hn::IfThenElse(Above(magnitude, (1 << L::kMantissaBits) - 1), normal, subnormal);
  const V32 nan = hn::Set(d, 0x7fc0'0000);
  if constexpr (from == Narrow::kE4m3) {
    bits = hn::IfThenElse(Above(magnitude, 0x7e), nan, bits);
  } else {
    bits = hn::IfThenElse(Above(magnitude, 0x7b), hn::Set(d, 0x7f80'0000), bits);
    bits = hn::IfThenElse(Above(magnitude, 0x7c), nan, bits);
  }
  const VF product = hn::Mul(hn::BitCast(df, bits), scale);
  const V32 result =
      hn::BitCast(d, hn::IfThenElse(hn::IsNaN(product), hn::BitCast(df, nan), product));
  return hn::Or(result, sign);
}

template <Wide to, Narrow from>
HWY_INLINE void DequantiseVector(std::byte* dst, const uint8_t* src, VF scale) {
  const D32 d;
  const V16 codes = hn::PromoteTo(D16(), hn::LoadU(D8(), src));
  V32 a;
  V32 b;
  if constexpr (to == Wide::kF32) {
    const hn::Half<D16> half;
    a = hn::PromoteTo(d, hn::LowerHalf(half, codes));
    b = hn::PromoteTo(d, hn::UpperHalf(half, codes));
  } else {
    a = hn::And(hn::BitCast(d, codes), hn::Set(d, 0xffff));
    b = hn::ShiftRight<16>(hn::BitCast(d, codes));
  }
  StorePair<to>({DequantiseLanes<from>(a, scale), DequantiseLanes<from>(b, scale)}, dst);
}

// Any codes at all.
template <Wide to, Narrow from>
HWY_NOINLINE void DequantiseRun(std::byte* dst, const uint8_t* src, size_t count, float scale) {
  const size_t lanes = hn::Lanes(D16());
  const VF scales = hn::Set(DF(), scale);
  if (count < lanes) {
    alignas(64) uint8_t in[hn::MaxLanes(D16())] = {};
    alignas(64) std::byte out[hn::MaxLanes(D16()) * 4];
    std::memcpy(in, src, count);
    DequantiseVector<to, from>(out, in, scales);
    std::memcpy(dst, out, count * SizeBytes(to));
    return;
  }
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    DequantiseVector<to, from>(dst + i * SizeBytes(to), src + i, scales);
  }
  if (i != count) {
    i = count - lanes;
    DequantiseVector<to, from>(dst + i * SizeBytes(to), src + i, scales);
  }
}

// By a table. Codes 16 apart are some binades apart, and so are what they become, as long as both
// are normal numbers of their types: with the lower 4 bits of a code comes an element of 16 bits,
// and the next 3 are added to its exponent, which the upper byte has. So 16 lower and 16 upper
// bytes say it all but for what is subnormal on either side, infinities and NaNs; those are rare,
// and told apart. A table of floats would need no bytes but the code's own.

template <Wide to>
struct WideLayout;
template <>
struct WideLayout<Wide::kBf16> {
  static constexpr int kMantissaBits = 7;
  static constexpr int kLeastExponent = -100;  // Of scales that have a table; far from any end.
  static constexpr int kLargestExponent = 100;
};
template <>
struct WideLayout<Wide::kF16> {
  static constexpr int kMantissaBits = 10;
  static constexpr int kLeastExponent = -14;
  static constexpr int kLargestExponent = 8;
};

// What 16 codes further adds to the upper byte.
template <Wide to, Narrow from>
inline constexpr int kStepBits =
    4 - NarrowLayout<from>::kMantissaBits + WideLayout<to>::kMantissaBits - 8;

// Which codes go by the table, for a scale of that exponent.
template <Wide to, Narrow from>
HWY_INLINE void SetRange(PreparedScale& prepared, int exponent) {
  using L = NarrowLayout<from>;
  int least = 1;  // As fields of codes.
  int largest = 127 >> L::kMantissaBits;
  if constexpr (to == Wide::kF16) {
    least = std::max(least, L::kBias - 14 - exponent);
    largest = std::min(largest, L::kBias + 13 - exponent);
  }
  const int first = least << L::kMantissaBits;
  const int last = std::min<int>(L::kLargestCode, ((largest + 1) << L::kMantissaBits) - 1);
  prepared.first = static_cast<uint8_t>(first);
  prepared.count = static_cast<uint8_t>(std::max(0, last - first + 1));
}

template <Wide to, Narrow from>
HWY_INLINE void PrepareScale(PreparedScale& prepared, float scale) {
  using L = NarrowLayout<from>;
  prepared.scale = scale;
  prepared.count = 0;
  const int exponent = static_cast<int>(std::bit_cast<uint32_t>(scale) >> 23) - 127;
  if constexpr (to == Wide::kF32) {
    if (exponent <= 127) SetRange<to, from>(prepared, exponent);  // Else infinite, or a NaN.
  } else {
    using W = WideLayout<to>;
    if (exponent < W::kLeastExponent || exponent > W::kLargestExponent) return;
    SetRange<to, from>(prepared, exponent);
    // Codes from 64 on, in the middle of the range.
    const hn::CappedTag<uint32_t, 16> d;
    const hn::Rebind<float, decltype(d)> df;
    const hn::Rebind<uint8_t, decltype(d)> d8;
    const auto scales = hn::Set(df, scale);
    const auto byte = hn::Set(d, 0xff);
    for (size_t i = 0; i < 16; i += hn::Lanes(d)) {
      const auto code = hn::Iota(d, static_cast<uint32_t>(64 + i));
      const auto bits = hn::Add(hn::ShiftLeft<23 - L::kMantissaBits>(code),
                                hn::Set(d, (L::kLeastField - 1) << 23));
      const auto product = hn::BitCast(d, hn::Mul(hn::BitCast(df, bits), scales));
      constexpr int kDropped = 23 - W::kMantissaBits;
      const auto odd = hn::And(hn::ShiftRight<kDropped>(product), hn::Set(d, 1));
      const auto half = hn::Set(d, (1U << (kDropped - 1)) - 1);
      const auto rounded = hn::ShiftRight<kDropped>(hn::Add(hn::Add(product, half), odd));
      // The exponent in the wide type's bias, 4 times 16 codes lower.
      constexpr uint32_t kBias = to == Wide::kBf16 ? 0 : (127 - 15) << W::kMantissaBits;
      constexpr uint32_t kLower = kBias + (4U << (8 + kStepBits<to, from>));
      const auto entry = hn::Sub(rounded, hn::Set(d, kLower));
      // (TruncateTo() of AVX3_DL is wrong in Highway 1.0.3.)
      hn::StoreU(hn::U8FromU32(hn::And(entry, byte)), d8, prepared.low + i);
      hn::StoreU(hn::U8FromU32(hn::And(hn::ShiftRight<8>(entry), byte)), d8, prepared.high + i);
    }
  }
}

// A whole vector of bytes, or as many as half a block of MX has.
template <size_t kMost>
using Bytes = hn::CappedTag<uint8_t, kMost>;

// How 8-byte quarters are to be ordered for interleaving within 16 bytes to give elements in order.
template <class D>
HWY_INLINE auto InterleavingOrder(D) {
  const hn::Repartition<uint64_t, D> d;
  const auto i = hn::Iota(d, 0);
  const auto odd = hn::And(i, hn::Set(d, 1));
  const auto half = hn::Set(d, hn::Lanes(d) / 2);
  return hn::IndicesFromVec(
      d, hn::Add(hn::ShiftRight<1>(i), hn::IfThenElseZero(hn::Ne(odd, hn::Zero(d)), half)));
}

// How far a row has come: `done` elements of a block.
struct Position {
  BlockCursor block;
  size_t done;
};

// Goes on with a row by tables, up to what the general path must do; false at the row's end. (No
// call in here: its vectors stay in registers.)
template <Wide to, Narrow from, size_t kMost>
HWY_NOINLINE bool LookUpOn(std::byte* dst, const uint8_t* src, const PreparedScale* scales,
                           Position& position) {
  const Bytes<kMost> d;
  const hn::Repartition<uint16_t, decltype(d)> d16;
  const size_t lanes = hn::Lanes(d);
  const auto zero = hn::Zero(d);
  const auto order = InterleavingOrder(d);
  BlockCursor at = position.block;
  size_t done = position.done;
  for (; !at.AtEnd(); at.Next(), done = 0) {
    const PreparedScale& prepared = scales[at.block()];
    const size_t count = prepared.count != 0 ? at.count() : 0;
    const auto first = hn::Set(d, prepared.first);
    const auto span = hn::Set(d, prepared.count);
    const VF scale = hn::Set(DF(), prepared.scale);
    const auto low = hn::LoadDup128(d, prepared.low);
    const auto high = hn::LoadDup128(d, prepared.high);
    for (; done + lanes <= count; done += lanes) {
      const uint8_t* const codes = src + at.column() + done;
      std::byte* const out = dst + (at.column() + done) * SizeBytes(to);
      const auto code = hn::LoadU(d, codes);
      const auto magnitude = hn::And(code, hn::Set(d, 0x7f));
      const auto in_table = hn::Lt(hn::Sub(magnitude, first), span);
      if (HWY_UNLIKELY(!hn::AllTrue(d, hn::Or(hn::Eq(magnitude, zero), in_table)))) break;
      if constexpr (to == Wide::kF32) {
        using L = NarrowLayout<from>;
        const D32 d32;
        const hn::Rebind<uint8_t, D32> d_quarter;
        for (size_t k = 0; k < lanes; k += hn::Lanes(d32)) {
          const V32 wide = hn::PromoteTo(d32, hn::LoadU(d_quarter, codes + k));
          const V32 size = hn::And(wide, hn::Set(d32, 0x7f));
          const V32 sign = hn::ShiftLeft<24>(hn::Xor(wide, size));
          const V32 bits = hn::Add(hn::ShiftLeft<23 - L::kMantissaBits>(size),
                                   hn::Set(d32, (L::kLeastField - 1) << 23));
          const V32 product = hn::BitCast(d32, hn::Mul(hn::BitCast(DF(), bits), scale));
          const V32 value = hn::IfThenZeroElse(hn::Eq(size, hn::Zero(d32)), product);
          hn::StoreU(hn::Or(value, sign), d32, reinterpret_cast<uint32_t*>(out) + k);
        }
      } else {
        auto ordered = code;
        if constexpr (hn::MaxLanes(d) > 16) {
          const hn::Repartition<uint64_t, decltype(d)> d64;
          ordered = hn::BitCast(d, hn::TableLookupLanes(hn::BitCast(d64, code), order));
        }
        const auto size = hn::And(ordered, hn::Set(d, 0x7f));
        // A zero has an index beyond the table.
        const auto index =
            hn::Or(hn::And(ordered, hn::Set(d, 0x0f)), hn::VecFromMask(d, hn::Eq(size, zero)));
        const auto tens = hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(d16, size)));
        const auto steps = hn::BitCast(
            d, hn::ShiftLeft<kStepBits<to, from> >(hn::BitCast(d16, hn::And(tens, hn::Set(d, 7)))));
        const auto sign = hn::And(ordered, hn::Set(d, 0x80));
        const auto lower = hn::TableLookupBytesOr0(low, index);
        const auto upper = hn::Or(hn::Add(hn::TableLookupBytesOr0(high, index), steps), sign);
        uint8_t* const bytes = reinterpret_cast<uint8_t*>(out);
        hn::StoreU(hn::InterleaveLower(d, lower, upper), d, bytes);
        hn::StoreU(hn::InterleaveUpper(d, lower, upper), d, bytes + lanes);
      }
    }
    if (HWY_UNLIKELY(done != at.count())) {
      position = {at, done};
      return true;
    }
  }
  return false;
}

template <Wide to, Narrow from, size_t kMost>
void DequantiseRowBy(std::byte* dst, const uint8_t* src, const BlockRow& row,
                     const PreparedScale* scales) {
  Position at{BlockCursor(row), 0};
  while (LookUpOn<to, from, kMost>(dst, src, scales, at)) {
    const PreparedScale& prepared = scales[at.block.block()];
    const size_t column = at.block.column() + at.done;
    const size_t left = at.block.count() - at.done;
    const size_t lanes = hn::Lanes(Bytes<kMost>());
    const size_t count = prepared.count != 0 ? std::min(left, lanes) : left;
    DequantiseRun<to, from>(dst + column * SizeBytes(to), src + column, count, prepared.scale);
    at.done += count;
  }
}

template <Wide to, Narrow from>
void DequantiseRowBetween(std::byte* dst, const uint8_t* src, const BlockRow& row,
                          const PreparedScale* scales) {
  constexpr size_t kShortBlock = 32;  // That of MX: whole vectors could be longer.
  if (row.block_columns < 2 * kShortBlock) {
    DequantiseRowBy<to, from, kShortBlock>(dst, src, row, scales);
  } else {
    DequantiseRowBy<to, from, 64>(dst, src, row, scales);
  }
}

// Calls run.operator()<to, from>().
template <class Run>
HWY_INLINE void Choose(Wide to, Narrow from, const Run& run) {
  const auto by_narrow = [&]<Wide wide>() HWY_ATTR {
    from == Narrow::kE4m3 ? run.template operator()<wide, Narrow::kE4m3>()
                          : run.template operator()<wide, Narrow::kE5m2>();
  };
  switch (to) {
    case Wide::kF32:
      return by_narrow.template operator()<Wide::kF32>();
    case Wide::kF16:
      return by_narrow.template operator()<Wide::kF16>();
    case Wide::kBf16:
      return by_narrow.template operator()<Wide::kBf16>();
  }
}

void PrepareScalesOf(PreparedScale* prepared, const float* scales, size_t count, Wide to,
                     Narrow from) {
  Choose(to, from, [&]<Wide wide, Narrow narrow>() HWY_ATTR {
    for (size_t i = 0; i < count; ++i) PrepareScale<wide, narrow>(prepared[i], scales[i]);
  });
}

void DequantiseRowOf(std::byte* dst, Wide to, const uint8_t* src, Narrow from, const BlockRow& row,
                     const PreparedScale* scales) {
  Choose(to, from, [&]<Wide wide, Narrow narrow>() HWY_ATTR {
    DequantiseRowBetween<wide, narrow>(dst, src, row, scales);
  });
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace waybill::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace waybill::kernels {

HWY_EXPORT(PrepareScalesOf);
HWY_EXPORT(DequantiseRowOf);

void PrepareScales(PreparedScale* prepared, const float* scales, size_t count, Wide to,
                   Narrow from) {
  HWY_DYNAMIC_DISPATCH(PrepareScalesOf)(prepared, scales, count, to, from);
}

void DequantiseRow(void* dst, Wide to, const uint8_t* src, Narrow from, const BlockRow& row,
                   const PreparedScale* scales) {
  HWY_DYNAMIC_DISPATCH(DequantiseRowOf)
  (static_cast<std::byte*>(dst), to, src, from, row, scales);
}

}  // namespace waybill::kernels
#endif  // HWY_ONCE
