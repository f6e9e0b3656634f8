// SPDX-License-Identifier: Apache-2.0

// Two-dimensional blocks in a GPU's memory; pitches as in kernels/rows.h.

#ifndef KERNELS_CUDA_ROWS_H_
#define KERNELS_CUDA_ROWS_H_

#include <cstddef>

#include "kernels/cuda/driver.h"
#include "kernels/cuda/leaf_sum.h"

namespace waybill::kernels::cuda {

// Copies the block and absorbs what it stores, row by row, in the same pass. Any alignment; fastest
// if everything is a multiple of 16 bytes. The ranges must not overlap.
Outcome CopyRows(void* dst, ptrdiff_t dst_pitch, const void* src, ptrdiff_t src_pitch, size_t rows,
                 size_t row_bytes, const LeafSum& digest, Stream stream);

}  // namespace waybill::kernels::cuda

#endif  // KERNELS_CUDA_ROWS_H_
