// The inner loops of maxima.h, for every vector target. Of use to maxima.cc only.

#ifndef KERNELS_MAXIMA_ROWS_H_
#define KERNELS_MAXIMA_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/block_row.h"
#include "kernels/elements.h"

namespace waybill::kernels {

// How many blocks of a row are worked on together.
inline constexpr size_t kMostBlocks = 64;

// The largest magnitude in each block's part of `rows` rows, all of one row of blocks, of which the
// rows meet kMostBlocks at most. As bits of the source's own type: those of magnitudes are ordered
// as these are, and NaNs behind infinity.
void FindMaxima(uint32_t* bits, const void* src, Wide type, ptrdiff_t src_pitch_bytes, size_t rows,
                const BlockRow& row);

uint64_t CountNonFiniteOfRow(const void* src, Wide type, size_t columns);

}  // namespace waybill::kernels

#endif  // KERNELS_MAXIMA_ROWS_H_
