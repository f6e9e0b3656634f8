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

// Copies `line_count` cache lines of 64 bytes to `dst`, which is aligned to one.
void StreamLines(uint8_t* HWY_RESTRICT dst, const uint8_t* HWY_RESTRICT src, size_t line_count) {
#if HWY_TARGET == HWY_SCALAR
  std::memcpy(dst, src, line_count * 64);
#else
  // Hardware prefetchers stop at the end of a page.
  constexpr size_t kLinesAhead = 16;
  const hn::CappedTag<uint8_t, 64> d;
  const size_t vector_bytes = hn::Lanes(d);
  for (size_t line = 0; line < line_count; ++line, src += 64, dst += 64) {
    if (line + kLinesAhead < line_count) Prefetch(src + kLinesAhead * 64);
    for (size_t i = 0; i < 64; i += vector_bytes) {
      hn::Stream(hn::LoadU(d, src + i), d, dst + i);
    }
  }
#endif
}

}  // namespace waybill::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace waybill::kernels {

HWY_EXPORT(StreamLines);

void Copy(void* dst, const void* src, size_t size_bytes, Stores stores) {
  constexpr size_t kLineBytes = 64;
  if (stores == Stores::kCached || size_bytes < 4 * kLineBytes) {
    if (size_bytes != 0) std::memcpy(dst, src, size_bytes);
    return;
  }
  uint8_t* to = static_cast<uint8_t*>(dst);
  const uint8_t* from = static_cast<const uint8_t*>(src);
  const size_t head = -reinterpret_cast<uintptr_t>(to) % kLineBytes;
  const size_t lines = (size_bytes - head) / kLineBytes;
  const size_t tail = size_bytes - head - lines * kLineBytes;
  std::memcpy(to, from, head);
  HWY_DYNAMIC_DISPATCH(StreamLines)(to + head, from + head, lines);
  std::memcpy(to + size_bytes - tail, from + size_bytes - tail, tail);
}

void StreamFence() { hwy::FlushStream(); }

}  // namespace waybill::kernels
#endif  // HWY_ONCE
