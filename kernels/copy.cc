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

// Copies kRowsAtOnce rows of `line_count` lines.
void StreamRows(uint8_t* HWY_RESTRICT dst, ptrdiff_t dst_pitch, const uint8_t* HWY_RESTRICT src,
                ptrdiff_t src_pitch, size_t line_count) {
#if HWY_TARGET == HWY_SCALAR
  for (size_t row = 0; row < kRowsAtOnce; ++row, dst += dst_pitch, src += src_pitch) {
    std::memcpy(dst, src, line_count * 64);
  }
#else
  for (size_t line = 0; line < line_count; ++line, dst += 64, src += 64) {
    for (ptrdiff_t row = 0; row < static_cast<ptrdiff_t>(kRowsAtOnce); ++row) {
      StreamLine(dst + row * dst_pitch, src + row * src_pitch);
    }
  }
#endif
}

void StreamLines(uint8_t* HWY_RESTRICT dst, const uint8_t* HWY_RESTRICT src, size_t line_count) {
#if HWY_TARGET == HWY_SCALAR
  std::memcpy(dst, src, line_count * 64);
#else
  // Pages are such rows too.
  constexpr size_t kPageBytes = 4096, kPageLines = kPageBytes / 64;
  for (; line_count >= kRowsAtOnce * kPageLines; line_count -= kRowsAtOnce * kPageLines) {
    StreamRows(dst, kPageBytes, src, kPageBytes, kPageLines);
    src += kRowsAtOnce * kPageBytes;
    dst += kRowsAtOnce * kPageBytes;
  }
  constexpr size_t kLinesAhead = 16;
  for (size_t line = 0; line < line_count; ++line, src += 64, dst += 64) {
    if (line + kLinesAhead < line_count) Prefetch(src + kLinesAhead * 64);
    StreamLine(dst, src);
  }
#endif
}

}  // namespace waybill::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace waybill::kernels {

HWY_EXPORT(StreamLines);
HWY_EXPORT(StreamRows);

void Copy(void* dst, const void* src, size_t size_bytes, Stores stores) {
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
  HWY_DYNAMIC_DISPATCH(StreamLines)(to + head, from + head, lines);
  std::memcpy(to + size_bytes - tail, from + size_bytes - tail, tail);
}

void Copy(void* dst, ptrdiff_t dst_pitch, const void* src, ptrdiff_t src_pitch, size_t rows,
          size_t row_bytes, Stores stores) {
  uint8_t* to = static_cast<uint8_t*>(dst);
  const uint8_t* from = static_cast<const uint8_t*>(src);
  if (stores == Stores::kStreaming && reinterpret_cast<uintptr_t>(to) % kCacheLineBytes == 0 &&
      dst_pitch % static_cast<ptrdiff_t>(kCacheLineBytes) == 0 &&
      row_bytes % kCacheLineBytes == 0) {
    for (; rows >= kRowsAtOnce; rows -= kRowsAtOnce) {
      HWY_DYNAMIC_DISPATCH(StreamRows)(to, dst_pitch, from, src_pitch, row_bytes / kCacheLineBytes);
      to += static_cast<ptrdiff_t>(kRowsAtOnce) * dst_pitch;
      from += static_cast<ptrdiff_t>(kRowsAtOnce) * src_pitch;
    }
  }
  for (; rows > 0; --rows, to += dst_pitch, from += src_pitch) Copy(to, from, row_bytes, stores);
}

void StreamFence() { hwy::FlushStream(); }

}  // namespace waybill::kernels
#endif  // HWY_ONCE
