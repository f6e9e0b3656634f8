// SPDX-License-Identifier: Apache-2.0

// The inner loops of maxima.cc, for every vector target.

#ifndef KERNELS_MAXIMA_ROWS_H_
#define KERNELS_MAXIMA_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/block_row.h"
#include "kernels/elements.h"

namespace waybill::kernels {

// The maximum of a block so far: lanes of a vector, each with the bits of a magnitude of the
// source's type.
struct OpenMaximum {
  alignas(64) std::byte lanes[64] = {};
};

// Combines `rows` rows, all in one row of blocks, into the maxima of the blocks that they cross.
void CombineOpenMaxima(OpenMaximum* open, const void* src, Wide type, ptrdiff_t src_pitch_bytes,
                       size_t rows, const BlockRow& row);

// Combines consecutive whole blocks of one row into `maxima` if blocks have 16 or 32 elements, as
// in MX. Handles as many of the `count` blocks as fit whole vectors, and returns their number.
size_t CombineShortBlocks(float* maxima, const void* src, Wide type, Wide via, size_t block_columns,
                          size_t count);

uint64_t CountNonFiniteOfRow(const void* src, Wide type, size_t columns);

}  // namespace waybill::kernels

#endif  // KERNELS_MAXIMA_ROWS_H_
