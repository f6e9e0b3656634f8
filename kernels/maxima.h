// The largest magnitudes of blocks. A block's maximum is that of its parts, in any order: ranks
// that hold parts of a block find theirs, and combine them.

#ifndef KERNELS_MAXIMA_H_
#define KERNELS_MAXIMA_H_

#include <cstddef>
#include <cstdint>

#include "kernels/block_grid.h"
#include "kernels/elements.h"

namespace waybill::kernels {

// The larger of two magnitudes; none is negative, and 0 is the neutral one. If either is a NaN, the
// NaN 0x7fc00000. So bits do not depend on the order in which maxima are combined.
float CombineMaximum(float a, float b);

// Combines into maxima[block_row * maxima_pitch + block_column] the largest magnitude of the
// elements of each block that lie in the rectangle; start with zeros. An infinity counts as such; a
// NaN makes the maximum a NaN. Elements are rounded to `via` first (to nearest even, past its range
// to infinity): a trainer that holds F32 and one that holds its BF16s then find the same. `via` ==
// `type` takes them as they are.
//
// `src` and its pitch are aligned to the elements; `maxima_pitch` is in floats.
void CombineMaxima(float* maxima, ptrdiff_t maxima_pitch, const void* src, Wide type, Wide via,
                   ptrdiff_t src_pitch_bytes, size_t rows, size_t columns, const BlockGrid& grid);

// How many elements of the rectangle are NaNs or infinities. Alignment as above.
uint64_t CountNonFinite(const void* src, Wide type, ptrdiff_t src_pitch_bytes, size_t rows,
                        size_t columns);

}  // namespace waybill::kernels

#endif  // KERNELS_MAXIMA_H_
