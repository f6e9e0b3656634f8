// SPDX-License-Identifier: Apache-2.0

#include "kernels/cast.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cast.cc"
#include <hwy/foreach_target.h>  // Includes this file once for each target.
//
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "kernels/prefetch.h"
#include "kernels/round_bf16-inl.h"
#include "kernels/scalar_elements.h"
#include "kernels/wide_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace waybill::kernels::HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR
// Return the next F32s, or as many BF16s as F32s.
HWY_INLINE V32 LoadAsF32(D32 d, const uint32_t* src) { return hn::LoadU(d, src); }
HWY_INLINE V32 LoadAsF32(D32 d, const uint16_t* src) {
  return hn::ShiftLeft<16>(hn::PromoteTo(d, hn::LoadU(hn::Rebind<uint16_t, D32>(), src)));
}
#endif

// `From`: uint32_t for F32s, uint16_t for BF16s.
template <Cast cast, class From>
void NarrowToF16(uint16_t* HWY_RESTRICT dst, const From* HWY_RESTRICT src, size_t count,
                 [[maybe_unused]] ptrdiff_t ahead) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const D32 d;
  const size_t lanes = hn::Lanes(d);
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    PrefetchFar(reinterpret_cast<const std::byte*>(src + i) + ahead);
    if constexpr (sizeof(From) == 4) {
      PrefetchFar(reinterpret_cast<const std::byte*>(src + i + lanes) + ahead);
    }
    const V32 low = F32ToF16(LoadAsF32(d, src + i));
    const V32 high = F32ToF16(LoadAsF32(d, src + i + lanes));
    hn::StoreU(JoinLowHalves<Wide::kF32>(low, high), D16(), dst + i);
  }
#endif
  scalar::CastElements(cast, dst + i, src + i, count - i);
}

template <Cast cast>
void Widen(uint32_t* HWY_RESTRICT dst, const uint16_t* HWY_RESTRICT src, size_t count,
           [[maybe_unused]] ptrdiff_t ahead) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const D32 d;
  const hn::Rebind<uint16_t, D32> d16;
  const size_t lanes = hn::Lanes(d);
  for (; i + lanes <= count; i += lanes) {
    PrefetchFar(reinterpret_cast<const std::byte*>(src + i) + ahead);
    const V32 half = hn::PromoteTo(d, hn::LoadU(d16, src + i));
    hn::StoreU(cast == Cast::kBf16ToF32 ? hn::ShiftLeft<16>(half) : F16ToF32(half), d, dst + i);
  }
#endif
  scalar::CastElements(cast, dst + i, src + i, count - i);
}

void CastRun(Cast cast, void* dst, const void* src, size_t count, ptrdiff_t ahead) {
  auto* const narrow = static_cast<uint16_t*>(dst);
  const auto* const wide = static_cast<const uint32_t*>(src);
  auto* const widened = static_cast<uint32_t*>(dst);
  const auto* const lower = static_cast<const uint16_t*>(src);
  switch (cast) {
    case Cast::kF32ToBf16:
      return RoundRun(narrow, wide, count, ahead);
    case Cast::kF32ToF16:
      return NarrowToF16<Cast::kF32ToF16>(narrow, wide, count, ahead);
    case Cast::kBf16ToF32:
      return Widen<Cast::kBf16ToF32>(widened, lower, count, ahead);
    case Cast::kF16ToF32:
      return Widen<Cast::kF16ToF32>(widened, lower, count, ahead);
    case Cast::kBf16ToF16:
      return NarrowToF16<Cast::kBf16ToF16>(narrow, lower, count, ahead);
  }
}

}  // namespace waybill::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace waybill::kernels {

HWY_EXPORT(CastRun);

void CastElements(Cast cast, void* dst, const void* src, size_t count, Stores stores,
                  DigestStream* digest) {
  if (digest == nullptr && stores == Stores::kCached) {
    HWY_DYNAMIC_DISPATCH(CastRun)(cast, dst, src, count, 0);
    return;
  }
  constexpr ptrdiff_t kAheadBytes = 2 * kFarBytes;
  // Casts that digest or stream go through this piece, which stays in the first-level cache.
  alignas(64) std::byte piece[kLeafBytes];
  const size_t to_bytes = SizeBytes(DestinationOf(cast));
  const size_t from_bytes = SizeBytes(SourceOf(cast));
  auto* to = static_cast<std::byte*>(dst);
  const auto* from = static_cast<const std::byte*>(src);
  while (count != 0) {
    const size_t n = std::min(count, kLeafBytes / to_bytes);
    const bool more = (count - n) * from_bytes >= static_cast<size_t>(kAheadBytes);
    HWY_DYNAMIC_DISPATCH(CastRun)(cast, piece, from, n, more ? kAheadBytes : 0);
    if (digest == nullptr) {
      Copy(to, piece, n * to_bytes, stores);
    } else {
      digest->AbsorbCopy(to, piece, n * to_bytes, stores);
    }
    to += n * to_bytes;
    from += n * from_bytes;
    count -= n;
  }
}

}  // namespace waybill::kernels
#endif  // HWY_ONCE
