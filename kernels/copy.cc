// SPDX-License-Identifier: Apache-2.0

#include "kernels/copy.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/copy.cc"
#include <hwy/foreach_target.h>  // Includes this file once for each target.
//
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/prefetch.h"

HWY_BEFORE_NAMESPACE();
namespace waybill::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Lines of 64 bytes are copied to destinations that are aligned to them.

#if HWY_TARGET != HWY_SCALAR
HWY_INLINE void StreamLine(uint8_t* HWY_RESTRICT dst, const uint8_t* HWY_RESTRICT src) {
  const hn::CappedTag<uint8_t, 64> d;
  for (size_t i = 0; i < 64; i += hn::Lanes(d)) hn::Stream(hn::LoadU(d, src + i), d, dst + i);
}
#endif

void StreamLines(uint8_t* HWY_RESTRICT dst, const uint8_t* HWY_RESTRICT src, size_t line_count,
                 [[maybe_unused]] ptrdiff_t ahead) {
#if HWY_TARGET == HWY_SCALAR
  std::memcpy(dst, src, line_count * 64);
#else
  for (size_t line = 0; line < line_count; ++line, src += 64, dst += 64) {
    PrefetchFar(src + ahead);
    StreamLine(dst, src);
  }
#endif
}

}  // namespace waybill::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace waybill::kernels {

HWY_EXPORT(StreamLines);

void Copy(void* dst, const void* src, size_t size_bytes, Stores stores) {
  if (stores == Stores::kCached) return CopyRun(dst, src, size_bytes, stores, 0);
  TakeLong(size_bytes, [&](size_t begin, size_t end, ptrdiff_t ahead) {
    CopyRun(static_cast<std::byte*>(dst) + begin, static_cast<const std::byte*>(src) + begin,
            end - begin, stores, ahead);
  });
}

void CopyRun(void* dst, const void* src, size_t size_bytes, Stores stores, ptrdiff_t ahead) {
  if (stores == Stores::kCached || size_bytes < 4 * kCacheLineBytes) {
    if (size_bytes != 0) std::memcpy(dst, src, size_bytes);
    return;
  }
  uint8_t* to = static_cast<uint8_t*>(dst);
  const uint8_t* from = static_cast<const uint8_t*>(src);
  const size_t head = -reinterpret_cast<uintptr_t>(to) % kCacheLineBytes;
  const size_t lines = (size_bytes - head) / kCacheLineBytes;
  const size_t tail = size_bytes - head - lines * kCacheLineBytes;
  std::memcpy(to, from, head);
  HWY_DYNAMIC_DISPATCH(StreamLines)(to + head, from + head, lines, ahead);
  std::memcpy(to + size_bytes - tail, from + size_bytes - tail, tail);
}

void StreamFence() { hwy::FlushStream(); }

}  // namespace waybill::kernels
#endif  // HWY_ONCE
