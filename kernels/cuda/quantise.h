// Quantisation to 8-bit floats on a GPU, and back.

#ifndef KERNELS_CUDA_QUANTISE_H_
#define KERNELS_CUDA_QUANTISE_H_

#include <cstddef>

#include "kernels/block_grid.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/leaf_sum.h"
#include "kernels/elements.h"
#include "kernels/quantise_rule.h"
#include "kernels/scale.h"

namespace waybill::kernels::cuda {

// As QuantiseRows and DequantiseRows of kernels/quantise.h; they absorb what they store. Fastest
// where both sides and their pitches are multiples of 16 bytes, and blocks, their phases and the
// columns of 16 elements (of 16 bytes of them on the way back).
Outcome QuantiseRows(void* dst, ptrdiff_t dst_pitch, const void* src, ptrdiff_t src_pitch_bytes,
                     size_t rows, size_t columns, const BlockGrid& grid, const float* factors,
                     ptrdiff_t factors_pitch, const QuantiseRule& rule, const LeafSum& digest,
                     Stream stream);
Outcome DequantiseRows(void* dst, Wide to, ptrdiff_t dst_pitch_bytes, const void* src, Narrow from,
                       ptrdiff_t src_pitch, size_t rows, size_t columns, const BlockGrid& grid,
                       const float* scales, ptrdiff_t scales_pitch, const LeafSum& digest,
                       Stream stream);

// As QuantiseBlocks of kernels/quantise.h, without a digest: AddLeavesOfRows reads what was
// written. Blocks of at most 128 x 128 of aligned elements are read once. All others take three
// launches, and `factors`, room for as many floats as there are blocks: where it is null, they
// fail.
Outcome QuantiseBlocks(void* dst, ptrdiff_t dst_pitch, float* scales, ptrdiff_t scales_pitch,
                       float* factors, const void* src, ptrdiff_t src_pitch_bytes, size_t rows,
                       size_t columns, const BlockGrid& grid, const ScaleRule& rule, Wide type,
                       Wide via, Stream stream);

// The same with blocks of 1 x 32 and E8M0 scales of a byte each: MX. The rule rounds to powers of
// two.
Outcome QuantiseMx(void* dst, ptrdiff_t dst_pitch, void* scales, ptrdiff_t scales_pitch,
                   const void* src, ptrdiff_t src_pitch_bytes, size_t rows, size_t columns,
                   const ScaleRule& rule, Wide type, Wide via, Stream stream);

}  // namespace waybill::kernels::cuda

#endif  // KERNELS_CUDA_QUANTISE_H_
