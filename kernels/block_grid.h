// How a rectangle of elements lies on the grid of blocks of the matrix that it is a part of.

#ifndef KERNELS_BLOCK_GRID_H_
#define KERNELS_BLOCK_GRID_H_

#include <cstddef>

namespace waybill::kernels {

// A block shares one scale. The matrix's first block begins with its first element; the last ones
// of its rows and columns may be cut off by its end.
struct BlockGrid {
  // Above 0. May be larger than the matrix: a block is then a whole row, or the whole matrix.
  size_t block_rows = 128;
  size_t block_columns = 128;
  // Where in its block the rectangle's first element lies; below the block's extents.
  size_t row_phase = 0;
  size_t column_phase = 0;

  // How many rows (columns) of blocks a rectangle of so many rows (columns) meets. These are what
  // arrays of maxima and scales have: the first is of the block that holds the first element.
  constexpr size_t RowsOfBlocks(size_t rows) const {
    return rows == 0 ? 0 : (rows - 1 + row_phase) / block_rows + 1;
  }
  constexpr size_t ColumnsOfBlocks(size_t columns) const {
    return columns == 0 ? 0 : (columns - 1 + column_phase) / block_columns + 1;
  }
};

}  // namespace waybill::kernels

#endif  // KERNELS_BLOCK_GRID_H_
