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

uint64_t CountNonFiniteOfRow(const void* src, Wide type, size_t columns);

}  // namespace waybill::kernels

#endif  // KERNELS_MAXIMA_ROWS_H_
