// Quantisation of matrices to 8-bit floats with one scale a block, and back.

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

// dst[r][c] = src[r][c] multiplied or divided by the factor of its block, rounded to a float,
// clamped to the narrow type and cast by the rules of CastToFp8. factors[block_row * factors_pitch
// + block_column] is ScaleOf(...).factor; none is negative. A NaN, whether of the element or of the
// factor or of both together, becomes 0x7f with the element's sign.
//
// `src` and its pitch are aligned to the elements; `dst` is not aligned at all; they do not
// overlap. Unless `digest` is null, it absorbs dst's rows in order.
void QuantiseRows(void* dst, ptrdiff_t dst_pitch, const void* src, ptrdiff_t src_pitch_bytes,
                  size_t rows, size_t columns, const BlockGrid& grid, const float* factors,
                  ptrdiff_t factors_pitch, const QuantiseRule& rule, Stores stores,
                  DigestStream* digest);

// The way back: dst[r][c] = the value of src[r][c] times scales[...] of its block, rounded to a
// float and then to `to`, to the nearest even; past its range to infinity. A NaN becomes the type's
// quiet NaN with the code's sign. `dst` and its pitch are aligned to its elements. Unless `digest`
// is null, it absorbs dst's rows in order.
void DequantiseRows(void* dst, Wide to, ptrdiff_t dst_pitch_bytes, const void* src, Narrow from,
                    ptrdiff_t src_pitch, size_t rows, size_t columns, const BlockGrid& grid,
                    const float* scales, ptrdiff_t scales_pitch, Stores stores,
                    DigestStream* digest);

// Both passes of a rectangle whose blocks it holds whole (but for those that the matrix's end cuts
// off): finds the maxima, writes ScaleOf(...).scale of each block to scales[...], and quantises,
// while the source is still in the cache. The grid's phases are 0. Gives the same bytes as
// CombineMaxima, ScaleOf and QuantiseRows in turn.
void QuantiseBlocks(void* dst, ptrdiff_t dst_pitch, float* scales, ptrdiff_t scales_pitch,
                    const void* src, ptrdiff_t src_pitch_bytes, size_t rows, size_t columns,
                    const BlockGrid& grid, const ScaleRule& rule, Wide type, Wide via,
                    Stores stores, DigestStream* digest);

}  // namespace waybill::kernels

#endif  // KERNELS_QUANTISE_H_
