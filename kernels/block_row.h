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

// Goes through the blocks that a row meets. (No function that takes a body: the body's vectors
// would not be inlined into it.)
class BlockCursor {
 public:
  explicit BlockCursor(const BlockRow& row)
      : row_(row), count_(std::min(row.first_block, row.columns)) {}

  bool AtEnd() const { return column_ == row_.columns; }
  size_t block() const { return block_; }
  size_t column() const { return column_; }  // Its first ...
  size_t count() const { return count_; }    // ... and how many.

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
