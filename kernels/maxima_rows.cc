// SPDX-License-Identifier: Apache-2.0

#include "kernels/maxima_rows.h"

// Not for what has no AVX2: no server with GPUs is so old, and each target has its size.
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSE4 | HWY_SSSE3)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/maxima_rows.cc"
#include <hwy/foreach_target.h>  // Includes this file once for each target.
//
#include <hwy/highway.h>

#include <algorithm>
#include <iterator>

#include "kernels/wide_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace waybill::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// T: signed integers of the elements' size, of which magnitudes are not negative. Their order is
// that of the magnitudes, with NaNs behind infinity.
template <typename T>
inline constexpr T kMagnitude = static_cast<T>(~(T{1} << (sizeof(T) * 8 - 1)));

template <typename T>
HWY_INLINE T MaximumOfFew(const T* src, size_t count) {
  T maximum = 0;
  for (size_t i = 0; i < count; ++i) {
    maximum = std::max(maximum, static_cast<T>(src[i] & kMagnitude<T>));
  }
  return maximum;
}

// Combines the magnitudes of a run into the maximum's lanes.
template <typename T>
HWY_INLINE void Combine(OpenMaximum& open, const T* src, size_t count) {
  T* const to = reinterpret_cast<T*>(open.lanes);
#if HWY_TARGET == HWY_SCALAR
  to[0] = std::max(to[0], MaximumOfFew(src, count));
#else
  const hn::CappedTag<T, sizeof(OpenMaximum) / sizeof(T)> d;
  const size_t lanes = hn::Lanes(d);
  if (count < lanes) {
    to[0] = std::max(to[0], MaximumOfFew(src, count));
    return;
  }
  const auto mask = hn::Set(d, kMagnitude<T>);
  const auto magnitudes = [&](size_t i) HWY_ATTR { return hn::And(hn::LoadU(d, src + i), mask); };
  auto maximum = hn::Load(d, to);
  size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    const auto first = hn::Max(magnitudes(i), magnitudes(i + lanes));
    const auto second = hn::Max(magnitudes(i + 2 * lanes), magnitudes(i + 3 * lanes));
    maximum = hn::Max(maximum, hn::Max(first, second));
  }
  for (; i + lanes <= count; i += lanes) {
    maximum = hn::Max(maximum, magnitudes(i));
  }
  // The rest, and some elements again, which changes no maximum.
  if (i != count) maximum = hn::Max(maximum, magnitudes(count - lanes));
  hn::Store(maximum, d, to);
#endif
}

template <typename T>
void CombineOf(OpenMaximum* open, const void* src, ptrdiff_t pitch, size_t rows,
               const BlockRow& row) {
  for (size_t r = 0; r < rows; ++r) {
    const T* const from = reinterpret_cast<const T*>(static_cast<const std::byte*>(src) +
                                                     static_cast<ptrdiff_t>(r) * pitch);
    for (BlockCursor at(row); !at.AtEnd(); at.Next()) {
      Combine(open[at.block()], from + at.column(), at.count());
    }
  }
}

#if HWY_TARGET == HWY_SCALAR

size_t ShortBlocks(float*, const std::byte*, Wide, Wide, size_t, size_t) { return 0; }

#else

template <typename T>
using Part = hn::CappedTag<T, 16 / sizeof(T)>;  // 16 bytes.

