// SPDX-License-Identifier: Apache-2.0

// Quantisation of matrices to 8-bit floats with one scale per block.

#ifndef KERNELS_QUANTISE_H_
#define KERNELS_QUANTISE_H_

#include <cstddef>

#include "kernels/block_grid.h"
#include "kernels/copy.h"
#include "kernels/digest.h"
#include "kernels/elements.h"
#include "kernels/quantise_rule.h"
#include "kernels/scale.h"

namespace waybill::kernels {

// Computes dst[r][c] from src[r][c]: multiplies or divides it by the factor of its block, rounds to
// a float, clamps to the narrow type and casts to the nearest value, or to the even one if two are
// equally near. Subnormals are kept, and zeros keep their signs. Magnitudes above LargestOf(to),
// also infinities, become LargestOf(to). factors[block_row * factors_pitch + block_column] is
// ScaleOf(...).factor and not negative. If the element, the factor or their combination is a NaN,
// the result is 0x7f with the element's sign.
//
// `src` and its pitch are aligned to the elements; `dst` need not be aligned; they must not
// overlap. Unless `digest` is null, it absorbs dst's rows in order.
void QuantiseRows(void* dst, ptrdiff_t dst_pitch, const void* src, ptrdiff_t src_pitch_bytes,
                  size_t rows, size_t columns, const BlockGrid& grid, const float* factors,
                  ptrdiff_t factors_pitch, const QuantiseRule& rule, Stores stores,
                  DigestStream* digest);

// Does both passes over a rectangle of whole blocks (the last ones may be cut off by the end of the
// matrix): finds the maxima, writes ScaleOf(...).scale of each block to scales[...], and quantises
// while the source is still in the cache. The grid's phases are 0. Produces the same bytes as
// CombineMaxima, ScaleOf and QuantiseRows in turn.
void QuantiseBlocks(void* dst, ptrdiff_t dst_pitch, float* scales, ptrdiff_t scales_pitch,
                    const void* src, ptrdiff_t src_pitch_bytes, size_t rows, size_t columns,
                    const BlockGrid& grid, const ScaleRule& rule, Wide type, Wide via,
                    Stores stores, DigestStream* digest);

}  // namespace waybill::kernels

#endif  // KERNELS_QUANTISE_H_
