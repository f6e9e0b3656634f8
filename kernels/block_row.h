// SPDX-License-Identifier: Apache-2.0

// One row of elements, and the blocks that it crosses.

#ifndef KERNELS_BLOCK_ROW_H_
#define KERNELS_BLOCK_ROW_H_

#include <algorithm>
#include <cstddef>

namespace waybill::kernels {

// A row of `columns` elements. The first `first_block` elements (above 0) are in the first block,
// then `block_columns` in each; the last block may have fewer.
struct BlockRow {
  size_t columns;
  size_t first_block;
  size_t block_columns;

  // The number of blocks that the row crosses.
  constexpr size_t Blocks() const {
    if (columns <= first_block) return columns == 0 ? 0 : 1;
    return (columns - first_block - 1) / block_columns + 2;
  }
};

// Iterates over the blocks that a row crosses. (A function that takes a lambda would not inline the
// lambda's vectors.)
class BlockCursor {
 public:
  explicit BlockCursor(const BlockRow& row)
      : row_(row), count_(std::min(row.first_block, row.columns)) {}

  bool AtEnd() const { return column_ == row_.columns; }
  size_t block() const { return block_; }
  size_t column() const { return column_; }  // The block's first column.
  size_t count() const { return count_; }    // The number of its elements.

  void Next() {
    column_ += count_;
    ++block_;
    count_ = std::min(row_.block_columns, row_.columns - column_);
  }

 private:
  BlockRow row_;
  size_t count_;
  size_t block_ = 0;
  size_t column_ = 0;
};

}  // namespace waybill::kernels

#endif  // KERNELS_BLOCK_ROW_H_
