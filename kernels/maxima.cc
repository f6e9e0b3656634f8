// SPDX-License-Identifier: Apache-2.0

#include "kernels/maxima.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/block_row.h"
#include "kernels/maxima_rows.h"
#include "kernels/scalar_elements.h"

namespace waybill::kernels {
namespace {

template <typename T>
T LargestLane(const OpenMaximum& open) {
  T lanes[sizeof(OpenMaximum) / sizeof(T)];
  std::memcpy(lanes, open.lanes, sizeof(lanes));
  T largest = 0;
  for (const T lane : lanes) largest = std::max(largest, lane);
  return largest;
}

// Rounding keeps the order of magnitudes: the largest of the rounded ones is the largest, rounded.
float Close(const OpenMaximum& open, Wide type, Wide via) {
  float magnitude;
  if (type == Wide::kF32) {
    magnitude = std::bit_cast<float>(LargestLane<uint32_t>(open));
  } else {
    const uint16_t bits = LargestLane<uint16_t>(open);
    magnitude = type == Wide::kBf16 ? scalar::Bf16ToF32(bits) : scalar::F16ToF32(bits);
  }
  return via == type ? magnitude : scalar::Via(magnitude, via);
}

}  // namespace

float CombineMaximum(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::bit_cast<float>(0x7fc0'0000);
  return std::max(a, b);
}

void CombineMaxima(float* maxima, ptrdiff_t maxima_pitch, const void* src, Wide type, Wide via,
                   ptrdiff_t src_pitch_bytes, size_t rows, size_t columns, const BlockGrid& grid) {
  constexpr size_t kBlocksAtOnce = 64;  // Open blocks stay in the first-level cache.
  OpenMaximum open[kBlocksAtOnce];
  const std::byte* from = static_cast<const std::byte*>(src);
  size_t band_rows = grid.block_rows - grid.row_phase;
  for (size_t r = 0; r < rows; r += band_rows, band_rows = grid.block_rows) {
    band_rows = std::min(band_rows, rows - r);
    BlockRow row{columns, grid.block_columns - grid.column_phase, grid.block_columns};
    float* to = maxima;
    size_t first_column = 0;
    if (band_rows == 1 && grid.column_phase == 0) {
      const size_t blocks =
          CombineShortBlocks(to, from, type, via, grid.block_columns, columns / grid.block_columns);
      to += blocks;
      first_column = blocks * grid.block_columns;
    }
    for (size_t column = first_column; column < columns; column += row.columns) {
      row.columns = columns - column;
      size_t blocks = row.Blocks();
      if (blocks > kBlocksAtOnce) {
        blocks = kBlocksAtOnce;
        row.columns = row.first_block + (blocks - 1) * row.block_columns;
      }
      std::fill(open, open + blocks, OpenMaximum());
      CombineOpenMaxima(open, from + column * SizeBytes(type), type, src_pitch_bytes, band_rows,
                        row);
      for (size_t b = 0; b < blocks; ++b) to[b] = CombineMaximum(to[b], Close(open[b], type, via));
      to += blocks;
      row.first_block = row.block_columns;
    }
    from += static_cast<ptrdiff_t>(band_rows) * src_pitch_bytes;
    maxima += maxima_pitch;
  }
}

uint64_t CountNonFinite(const void* src, Wide type, ptrdiff_t src_pitch_bytes, size_t rows,
                        size_t columns) {
  const std::byte* from = static_cast<const std::byte*>(src);
  uint64_t count = 0;
  for (size_t r = 0; r < rows; ++r, from += src_pitch_bytes) {
    count += CountNonFiniteOfRow(from, type, columns);
  }
  return count;
}

}  // namespace waybill::kernels
