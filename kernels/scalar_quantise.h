// SPDX-License-Identifier: Apache-2.0

// Scalar reference versions of the kernels of maxima.h and quantise.h, written as their definitions
// read, and the way back, which tests compare with other libraries.

#ifndef KERNELS_SCALAR_QUANTISE_H_
#define KERNELS_SCALAR_QUANTISE_H_

#include <cstddef>
#include <cstdint>

#include "kernels/block_grid.h"
#include "kernels/elements.h"
#include "kernels/quantise_rule.h"

namespace waybill::kernels::scalar {

void CastToFp8(void* dst, Narrow to, const void* src, Wide from, size_t count);
void CastFromFp8(void* dst, Wide to, const void* src, Narrow from, size_t count);

float CombineMaximum(float a, float b);
void CombineMaxima(float* maxima, ptrdiff_t maxima_pitch, const void* src, Wide type, Wide via,
                   ptrdiff_t src_pitch_bytes, size_t rows, size_t columns, const BlockGrid& grid);
uint64_t CountNonFinite(const void* src, Wide type, ptrdiff_t src_pitch_bytes, size_t rows,
                        size_t columns);

// These work on elements of one block. `factor` and `scale` are not negative.
void QuantiseRun(uint8_t* dst, const void* src, size_t count, float factor,
                 const QuantiseRule& rule);
void DequantiseRun(void* dst, Wide to, const uint8_t* src, Narrow from, size_t count, float scale);

void QuantiseRows(void* dst, ptrdiff_t dst_pitch, const void* src, ptrdiff_t src_pitch_bytes,
                  size_t rows, size_t columns, const BlockGrid& grid, const float* factors,
                  ptrdiff_t factors_pitch, const QuantiseRule& rule);
void DequantiseRows(void* dst, Wide to, ptrdiff_t dst_pitch_bytes, const void* src, Narrow from,
                    ptrdiff_t src_pitch, size_t rows, size_t columns, const BlockGrid& grid,
                    const float* scales, ptrdiff_t scales_pitch);

}  // namespace waybill::kernels::scalar

#endif  // KERNELS_SCALAR_QUANTISE_H_
