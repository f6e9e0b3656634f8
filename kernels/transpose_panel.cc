#include "kernels/transpose_panel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/transpose_panel.cc"
#include <hwy/foreach_target.h>  // Includes this file once for each target.
//
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/prefetch.h"
#include "kernels/round_bf16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace waybill::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A tile is square, and its rows are one cache line long.
template <typename T>
constexpr size_t kTileSide = kCacheLineBytes / sizeof(T);

// Transposes a tile. Both lie packed in the first-level cache.
template <typename T>
void TransposeTile(T* HWY_RESTRICT dst, const T* HWY_RESTRICT src) {
  constexpr size_t kSide = kTileSide<T>;
#if HWY_TARGET == HWY_SCALAR || HWY_HAVE_SCALABLE
  for (size_t r = 0; r < kSide; ++r) {
    for (size_t c = 0; c < kSide; ++c) dst[r * kSide + c] = src[c * kSide + r];
  }
#else
  // Blocks of one vector's side. Each stage is a perfect shuffle of the block's elements; as many
  // stages as the side has bits bring element (r, c) to (c, r).
  const hn::CappedTag<T, 16 / sizeof(T)> d;
  using V = hn::Vec<decltype(d)>;
  constexpr size_t kBlock = 16 / sizeof(T);
  for (size_t r = 0; r < kSide; r += kBlock) {
    for (size_t c = 0; c < kSide; c += kBlock) {
      V rows[kBlock];
#pragma GCC unroll 16
      for (size_t i = 0; i < kBlock; ++i) rows[i] = hn::Load(d, src + (c + i) * kSide + r);
#pragma GCC unroll 4
      for (size_t stage = 1; stage < kBlock; stage *= 2) {
        V shuffled[kBlock];
#pragma GCC unroll 8
        for (size_t i = 0; i < kBlock / 2; ++i) {
          shuffled[2 * i] = hn::InterleaveLower(d, rows[i], rows[i + kBlock / 2]);
          shuffled[2 * i + 1] = hn::InterleaveUpper(d, rows[i], rows[i + kBlock / 2]);
        }
#pragma GCC unroll 16
        for (size_t i = 0; i < kBlock; ++i) rows[i] = shuffled[i];
      }
#pragma GCC unroll 16
      for (size_t i = 0; i < kBlock; ++i) hn::Store(rows[i], d, dst + (r + i) * kSide + c);
    }
  }
#endif
}

// How a tile's row comes from the source.
template <typename T>
struct Plain {
  static constexpr size_t kSourceBytes = sizeof(T);
  static HWY_INLINE void Load(T* HWY_RESTRICT tile_row, const std::byte* HWY_RESTRICT src,
                              size_t count) {
    if (count == kTileSide<T>) {
      std::memcpy(tile_row, src, kCacheLineBytes);
    } else {
      std::memcpy(tile_row, src, count * sizeof(T));
    }
  }
};

struct Cast {
  static constexpr size_t kSourceBytes = sizeof(float);
  static HWY_INLINE void Load(uint16_t* tile_row, const std::byte* src, size_t count) {
    RoundRun(tile_row, reinterpret_cast<const uint32_t*>(src), count);
  }
};

// Stores `size_bytes` bytes of a tile's row: at most a line.
HWY_INLINE void StoreLine(std::byte* HWY_RESTRICT dst, const std::byte* HWY_RESTRICT line,
                          size_t size_bytes, Stores stores) {
  if (size_bytes != kCacheLineBytes) {
    std::memcpy(dst, line, size_bytes);
  } else if (stores == Stores::kStreaming) {
    const hn::CappedTag<uint8_t, kCacheLineBytes> d;
    for (size_t i = 0; i < kCacheLineBytes; i += hn::Lanes(d)) {
      hn::Stream(hn::Load(d, reinterpret_cast<const uint8_t*>(line) + i), d,
                 reinterpret_cast<uint8_t*>(dst) + i);
    }
  } else {
    std::memcpy(dst, line, kCacheLineBytes);
  }
}

