// SPDX-License-Identifier: Apache-2.0

// Rounds floats to BF16 in vectors. Compiled for each target of the file that includes this.

#if defined(KERNELS_ROUND_BF16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KERNELS_ROUND_BF16_INL_H_
#undef KERNELS_ROUND_BF16_INL_H_
#else
#define KERNELS_ROUND_BF16_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "kernels/prefetch.h"
#include "kernels/scalar.h"

HWY_BEFORE_NAMESPACE();
namespace waybill::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR
// Returns the bits of floats, rounded so that their upper halves are the BF16s.
template <class D>
HWY_INLINE hn::Vec<D> RoundToUpperHalf(D d, const uint32_t* src) {
  const auto bits = hn::LoadU(d, src);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(d, 0x7fff)), odd);
  // Magnitudes are positive as signed numbers too, and SSE compares only those.
  const hn::RebindToSigned<D> signed_d;
  const auto magnitude = hn::BitCast(signed_d, hn::And(bits, hn::Set(d, 0x7fff'ffff)));
  const auto is_nan = hn::RebindMask(d, hn::Gt(magnitude, hn::Set(signed_d, 0x7f80'0000)));
  return hn::IfThenElse(is_nan, hn::Or(bits, hn::Set(d, 0x0040'0000)), rounded);
}
#endif

// Prefetches the lines `ahead` bytes after two vectors of the source.
template <class D>
HWY_INLINE void PrefetchTwo(D d, const hn::TFromD<D>* src, ptrdiff_t ahead) {
  PrefetchFar(reinterpret_cast<const std::byte*>(src) + ahead);
  PrefetchFar(reinterpret_cast<const std::byte*>(src + hn::Lanes(d)) + ahead);
}

// Rounds `count` floats, and prefetches the lines `ahead` bytes after them.
HWY_INLINE void RoundRun(uint16_t* HWY_RESTRICT dst, const uint32_t* HWY_RESTRICT src, size_t count,
                         [[maybe_unused]] ptrdiff_t ahead) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<uint32_t> d32;
  const hn::Repartition<uint16_t, decltype(d32)> d16;
  const size_t lanes = hn::Lanes(d32);
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    PrefetchTwo(d32, src + i, ahead);
    const auto low = hn::BitCast(d16, RoundToUpperHalf(d32, src + i));
    const auto high = hn::BitCast(d16, RoundToUpperHalf(d32, src + i + lanes));
    hn::StoreU(hn::ConcatOdd(d16, high, low), d16, dst + i);
  }
#endif
  scalar::CastElements(Cast::kF32ToBf16, dst + i, src + i, count - i);
}

}  // namespace waybill::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // Included once for each target.
