// SPDX-License-Identifier: Apache-2.0

// How a rectangle of elements lies on the grid of blocks of its matrix.

#ifndef KERNELS_BLOCK_GRID_H_
#define KERNELS_BLOCK_GRID_H_

#include <cstddef>

namespace waybill::kernels {

// The elements of a block share one scale. The first block begins at the matrix's first element.
// The last blocks of a row or column may be smaller.
struct BlockGrid {
  // Above 0. May be larger than the matrix; a block is then a whole row or the whole matrix.
  size_t block_rows = 128;
  size_t block_columns = 128;
  // The place of the rectangle's first element in its block; smaller than the block.
  size_t row_phase = 0;
  size_t column_phase = 0;

  // Return how many rows (columns) of blocks a rectangle of that many rows (columns) meets. Arrays
  // of maxima and scales have these extents, beginning with the block of the first element.
  constexpr size_t RowsOfBlocks(size_t rows) const {
    return rows == 0 ? 0 : (rows - 1 + row_phase) / block_rows + 1;
  }
  constexpr size_t ColumnsOfBlocks(size_t columns) const {
    return columns == 0 ? 0 : (columns - 1 + column_phase) / block_columns + 1;
  }
};

}  // namespace waybill::kernels

#endif  // KERNELS_BLOCK_GRID_H_
