// SPDX-License-Identifier: Apache-2.0

// The largest magnitudes of blocks. Ranks that hold parts of a block compute the maxima of their
// parts and combine them in any order.

#ifndef KERNELS_MAXIMA_H_
#define KERNELS_MAXIMA_H_

#include <cstddef>
#include <cstdint>

#include "kernels/block_grid.h"
#include "kernels/elements.h"

namespace waybill::kernels {

// Returns the larger of two magnitudes, which are not negative; 0 is neutral. If either is a NaN,
// returns the NaN 0x7fc00000, so that the bits do not depend on the order of combination.
float CombineMaximum(float a, float b);

// Combines the largest magnitude of each block's elements in the rectangle into maxima[block_row *
// maxima_pitch + block_column], which begins with zeros. An infinity counts as infinity, and a NaN
// makes the maximum a NaN. Elements are first rounded to `via` (to nearest even, beyond its range
// to infinity), so that a trainer with F32 and a trainer with BF16 elements find the same maximum.
// `via` == `type` does not round.
//
// `src` and its pitch are aligned to the elements; `maxima_pitch` is in floats.
void CombineMaxima(float* maxima, ptrdiff_t maxima_pitch, const void* src, Wide type, Wide via,
                   ptrdiff_t src_pitch_bytes, size_t rows, size_t columns, const BlockGrid& grid);

// Returns the number of elements in the rectangle that are NaNs or infinities. Alignment as above.
uint64_t CountNonFinite(const void* src, Wide type, ptrdiff_t src_pitch_bytes, size_t rows,
                        size_t columns);

}  // namespace waybill::kernels

#endif  // KERNELS_MAXIMA_H_
