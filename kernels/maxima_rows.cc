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
  // What is left, and some once more: that changes no maximum.
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
HWY_EXPORT(CountRow);

void CombineOpenMaxima(OpenMaximum* open, const void* src, Wide type, ptrdiff_t src_pitch_bytes,
                       size_t rows, const BlockRow& row) {
  HWY_DYNAMIC_DISPATCH(CombineRows)(open, src, type, src_pitch_bytes, rows, row);
}

uint64_t CountNonFiniteOfRow(const void* src, Wide type, size_t columns) {
  return HWY_DYNAMIC_DISPATCH(CountRow)(src, type, columns);
}

}  // namespace waybill::kernels
#endif  // HWY_ONCE
