// SPDX-License-Identifier: Apache-2.0

// Computes the largest magnitudes of blocks and their scales on a GPU.

#ifndef KERNELS_CUDA_MAXIMA_H_
#define KERNELS_CUDA_MAXIMA_H_

#include <cstddef>

#include "kernels/block_grid.h"
#include "kernels/cuda/driver.h"
#include "kernels/elements.h"
#include "kernels/scale.h"

namespace waybill::kernels::cuda {

// As CombineMaxima of kernels/maxima.h: `maxima` begins with zeros, or with the results of earlier
// calls. Fastest if the source and its pitch are multiples of 16 bytes, and blocks and columns are
// multiples of 16 bytes of elements.
Outcome CombineMaxima(float* maxima, ptrdiff_t maxima_pitch, const void* src, Wide type, Wide via,
                      ptrdiff_t src_pitch_bytes, size_t rows, size_t columns, const BlockGrid& grid,
                      Stream stream);

// For `rows` x `columns` blocks, replaces the maxima in factors[...] by ScaleOf(...).factor, and
// writes ScaleOf(...).scale to scales[...]. Pitches are in floats.
Outcome ScalesOfMaxima(float* scales, ptrdiff_t scales_pitch, float* factors,
                       ptrdiff_t factors_pitch, size_t rows, size_t columns, const ScaleRule& rule,
                       Stream stream);

// Sets `rows` x `columns` maxima to 0.
Outcome ClearMaxima(float* maxima, ptrdiff_t maxima_pitch, size_t rows, size_t columns,
                    Stream stream);

}  // namespace waybill::kernels::cuda

#endif  // KERNELS_CUDA_MAXIMA_H_
