// SPDX-License-Identifier: Apache-2.0

// The launch behind rows.h and digest.h.

#ifndef KERNELS_CUDA_LAUNCH_ROWS_H_
#define KERNELS_CUDA_LAUNCH_ROWS_H_

#include <cstddef>

#include "kernels/cuda/driver.h"
#include "kernels/cuda/leaf_sum.h"

namespace waybill::kernels::cuda {

// Copies the rows unless `dst` is null, and absorbs them unless `digest` has no sum.
Outcome LaunchRows(void* dst, ptrdiff_t dst_pitch, const void* src, ptrdiff_t src_pitch,
                   size_t rows, size_t row_bytes, const LeafSum& digest, Stream stream);

}  // namespace waybill::kernels::cuda

#endif  // KERNELS_CUDA_LAUNCH_ROWS_H_
