// SPDX-License-Identifier: Apache-2.0

// Transposes on a GPU. They do not digest; AddLeavesOfRows can digest what they wrote.

#ifndef KERNELS_CUDA_TRANSPOSE_H_
#define KERNELS_CUDA_TRANSPOSE_H_

#include <cstddef>

#include "kernels/cuda/driver.h"
#include "kernels/elements.h"

namespace waybill::kernels::cuda {

// As Transpose of kernels/transpose.h, of elements of 1, 2, 4 or 8 bytes. Fails unless both sides
// and their pitches are aligned to the elements.
Outcome Transpose(void* dst, ptrdiff_t dst_pitch, const void* src, ptrdiff_t src_pitch, size_t rows,
                  size_t columns, size_t element_bytes, Stream stream);

// The same for elements that are cast on the way.
Outcome CastTranspose(Cast cast, void* dst, ptrdiff_t dst_pitch, const void* src,
                      ptrdiff_t src_pitch, size_t rows, size_t columns, Stream stream);

}  // namespace waybill::kernels::cuda

#endif  // KERNELS_CUDA_TRANSPOSE_H_
