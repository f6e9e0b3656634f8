#include "kernels/maxima.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/block_row.h"

namespace waybill::kernels {

float CombineMaximum(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::bit_cast<float>(0x7fc0'0000);
  return std::max(a, b);
}

void CombineMaxima(float* maxima, ptrdiff_t maxima_pitch, const void* src, Wide type, Wide via,
                   ptrdiff_t src_pitch_bytes, size_t rows, size_t columns, const BlockGrid& grid) {
  const BlockRow row{columns, grid.block_columns - grid.column_phase, grid.block_columns};
  const std::byte* from = static_cast<const std::byte*>(src);
  for (size_t r = 0; r < rows; ++r, from += src_pitch_bytes) {
    const size_t block = (r + grid.row_phase) / grid.block_rows;
    CombineRowMaxima(maxima + static_cast<ptrdiff_t>(block) * maxima_pitch, from, type, via, row);
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
