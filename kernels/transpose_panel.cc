// SPDX-License-Identifier: Apache-2.0

#include "kernels/transpose_panel.h"

// Not for what has no AVX2: no server with GPUs is so old, and each target has its size.
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSE4 | HWY_SSSE3)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/transpose_panel.cc"
#include <hwy/foreach_target.h>  // Includes this file once for each target.
//
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/absorb_stripe-inl.h"
#include "kernels/prefetch.h"
#include "kernels/round_bf16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace waybill::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A tile is square, and its rows are one cache line long.
template <typename T>
constexpr size_t kTileSide = kCacheLineBytes / sizeof(T);

#if HWY_TARGET != HWY_SCALAR && !HWY_HAVE_SCALABLE
// Transposes a square of elements, each row of which fills one vector.
template <typename T, class D>
HWY_INLINE void TransposeSquare(D d, T* HWY_RESTRICT dst, size_t dst_pitch,
                                const std::byte* HWY_RESTRICT src, ptrdiff_t src_pitch) {
  using V = hn::Vec<D>;
  constexpr size_t kSide = hn::MaxLanes(d);
  constexpr size_t kBlock = 16 / sizeof(T);  // The elements of a block, in which vectors shuffle.
  constexpr size_t kBlocks = kSide / kBlock;
  V rows[kSide];
  // Each stage is a perfect shuffle of the elements of kBlock rows, block by block; as many stages
  // as the block's side has bits bring element (r, c) to (c, r).
#pragma GCC unroll 4
  for (size_t b = 0; b < kBlocks; ++b) {
    V* const block = rows + b * kBlock;
#pragma GCC unroll 16
    for (size_t i = 0; i < kBlock; ++i) {
      block[i] = hn::LoadU(d, reinterpret_cast<const T*>(src));
      src += src_pitch;
    }
    // GCC would compute the addresses of all rows first, for which it has too few registers.
    asm volatile("" : "+r"(src));
#pragma GCC unroll 4
    for (size_t stage = 1; stage < kBlock; stage *= 2) {
      V shuffled[kBlock];
#pragma GCC unroll 8
      for (size_t i = 0; i < kBlock / 2; ++i) {
        shuffled[2 * i] = hn::InterleaveLower(d, block[i], block[i + kBlock / 2]);
        shuffled[2 * i + 1] = hn::InterleaveUpper(d, block[i], block[i + kBlock / 2]);
      }
#pragma GCC unroll 16
      for (size_t i = 0; i < kBlock; ++i) block[i] = shuffled[i];
    }
  }
  // Then the blocks change places: block l of the vector that came from block b of rows becomes
  // block b of the vector that goes to block l of rows.
#pragma GCC unroll 16
  for (size_t i = 0; i < kBlock; ++i) {
    V* const r = rows + i;
    if constexpr (kBlocks == 2) {
      const V lower = hn::ConcatLowerLower(d, r[kBlock], r[0]);
      r[kBlock] = hn::ConcatUpperUpper(d, r[kBlock], r[0]);
      r[0] = lower;
    }
    if constexpr (kBlocks == 4) {
      const V even0 = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(r[kBlock]), r[0]);
      const V odd0 = hn::OddEvenBlocks(r[kBlock], hn::SwapAdjacentBlocks(r[0]));
      const V even1 = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(r[3 * kBlock]), r[2 * kBlock]);
      const V odd1 = hn::OddEvenBlocks(r[3 * kBlock], hn::SwapAdjacentBlocks(r[2 * kBlock]));
      r[0] = hn::ConcatLowerLower(d, even1, even0);
      r[kBlock] = hn::ConcatLowerLower(d, odd1, odd0);
      r[2 * kBlock] = hn::ConcatUpperUpper(d, even1, even0);
      r[3 * kBlock] = hn::ConcatUpperUpper(d, odd1, odd0);
    }
  }
#pragma GCC unroll 64
  for (size_t i = 0; i < kSide; ++i) hn::Store(rows[i], d, dst + i * dst_pitch);
}
#endif

