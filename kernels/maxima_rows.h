// The inner loops of maxima.h, for every vector target. Of use to maxima.cc only.

#ifndef KERNELS_MAXIMA_ROWS_H_
#define KERNELS_MAXIMA_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/block_row.h"
#include "kernels/elements.h"

namespace waybill::kernels {

// A block's maximum while its rows are gone through: lanes of a vector, each with the bits of a
// magnitude of the source's type.
struct OpenMaximum {
  alignas(64) std::byte lanes[64] = {};
};

// Combines `rows` rows, all of one row of blocks, into the maxima of the blocks that they meet.
void CombineOpenMaxima(OpenMaximum* open, const void* src, Wide type, ptrdiff_t src_pitch_bytes,
                       size_t rows, const BlockRow& row);

// Combines whole blocks of one row, one behind the other, into `maxima`, if blocks are as short as
// NVFP4's (16 elements) or MX's (32): of `count` blocks as many as are found many at a time. Says
// how many.
size_t CombineShortBlocks(float* maxima, const void* src, Wide type, Wide via, size_t block_columns,
                          size_t count);

uint64_t CountNonFiniteOfRow(const void* src, Wide type, size_t columns);

}  // namespace waybill::kernels

#endif  // KERNELS_MAXIMA_ROWS_H_
