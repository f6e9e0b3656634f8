// SPDX-License-Identifier: Apache-2.0

// Quantisation to 8-bit floats on a GPU.

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

// As QuantiseRows of kernels/quantise.h; absorbs what it stores. Fastest if both sides and their
// pitches are multiples of 16 bytes, and blocks, their phases and the columns multiples of 16
// elements.
Outcome QuantiseRows(void* dst, ptrdiff_t dst_pitch, const void* src, ptrdiff_t src_pitch_bytes,
                     size_t rows, size_t columns, const BlockGrid& grid, const float* factors,
                     ptrdiff_t factors_pitch, const QuantiseRule& rule, const LeafSum& digest,
                     Stream stream);

// As QuantiseBlocks of kernels/quantise.h, but without a digest; AddLeavesOfRows can digest what it
// wrote. Reads blocks of at most 128 x 128 aligned elements once. Other blocks take three launches
// and `factors`, which has room for one float per block; if it is null, the call fails.
Outcome QuantiseBlocks(void* dst, ptrdiff_t dst_pitch, float* scales, ptrdiff_t scales_pitch,
                       float* factors, const void* src, ptrdiff_t src_pitch_bytes, size_t rows,
                       size_t columns, const BlockGrid& grid, const ScaleRule& rule, Wide type,
                       Wide via, Stream stream);

// Quantises to MX: blocks of 1 x 32 with E8M0 scales of one byte each. The rule must round to
// powers of two.
Outcome QuantiseMx(void* dst, ptrdiff_t dst_pitch, void* scales, ptrdiff_t scales_pitch,
                   const void* src, ptrdiff_t src_pitch_bytes, size_t rows, size_t columns,
                   const ScaleRule& rule, Wide type, Wide via, Stream stream);

}  // namespace waybill::kernels::cuda

#endif  // KERNELS_CUDA_QUANTISE_H_