template <class D, class V = hn::Vec<D> >
HWY_INLINE auto FoldToPart(D d, V v) {
  if constexpr (hn::MaxLanes(d) * sizeof(hn::TFromD<D>) <= 16) {
    return v;
  } else {
    const hn::Half<D> half;
    return FoldToPart(half, hn::Max(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

// The maxima of 2^levels blocks in as many lanes, again and again.
template <typename T, size_t kBlock, int levels>
HWY_INLINE auto MaximaOfGroup(const T* src) {
  if constexpr (levels == 0) {
    const hn::CappedTag<T, kBlock> d;
    const auto mask = hn::Set(d, kMagnitude<T>);
    auto maximum = hn::And(hn::LoadU(d, src), mask);
    for (size_t i = hn::Lanes(d); i < kBlock; i += hn::Lanes(d)) {
      maximum = hn::Max(maximum, hn::And(hn::LoadU(d, src + i), mask));
    }
    return FoldToPart(d, maximum);
  } else {
    // Lanes that hold a group each of half as many blocks.
    using Lane = hwy::SignedFromSize<(sizeof(T) << (levels - 1))>;
    const Part<T> d;
    const Part<Lane> d_lanes;
    const auto a = hn::BitCast(d_lanes, MaximaOfGroup<T, kBlock, levels - 1>(src));
    const auto b =
        hn::BitCast(d_lanes, MaximaOfGroup<T, kBlock, levels - 1>(src + (kBlock << (levels - 1))));
    return hn::Max(hn::BitCast(d, hn::InterleaveLower(d_lanes, a, b)),
                   hn::BitCast(d, hn::InterleaveUpper(d_lanes, a, b)));
  }
}

// The bits of the maxima of as many blocks as there are whole groups; says how many.
template <size_t kBlock>
size_t MaximaOfGroups(uint32_t* bits, const void* src, Wide type, size_t count) {
  const Part<uint32_t> d;
  const Part<int32_t> di;
  size_t done = 0;
  if (type == Wide::kF32) {
    const int32_t* from = static_cast<const int32_t*>(src);
    for (; done + 4 <= count; done += 4, from += 4 * kBlock) {
      hn::StoreU(hn::BitCast(d, MaximaOfGroup<int32_t, kBlock, 2>(from)), d, bits + done);
    }
    return done;
  }
  const int16_t* from = static_cast<const int16_t*>(src);
  for (; done + 8 <= count; done += 8, from += 8 * kBlock) {
    const hn::Half<Part<int16_t> > half;
    const auto maxima = MaximaOfGroup<int16_t, kBlock, 3>(from);
    const auto low = hn::PromoteTo(di, hn::LowerHalf(half, maxima));
    const auto high = hn::PromoteTo(di, hn::UpperHalf(half, maxima));
    hn::StoreU(hn::BitCast(d, low), d, bits + done);
    hn::StoreU(hn::BitCast(d, high), d, bits + done + 4);
  }
  return done;
}

// Combines magnitudes of a type, given as their bits, rounded to `via`.
template <Wide type, Wide via>
HWY_INLINE void CombineBits(float* maxima, const uint32_t* bits, size_t count) {
  const D32 d;
  const hn::RebindToSigned<D32> di;
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    V32 found = hn::Load(d, bits + i);
    if constexpr (type == Wide::kBf16) found = hn::ShiftLeft<16>(found);
    if constexpr (type == Wide::kF16) found = F16ToF32(found);
    found = RoundVia<type, via>(found);
    // The last vector may have fewer blocks.
    const auto is_there = hn::FirstN(di, count - i);
    int32_t* const to = reinterpret_cast<int32_t*>(maxima + i);
    const auto old = hn::MaskedLoad(is_there, di, to);
    const V32 larger = hn::BitCast(d, hn::Max(old, hn::BitCast(di, found)));
    const V32 combined =
        hn::IfThenElse(Above(larger, 0x7f80'0000), hn::Set(d, 0x7fc0'0000), larger);
    hn::BlendedStore(hn::BitCast(di, combined), is_there, di, to);
  }
}

template <Wide type>
HWY_INLINE void CombineBitsVia(float* maxima, const uint32_t* bits, Wide via, size_t count) {
  switch (via) {
    case Wide::kF32:
      return CombineBits<type, Wide::kF32>(maxima, bits, count);
    case Wide::kF16:
      return CombineBits<type, Wide::kF16>(maxima, bits, count);
    case Wide::kBf16:
      return CombineBits<type, Wide::kBf16>(maxima, bits, count);
  }
}

template <size_t kBlock>
size_t ShortBlocksOf(float* maxima, const std::byte* src, Wide type, Wide via, size_t count) {
  alignas(64) uint32_t bits[64] = {};
  size_t done = 0;
  for (size_t found = 1; found != 0 && done != count; done += found) {
    found = MaximaOfGroups<kBlock>(bits, src + done * kBlock * SizeBytes(type), type,
                                   std::min(count - done, std::size(bits)));
    switch (type) {
      case Wide::kF32:
        CombineBitsVia<Wide::kF32>(maxima + done, bits, via, found);
        break;
      case Wide::kF16:
        CombineBitsVia<Wide::kF16>(maxima + done, bits, via, found);
        break;
      case Wide::kBf16:
        CombineBitsVia<Wide::kBf16>(maxima + done, bits, via, found);
        break;
    }
  }
  return done;
}

size_t ShortBlocks(float* maxima, const std::byte* src, Wide type, Wide via, size_t block_columns,
                   size_t count) {
  if (block_columns == 16) return ShortBlocksOf<16>(maxima, src, type, via, count);
  if (block_columns == 32) return ShortBlocksOf<32>(maxima, src, type, via, count);
  return 0;
}

#endif  // HWY_TARGET == HWY_SCALAR

#if HWY_TARGET == HWY_SCALAR

template <typename T>
uint64_t CountOf(const T* src, T largest_finite, size_t count) {
  uint64_t found = 0;
  for (size_t i = 0; i < count; ++i) found += (src[i] & kMagnitude<T>) > largest_finite;
  return found;
}

#else

template <typename T>
uint64_t CountOf(const T* src, T largest_finite, size_t count) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  const auto mask = hn::Set(d, kMagnitude<T>);
  const auto largest = hn::Set(d, largest_finite);
  uint64_t found = 0;
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    found += hn::CountTrue(d, hn::Gt(hn::And(hn::LoadU(d, src + i), mask), largest));
  }
  for (; i < count; ++i) found += (src[i] & kMagnitude<T>) > largest_finite;
  return found;
}

#endif  // HWY_TARGET == HWY_SCALAR

void CombineRows(OpenMaximum* open, const void* src, Wide type, ptrdiff_t pitch, size_t rows,
                 const BlockRow& row) {
  if (type == Wide::kF32) {
    CombineOf<int32_t>(open, src, pitch, rows, row);
  } else {
    CombineOf<int16_t>(open, src, pitch, rows, row);
  }
}

uint64_t CountRow(const void* src, Wide type, size_t columns) {
  switch (type) {
    case Wide::kF32:
      return CountOf<int32_t>(static_cast<const int32_t*>(src), 0x7f7f'ffff, columns);
    case Wide::kF16:
      return CountOf<int16_t>(static_cast<const int16_t*>(src), 0x7bff, columns);
    case Wide::kBf16:
      return CountOf<int16_t>(static_cast<const int16_t*>(src), 0x7f7f, columns);
  }
  __builtin_unreachable();
}

}  // namespace waybill::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace waybill::kernels {

HWY_EXPORT(CombineRows);
HWY_EXPORT(ShortBlocks);
HWY_EXPORT(CountRow);

void CombineOpenMaxima(OpenMaximum* open, const void* src, Wide type, ptrdiff_t src_pitch_bytes,
                       size_t rows, const BlockRow& row) {
  HWY_DYNAMIC_DISPATCH(CombineRows)(open, src, type, src_pitch_bytes, rows, row);
}

size_t CombineShortBlocks(float* maxima, const void* src, Wide type, Wide via, size_t block_columns,
                          size_t count) {
  return HWY_DYNAMIC_DISPATCH(ShortBlocks)(maxima, static_cast<const std::byte*>(src), type, via,
                                           block_columns, count);
}

uint64_t CountNonFiniteOfRow(const void* src, Wide type, size_t columns) {
  return HWY_DYNAMIC_DISPATCH(CountRow)(src, type, columns);
}

}  // namespace waybill::kernels
#endif  // HWY_ONCE