// Transposes a tile from wherever its rows lie. `dst` is packed, and in the first-level cache.
template <typename T>
void TransposeTile(T* HWY_RESTRICT dst, const std::byte* HWY_RESTRICT src, ptrdiff_t src_pitch) {
  constexpr size_t kSide = kTileSide<T>;
#if HWY_TARGET == HWY_SCALAR || HWY_HAVE_SCALABLE
  for (size_t c = 0; c < kSide; ++c, src += src_pitch) {
    for (size_t r = 0; r < kSide; ++r) {
      std::memcpy(dst + r * kSide + c, src + r * sizeof(T), sizeof(T));
    }
  }
#else
  const hn::CappedTag<T, kSide> d;
  constexpr size_t kStep = hn::MaxLanes(d);
  for (size_t c = 0; c < kSide; c += kStep) {
    for (size_t r = 0; r < kSide; r += kStep) {
      TransposeSquare(d, dst + r * kSide + c, kSide,
                      src + static_cast<ptrdiff_t>(c) * src_pitch + r * sizeof(T), src_pitch);
    }
  }
#endif
}

// Loads a row of a tile as it is.
template <typename T>
struct Plain {
  static constexpr size_t kSourceBytes = sizeof(T);
  static constexpr bool kAsItLies = true;  // A whole tile can be transposed from where it lies.
  static HWY_INLINE void Load(T* HWY_RESTRICT tile_row, const std::byte* HWY_RESTRICT src,
                              size_t count) {
    if (count == kTileSide<T>) {
      std::memcpy(tile_row, src, kCacheLineBytes);
    } else {
      std::memcpy(tile_row, src, count * sizeof(T));
    }
  }
};

// Loads a row of a tile and casts it.
struct Cast {
  static constexpr size_t kSourceBytes = sizeof(float);
  static constexpr bool kAsItLies = false;
  static HWY_INLINE void Load(uint16_t* tile_row, const std::byte* src, size_t count) {
    RoundRun(tile_row, reinterpret_cast<const uint32_t*>(src), count, 0);
  }
};

// Transposes the `rows` x `columns` elements at `src`, at most a tile of them.
template <typename T, class Source>
HWY_INLINE void TileFrom(T* HWY_RESTRICT transposed, const std::byte* src, ptrdiff_t src_pitch,
                         size_t rows, size_t columns) {
  constexpr size_t kSide = kTileSide<T>;
  if (Source::kAsItLies && rows == kSide && columns == kSide) {
    TransposeTile<T>(transposed, src, src_pitch);
    return;
  }
  alignas(kCacheLineBytes) T loaded[kSide * kSide];
  if (rows != kSide || columns != kSide) std::memset(loaded, 0, sizeof(loaded));
  for (size_t i = 0; i < columns; ++i, src += src_pitch) {
    Source::Load(loaded + i * kSide, src, rows);
  }
  TransposeTile<T>(transposed, reinterpret_cast<const std::byte*>(loaded), kCacheLineBytes);
}

// Stores a row of tiles side by side, `tile_bytes` apart: `size_bytes` bytes, which end in the
// last.
template <size_t kTiles>
HWY_INLINE void StoreRow(std::byte* HWY_RESTRICT dst, const std::byte* HWY_RESTRICT line,
                         size_t tile_bytes, size_t size_bytes, Stores stores) {
  const hn::CappedTag<uint8_t, kCacheLineBytes> d;
  if (size_bytes == kTiles * kCacheLineBytes && stores == Stores::kStreaming) {
#pragma GCC unroll 4
    for (size_t a = 0; a < kTiles; ++a) {
      for (size_t i = 0; i < kCacheLineBytes; i += hn::Lanes(d)) {
        hn::Stream(hn::Load(d, reinterpret_cast<const uint8_t*>(line + a * tile_bytes) + i), d,
                   reinterpret_cast<uint8_t*>(dst + a * kCacheLineBytes) + i);
      }
    }
    return;
  }
  for (; size_bytes > kCacheLineBytes; size_bytes -= kCacheLineBytes) {
    std::memcpy(dst, line, kCacheLineBytes);
    dst += kCacheLineBytes;
    line += tile_bytes;
  }
  std::memcpy(dst, line, size_bytes);
}

// Absorbs what StoreRow() stores, whole stripes from `offset` of the window on.
template <size_t kTiles>
HWY_INLINE void AbsorbRow(const std::byte* HWY_RESTRICT line, size_t tile_bytes, size_t size_bytes,
                          size_t offset, StripeWindow* window) {
  if (size_bytes == kTiles * kStripeBytes && window->IsOneLeaf(offset, size_bytes)) {
    AbsorbNeighbours<kTiles>(line, tile_bytes, window->keys(offset), window->lanes(offset));
    return;
  }
  for (size_t at = 0; at < size_bytes; at += kStripeBytes, line += tile_bytes) {
    AbsorbNeighbours<1>(line, tile_bytes, window->keys(offset + at), window->lanes(offset + at));
  }
}

