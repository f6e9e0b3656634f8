// One row of elements and the blocks that it goes through.

#ifndef KERNELS_BLOCK_ROW_H_
#define KERNELS_BLOCK_ROW_H_

#include <algorithm>
#include <cstddef>

namespace waybill::kernels {

// `columns` elements, of which the first `first_block` (above 0) are of the first block, and then
// `block_columns` of each; the last may have fewer.
struct BlockRow {
  size_t columns;
  size_t first_block;
  size_t block_columns;

  // That it meets.
  constexpr size_t Blocks() const {
    if (columns <= first_block) return columns == 0 ? 0 : 1;
    return (columns - first_block - 1) / block_columns + 2;
  }
};

// Calls `visit(block, first column, count)` for each block that the row meets.
template <typename Visit>
inline void ForEachBlock(const BlockRow& row, Visit visit) {
  size_t count = row.first_block;
  for (size_t block = 0, column = 0; column < row.columns; ++block) {
    count = std::min(count, row.columns - column);
    visit(block, column, count);
    column += count;
    count = row.block_columns;
  }
}

}  // namespace waybill::kernels

#endif  // KERNELS_BLOCK_ROW_H_
