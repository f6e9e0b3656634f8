#include "kernels/nvfp4_row.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/nvfp4_row.cc"
#include <hwy/foreach_target.h>  // Includes this file once for each target.
//
#include <hwy/highway.h>

#include <algorithm>

#include "kernels/wide_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace waybill::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

size_t QuantiseOf(uint8_t*, const std::byte*, Wide, Wide, const float*, size_t) { return 0; }
size_t DequantiseOf(std::byte*, Wide, const uint8_t*, const float*, size_t) { return 0; }

#else

constexpr size_t kBlock = 16;

// The values of blocks for the elements that LoadPair and StorePair take, from element `first` on,
// where a block begins or goes on.
template <Wide type>
HWY_INLINE Pair<VF> ForPair(const float* of_blocks, size_t first) {
  const DF df;
  const size_t lanes = hn::Lanes(df);
  const VF a = hn::Set(df, of_blocks[first / kBlock]);
  if constexpr (type == Wide::kF32) {
    return {a, hn::Set(df, of_blocks[(first + lanes) / kBlock])};
  } else if constexpr (hn::MaxLanes(df) <= kBlock / 2) {
    return {a, a};
  } else {  // Even elements and odd ones: half a block, then half of the next.
    const VF next = hn::Set(df, of_blocks[first / kBlock + 1]);
    const VF both = hn::IfThenElse(hn::FirstN(df, kBlock / 2), a, next);
    return {both, both};
  }
}

