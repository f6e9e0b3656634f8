#include "kernels/transpose_panel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/transpose_panel.cc"
#include <hwy/foreach_target.h>  // Includes this file once for each target.
//
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/round_bf16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace waybill::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A tile is square, and its rows are one cache line long.
constexpr size_t kLineBytes = 64;
template <typename T>
constexpr size_t kTileSide = kLineBytes / sizeof(T);

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
  static void Load(T* HWY_RESTRICT tile_row, const std::byte* HWY_RESTRICT src, size_t count) {
    if (count == kTileSide<T>) {
      std::memcpy(tile_row, src, kLineBytes);
    } else {
      std::memcpy(tile_row, src, count * sizeof(T));
    }
  }
};

struct Cast {
  static constexpr size_t kSourceBytes = sizeof(float);
  static void Load(uint16_t* tile_row, const std::byte* src, size_t count) {
    RoundRun(tile_row, reinterpret_cast<const uint32_t*>(src), count, 0);
  }
};

template <typename T, class Source>
void Panel(const TransposeBlock& block) {
  constexpr size_t kSide = kTileSide<T>;
  alignas(kLineBytes) T loaded[kSide * kSide] = {};
  alignas(kLineBytes) T transposed[kSide * kSide];
  for (size_t c = 0; c < block.columns; c += kSide) {
    const size_t tile_columns = std::min(kSide, block.columns - c);
    for (size_t r = 0; r < block.rows; r += kSide) {
      const size_t tile_rows = std::min(kSide, block.rows - r);
      const std::byte* src =
          block.src + static_cast<ptrdiff_t>(c) * block.src_pitch + r * Source::kSourceBytes;
      for (size_t i = 0; i < tile_columns; ++i, src += block.src_pitch) {
        if (c + i + kSide < block.columns) {
          hwy::Prefetch(src + static_cast<ptrdiff_t>(kSide) * block.src_pitch);
        }
        Source::Load(loaded + i * kSide, src, tile_rows);
      }
      TransposeTile<T>(transposed, loaded);
      std::byte* dst = block.dst + static_cast<ptrdiff_t>(r) * block.dst_pitch + c * sizeof(T);
      for (size_t i = 0; i < tile_rows; ++i, dst += block.dst_pitch) {
        if (tile_columns == kSide) {
          std::memcpy(dst, transposed + i * kSide, kLineBytes);
        } else {
          std::memcpy(dst, transposed + i * kSide, tile_columns * sizeof(T));
        }
      }
    }
  }
}

void TransposePanel(Element element, const TransposeBlock& block) {
  switch (element) {
    case Element::kBytes1:
      return Panel<uint8_t, Plain<uint8_t>>(block);
    case Element::kBytes2:
      return Panel<uint16_t, Plain<uint16_t>>(block);
    case Element::kBytes4:
      return Panel<uint32_t, Plain<uint32_t>>(block);
    case Element::kBytes8:
      return Panel<uint64_t, Plain<uint64_t>>(block);
    case Element::kF32ToBf16:
      return Panel<uint16_t, Cast>(block);
  }
}

}  // namespace waybill::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace waybill::kernels {

HWY_EXPORT(TransposePanel);

void TransposePanel(Element element, const TransposeBlock& block) {
  HWY_DYNAMIC_DISPATCH(TransposePanel)(element, block);
}

}  // namespace waybill::kernels
#endif  // HWY_ONCE