// Asks for `width_bytes` bytes of each of `count` rows.
HWY_INLINE void PrefetchRows(const std::byte* row, ptrdiff_t pitch, size_t count,
                             size_t width_bytes) {
  for (size_t i = 0; i < count; ++i, row += pitch) {
    for (size_t at = 0; at < width_bytes; at += kCacheLineBytes) Prefetch(row + at);
  }
}

template <typename T, class Source>
void Panel(const TransposeBlock& block, Stores stores) {
  // Two tiles side by side: memory takes two neighbouring lines far better than one.
  constexpr size_t kAcross = 2;
  constexpr size_t kSide = kTileSide<T>;
  constexpr size_t kStep = kAcross * kSide;
  alignas(kCacheLineBytes) T loaded[kSide * kSide] = {};
  alignas(kCacheLineBytes) T transposed[kAcross][kSide * kSide];
  const size_t tiles_down = (block.rows + kSide - 1) / kSide;
  const size_t src_width_bytes = block.rows * Source::kSourceBytes;

  for (size_t c = 0; c < block.columns; c += kStep) {
    const std::byte* src = block.src + static_cast<ptrdiff_t>(c) * block.src_pitch;
    for (size_t t = 0; t < tiles_down; ++t) {
      const size_t tile_rows = std::min(kSide, block.rows - t * kSide);
      // Each tile down asks for its share of the rows of the next step, which come in whole width.
      const size_t ahead_begin = kStep + kStep * t / tiles_down;
      const size_t ahead_end = std::min(kStep + kStep * (t + 1) / tiles_down, block.columns - c);
      if (ahead_begin < ahead_end) {
        PrefetchRows(src + static_cast<ptrdiff_t>(ahead_begin) * block.src_pitch, block.src_pitch,
                     ahead_end - ahead_begin, src_width_bytes);
      }
      const size_t columns = std::min(kStep, block.columns - c);
      for (size_t a = 0; a * kSide < columns; ++a) {
        const std::byte* from = src + static_cast<ptrdiff_t>(a * kSide) * block.src_pitch +
                                t * kSide * Source::kSourceBytes;
        for (size_t i = 0; i < std::min(kSide, columns - a * kSide); ++i) {
          Source::Load(loaded + i * kSide, from, tile_rows);
          from += block.src_pitch;
        }
        TransposeTile<T>(transposed[a], loaded);
      }
      std::byte* dst =
          block.dst + static_cast<ptrdiff_t>(t * kSide) * block.dst_pitch + c * sizeof(T);
      for (size_t i = 0; i < tile_rows; ++i, dst += block.dst_pitch) {
        for (size_t a = 0; a * kSide < columns; ++a) {
          const size_t size_bytes = std::min(kSide, columns - a * kSide) * sizeof(T);
          StoreLine(dst + a * kCacheLineBytes,
                    reinterpret_cast<const std::byte*>(transposed[a] + i * kSide), size_bytes,
                    stores);
        }
      }
    }
  }
}

void TransposePanel(Element element, const TransposeBlock& block, Stores stores) {
  switch (element) {
    case Element::kBytes1:
      return Panel<uint8_t, Plain<uint8_t>>(block, stores);
    case Element::kBytes2:
      return Panel<uint16_t, Plain<uint16_t>>(block, stores);
    case Element::kBytes4:
      return Panel<uint32_t, Plain<uint32_t>>(block, stores);
    case Element::kBytes8:
      return Panel<uint64_t, Plain<uint64_t>>(block, stores);
    case Element::kF32ToBf16:
      return Panel<uint16_t, Cast>(block, stores);
  }
}

}  // namespace waybill::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace waybill::kernels {

HWY_EXPORT(TransposePanel);

void TransposePanel(Element element, const TransposeBlock& block, Stores stores) {
  HWY_DYNAMIC_DISPATCH(TransposePanel)(element, block, stores);
}

}  // namespace waybill::kernels
#endif  // HWY_ONCE
