// SPDX-License-Identifier: Apache-2.0

// Transposes of two-dimensional blocks of elements. Pitches are in bytes. Large blocks may be
// written past the cache; these functions then call StreamFence() themselves.

#ifndef KERNELS_TRANSPOSE_H_
#define KERNELS_TRANSPOSE_H_

#include <cstddef>

#include "kernels/digest.h"

namespace waybill::kernels {

// Sets dst[r][c] = src[c][r] for r in [0, rows) and c in [0, columns). `element_bytes` is 1, 2, 4
// or 8; any other value ends the program. Any alignment; the ranges must not overlap. Unless
// `digest` is null, it absorbs dst's rows in order.
void Transpose(void* dst, ptrdiff_t dst_pitch, const void* src, ptrdiff_t src_pitch, size_t rows,
               size_t columns, size_t element_bytes, DigestStream* digest);

// Transposes floats and casts them to BF16 by the rules of CastElements. `src` and its
// pitch are aligned to 4 bytes, `dst` and its pitch to 2.
void CastTransposeF32ToBf16(void* dst, ptrdiff_t dst_pitch, const void* src, ptrdiff_t src_pitch,
                            size_t rows, size_t columns, DigestStream* digest);

}  // namespace waybill::kernels

#endif  // KERNELS_TRANSPOSE_H_