// Prefetches lines of rows, one after the other, each row in its whole width.
class LinesAhead {
 public:
  LinesAhead(const std::byte* row, ptrdiff_t pitch, size_t rows, size_t width_bytes)
      : row_(row), pitch_(pitch), rows_(rows), width_bytes_(width_bytes) {}

  HWY_INLINE void Ask(size_t lines) {
    for (; lines > 0 && rows_ > 0; --lines) {
      PrefetchFar(row_ + at_);
      at_ += kCacheLineBytes;
      if (at_ < width_bytes_) continue;
      at_ = 0;
      row_ += pitch_;
      --rows_;
    }
  }

 private:
  const std::byte* row_;
  const ptrdiff_t pitch_;
  size_t rows_;
  const size_t width_bytes_;
  size_t at_ = 0;
};

template <typename T, class Source>
void Panel(const TransposeBlock& block, Stores stores, StripeWindow* window) {
  // Two tiles side by side: memory takes two neighbouring lines better than one.
  constexpr size_t kAcross = 2;
  constexpr size_t kSide = kTileSide<T>;
  constexpr size_t kStep = kAcross * kSide;
  alignas(kCacheLineBytes) T transposed[kAcross][kSide * kSide];
  if (block.rows == 0) return;

  // Each row that is stored asks for its share of the next step's rows.
  const size_t src_width_bytes = block.rows * Source::kSourceBytes;
  const size_t step_lines = kStep * ((src_width_bytes + kCacheLineBytes - 1) / kCacheLineBytes);
  const size_t lines_each = (step_lines + block.rows - 1) / block.rows;
  LinesAhead ahead(block.src, block.src_pitch, block.columns, src_width_bytes);
  ahead.Ask(step_lines);

  const size_t tile_rows = std::min(kSide, block.rows);
  for (size_t c = 0; c < block.columns; c += kStep) {
    const size_t columns = std::min(kStep, block.columns - c);
    const std::byte* const src = block.src + static_cast<ptrdiff_t>(c) * block.src_pitch;
    for (size_t begin = 0; begin < block.rows; begin += kSide) {
      // The last tile begins early where it would not be whole, and its first rows are left alone.
      const size_t first = std::min(begin, block.rows - tile_rows);
      for (size_t a = 0; a * kSide < columns; ++a) {
        TileFrom<T, Source>(transposed[a],
                            src + static_cast<ptrdiff_t>(a * kSide) * block.src_pitch +
                                first * Source::kSourceBytes,
                            block.src_pitch, tile_rows, std::min(kSide, columns - a * kSide));
      }
      const auto* const lines = reinterpret_cast<const std::byte*>(&transposed[0][0]);
      for (size_t r = begin; r < first + tile_rows; ++r) {
        ahead.Ask(lines_each);
        StoreRow<kAcross>(block.dst + static_cast<ptrdiff_t>(r) * block.dst_pitch + c * sizeof(T),
                          lines + (r - first) * kCacheLineBytes, sizeof(transposed[0]),
                          columns * sizeof(T), stores);
      }
      if (window == nullptr) continue;
      const std::byte* line = lines + (begin - first) * kCacheLineBytes;
      size_t offset = (begin * block.columns + c) * sizeof(T);
      for (size_t r = begin; r < first + tile_rows; ++r) {
        AbsorbRow<kAcross>(line, sizeof(transposed[0]), columns * sizeof(T), offset, window);
        line += kCacheLineBytes;
        offset += block.columns * sizeof(T);
      }
    }
  }
}

void TransposePanel(Element element, const TransposeBlock& block, Stores stores,
                    StripeWindow* window) {
  switch (element) {
    case Element::kBytes1:
      return Panel<uint8_t, Plain<uint8_t>>(block, stores, window);
    case Element::kBytes2:
      return Panel<uint16_t, Plain<uint16_t>>(block, stores, window);
    case Element::kBytes4:
      return Panel<uint32_t, Plain<uint32_t>>(block, stores, window);
    case Element::kBytes8:
      return Panel<uint64_t, Plain<uint64_t>>(block, stores, window);
    case Element::kF32ToBf16:
      return Panel<uint16_t, Cast>(block, stores, window);
  }
}

}  // namespace waybill::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace waybill::kernels {

HWY_EXPORT(TransposePanel);

void TransposePanel(Element element, const TransposeBlock& block, Stores stores,
                    StripeWindow* window) {
  HWY_DYNAMIC_DISPATCH(TransposePanel)(element, block, stores, window);
}

}  // namespace waybill::kernels
#endif  // HWY_ONCE
