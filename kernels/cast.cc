#include "kernels/cast.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cast.cc"
#include <hwy/foreach_target.h>  // Includes this file once for each target.
//
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "kernels/round_bf16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace waybill::kernels::HWY_NAMESPACE {

void CastRun(uint16_t* dst, const uint32_t* src, size_t count) { RoundRun(dst, src, count); }

}  // namespace waybill::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace waybill::kernels {

HWY_EXPORT(CastRun);

void CastF32ToBf16(void* dst, const void* src, size_t count, Stores stores, DigestStream* digest) {
  // Casts that digest or stream go through this piece, which stays in the first-level cache.
  constexpr size_t kPieceCount = kLeafBytes / 2;
  alignas(64) uint16_t piece[kPieceCount];
  uint16_t* to = static_cast<uint16_t*>(dst);
  const uint32_t* from = static_cast<const uint32_t*>(src);
  if (digest == nullptr && stores == Stores::kCached) {
    HWY_DYNAMIC_DISPATCH(CastRun)(to, from, count);
    return;
  }
  while (count != 0) {
    const size_t n = std::min(count, kPieceCount);
    HWY_DYNAMIC_DISPATCH(CastRun)(piece, from, n);
    if (digest == nullptr) {
      Copy(to, piece, n * 2, stores);
    } else {
      digest->AbsorbCopy(to, piece, n * 2, stores);
    }
    to += n;
    from += n;
    count -= n;
  }
}

}  // namespace waybill::kernels
#endif  // HWY_ONCE
