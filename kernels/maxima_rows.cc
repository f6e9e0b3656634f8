#include "kernels/maxima_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/maxima_rows.cc"
#include <hwy/foreach_target.h>  // Includes this file once for each target.
//
#include <hwy/highway.h>

#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace waybill::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// T: signed integers of the elements' size, of which magnitudes are not negative.
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

template <typename T>
HWY_INLINE const T* RowAt(const void* src, ptrdiff_t pitch, size_t row) {
  return reinterpret_cast<const T*>(static_cast<const std::byte*>(src) +
                                    static_cast<ptrdiff_t>(row) * pitch);
}

#if HWY_TARGET == HWY_SCALAR

template <typename T>
void FindMaximaOf(uint32_t* bits, const void* src, ptrdiff_t pitch, size_t rows,
                  const BlockRow& row) {
  std::fill(bits, bits + row.Blocks(), 0);
  for (size_t r = 0; r < rows; ++r) {
    ForEachBlock(row, [&](size_t block, size_t column, size_t count) {
      const T maximum = MaximumOfFew(RowAt<T>(src, pitch, r) + column, count);
      bits[block] = std::max(bits[block], static_cast<uint32_t>(maximum));
    });
  }
}

template <typename T>
uint64_t CountOf(const T* src, T largest_finite, size_t count) {
  uint64_t found = 0;
  for (size_t i = 0; i < count; ++i) found += (src[i] & kMagnitude<T>) > largest_finite;
  return found;
}

#else

// The maxima of one block's part of a row, lane by lane.
template <class D, typename T>
HWY_INLINE hn::Vec<D> MaximumOfRun(D d, hn::Vec<D> maximum, const T* src, size_t count) {
  const size_t lanes = hn::Lanes(d);
  const auto mask = hn::Set(d, kMagnitude<T>);
  if (count < lanes) return hn::Max(maximum, hn::Set(d, MaximumOfFew(src, count)));
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    maximum = hn::Max(maximum, hn::And(hn::LoadU(d, src + i), mask));
  }
  if (i == count) return maximum;
  // What is left, and some once more: that changes no maximum.
  return hn::Max(maximum, hn::And(hn::LoadU(d, src + count - lanes), mask));
}

// Rows are read in order; the blocks' maxima stay in vectors.
template <typename T>
void FindMaximaOf(uint32_t* bits, const void* src, ptrdiff_t pitch, size_t rows,
                  const BlockRow& row) {
  using D = hn::ScalableTag<T>;
  const D d;
  const size_t lanes = hn::Lanes(d);
  alignas(64) T maxima[kMostBlocks * hn::MaxLanes(D())];
  for (size_t r = 0; r < rows; ++r) {
    const T* const from = RowAt<T>(src, pitch, r);
    ForEachBlock(row, [&](size_t block, size_t column, size_t count) HWY_ATTR {
      T* const to = maxima + block * lanes;
      const auto before = r == 0 ? hn::Zero(d) : hn::Load(d, to);
      hn::Store(MaximumOfRun(d, before, from + column, count), d, to);
    });
  }
  for (size_t block = 0; block < row.Blocks(); ++block) {
    const T maximum = hn::GetLane(hn::MaxOfLanes(d, hn::Load(d, maxima + block * lanes)));
    bits[block] = static_cast<uint32_t>(maximum);
  }
}

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

void FindMaximaIn(uint32_t* bits, const void* src, Wide type, ptrdiff_t pitch, size_t rows,
                  const BlockRow& row) {
  if (type == Wide::kF32) {
    FindMaximaOf<int32_t>(bits, src, pitch, rows, row);
  } else {
    FindMaximaOf<int16_t>(bits, src, pitch, rows, row);
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

HWY_EXPORT(FindMaximaIn);
HWY_EXPORT(CountRow);

void FindMaxima(uint32_t* bits, const void* src, Wide type, ptrdiff_t src_pitch_bytes, size_t rows,
                const BlockRow& row) {
  HWY_DYNAMIC_DISPATCH(FindMaximaIn)(bits, src, type, src_pitch_bytes, rows, row);
}

uint64_t CountNonFiniteOfRow(const void* src, Wide type, size_t columns) {
  return HWY_DYNAMIC_DISPATCH(CountRow)(src, type, columns);
}

}  // namespace waybill::kernels
#endif  // HWY_ONCE
