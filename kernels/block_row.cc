#include "kernels/block_row.h"

#include <algorithm>

#include "kernels/scalar_quantise.h"

namespace waybill::kernels {
namespace {

// Calls `visit(block, first column, count)` for each block that the row meets.
template <typename Visit>
void ForEachBlock(const BlockRow& row, Visit visit) {
  size_t count = row.first_block;
  for (size_t block = 0, column = 0; column < row.columns; ++block) {
    count = std::min(count, row.columns - column);
    visit(block, column, count);
    column += count;
    count = row.block_columns;
  }
}

}  // namespace

void QuantiseRow(uint8_t* dst, const void* src, const BlockRow& row, const float* factors,
                 const QuantiseRule& rule) {
  const std::byte* from = static_cast<const std::byte*>(src);
  ForEachBlock(row, [&](size_t block, size_t column, size_t count) {
    scalar::QuantiseRun(dst + column, from + column * SizeBytes(rule.type), count, factors[block],
                        rule);
  });
}

void DequantiseRow(void* dst, Wide to, const uint8_t* src, Narrow from, const BlockRow& row,
                   const float* scales) {
  std::byte* bytes = static_cast<std::byte*>(dst);
  ForEachBlock(row, [&](size_t block, size_t column, size_t count) {
    scalar::DequantiseRun(bytes + column * SizeBytes(to), to, src + column, from, count,
                          scales[block]);
  });
}

void CombineRowMaxima(float* maxima, const void* src, Wide type, Wide via, const BlockRow& row) {
  const std::byte* from = static_cast<const std::byte*>(src);
  ForEachBlock(row, [&](size_t block, size_t column, size_t count) {
    scalar::CombineMaxima(maxima + block, 1, from + column * SizeBytes(type), type, via, 0, 1,
                          count, {1, count});
  });
}

uint64_t CountNonFiniteOfRow(const void* src, Wide type, size_t columns) {
  return scalar::CountNonFinite(src, type, 0, 1, columns);
}

}  // namespace waybill::kernels