// The code of a float's bits, below bits that are to be cleared.
HWY_INLINE V32 Code(V32 bits, VF factor) {
  const D32 d;
  const DF df;
  const hn::RebindToSigned<D32> di;
  constexpr float kLargest = 6;
  const VF magnitude = hn::BitCast(df, hn::And(bits, hn::Set(d, 0x7fff'ffff)));
  const VF scaled = hn::Mul(magnitude, factor);
  const VF largest = hn::Set(df, kLargest);
  const VF value = hn::IfThenElse(hn::IsNaN(scaled), largest, hn::Min(scaled, largest));
  // Adding a power of two whose last place is that of the result rounds to it, and leaves the count
  // of such places in the lowest bits. Below 1 places are as at 1.
  const V32 exponent = hn::BitCast(
      d,
      hn::Max(hn::And(hn::BitCast(di, value), hn::Set(di, 0x7f80'0000)), hn::Set(di, 127 << 23)));
  const VF unit = hn::BitCast(df, hn::Add(exponent, hn::Set(d, 22 << 23)));
  const V32 count = hn::BitCast(d, hn::Add(value, unit));
  // Two codes a binade: twice the exponent's field, of which 254 belongs to 1.
  const V32 doubled = hn::Add(hn::ShiftRight<22>(exponent), hn::Set(d, 256 - 254));
  const V32 code = hn::And(hn::Add(doubled, count), hn::Set(d, 7));
  return hn::Or(code, hn::And(hn::ShiftRight<28>(bits), hn::Set(d, 8)));
}

template <Wide type, Wide via>
size_t QuantiseBlocksOf(uint8_t* dst, const std::byte* src, const float* factors, size_t blocks) {
  const D32 d;
  const hn::Rebind<uint8_t, D32> d8;
  const size_t elements = hn::Lanes(D16());
  const size_t count = blocks * kBlock / elements * elements;
  for (size_t i = 0; i < count; i += elements) {
    const Pair<V32> bits = LoadPair<type, via>(src + i * SizeBytes(type));
    const Pair<VF> factor = ForPair<type>(factors, i);
    const V16 codes = JoinLowHalves<type>(Code(bits.a, factor.a), Code(bits.b, factor.b));
    const V32 pairs = hn::BitCast(d, codes);
    const V32 bytes = hn::And(hn::Or(pairs, hn::ShiftRight<12>(pairs)), hn::Set(d, 0xff));
    hn::StoreU(hn::U8FromU32(bytes), d8, dst + i / 2);
  }
  return count / kBlock;
}

// The bits of a code's value times the scale.
HWY_INLINE V32 Value(V32 code, VF scale) {
  const D32 d;
  const DF df;
  const V32 magnitude = hn::And(code, hn::Set(d, 7));
  const V32 sign = hn::ShiftLeft<28>(hn::And(code, hn::Set(d, 8)));
  const V32 normal = hn::Add(hn::ShiftLeft<22>(magnitude), hn::Set(d, 126 << 23));
  // 0 or a half.
  const V32 small = hn::And(hn::Sub(hn::Zero(d), magnitude), hn::Set(d, 0x3f00'0000));
  const V32 bits = hn::IfThenElse(Above(magnitude, 1), normal, small);
  const VF product = hn::Mul(hn::BitCast(df, bits), scale);
  const VF nan = hn::BitCast(df, hn::Set(d, 0x7fc0'0000));
  return hn::Xor(hn::BitCast(d, hn::IfThenElse(hn::IsNaN(product), nan, product)), sign);
}

template <Wide to>
size_t DequantiseBlocksOf(std::byte* dst, const uint8_t* src, const float* scales, size_t blocks) {
  const D32 d;
  const hn::Rebind<uint8_t, D32> d8;
  const size_t elements = hn::Lanes(D16());
  const size_t count = blocks * kBlock / elements * elements;
  for (size_t i = 0; i < count; i += elements) {
    const V32 bytes = hn::PromoteTo(d, hn::LoadU(d8, src + i / 2));
    V32 a = bytes;  // Only the lower 4 bits count.
    V32 b = hn::ShiftRight<4>(bytes);
    if constexpr (to == Wide::kF32) {
      const V16 ordered = hn::BitCast(D16(), hn::Or(bytes, hn::ShiftLeft<12>(bytes)));
      const hn::Half<D16> half;
      a = hn::PromoteTo(d, hn::LowerHalf(half, ordered));
      b = hn::PromoteTo(d, hn::UpperHalf(half, ordered));
    }
    const Pair<VF> scale = ForPair<to>(scales, i);
    StorePair<to>({Value(a, scale.a), Value(b, scale.b)}, dst + i * SizeBytes(to));
  }
  return count / kBlock;
}

// A vector of more than two blocks would need the values of more of them.
constexpr bool kFits = hn::MaxLanes(D32()) <= kBlock;

size_t QuantiseOf(uint8_t* dst, const std::byte* src, Wide type, Wide via, const float* factors,
                  size_t blocks) {
  if (!kFits) return 0;
  const auto by_via = [&]<Wide from>() HWY_ATTR {
    if (via == from || via == Wide::kF32) {
      return QuantiseBlocksOf<from, from>(dst, src, factors, blocks);
    }
    return via == Wide::kF16 ? QuantiseBlocksOf<from, Wide::kF16>(dst, src, factors, blocks)
                             : QuantiseBlocksOf<from, Wide::kBf16>(dst, src, factors, blocks);
  };
  switch (type) {
    case Wide::kF32:
      return by_via.template operator()<Wide::kF32>();
    case Wide::kF16:
      return by_via.template operator()<Wide::kF16>();
    case Wide::kBf16:
      return by_via.template operator()<Wide::kBf16>();
  }
  return 0;
}

size_t DequantiseOf(std::byte* dst, Wide to, const uint8_t* src, const float* scales,
                    size_t blocks) {
  if (!kFits) return 0;
  switch (to) {
    case Wide::kF32:
      return DequantiseBlocksOf<Wide::kF32>(dst, src, scales, blocks);
    case Wide::kF16:
      return DequantiseBlocksOf<Wide::kF16>(dst, src, scales, blocks);
    case Wide::kBf16:
      return DequantiseBlocksOf<Wide::kBf16>(dst, src, scales, blocks);
  }
  return 0;
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace waybill::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace waybill::kernels {

HWY_EXPORT(QuantiseOf);
HWY_EXPORT(DequantiseOf);

size_t QuantiseNvfp4Blocks(uint8_t* dst, const void* src, Wide type, Wide via, const float* factors,
                           size_t blocks) {
  return HWY_DYNAMIC_DISPATCH(QuantiseOf)(dst, static_cast<const std::byte*>(src), type, via,
                                          factors, blocks);
}

size_t DequantiseNvfp4Blocks(void* dst, Wide to, const uint8_t* src, const float* scales,
                             size_t blocks) {
  return HWY_DYNAMIC_DISPATCH(DequantiseOf)(static_cast<std::byte*>(dst), to, src, scales, blocks);
}

}  // namespace waybill::kernels
#endif  // HWY_ONCE
