// SPDX-License-Identifier: Apache-2.0

// Copies and digests of two-dimensional blocks: `rows` rows of `row_bytes` bytes that lie `pitch`
// bytes apart. A pitch may be negative. To pack or unpack, call CopyRows with one pitch equal to
// row_bytes.

#ifndef KERNELS_ROWS_H_
#define KERNELS_ROWS_H_

#include <cstddef>

#include "kernels/copy.h"
#include "kernels/digest.h"

namespace waybill::kernels {

// Copies the block and, unless `digest` is null, absorbs it row by row in the same pass.
void CopyRows(void* dst, ptrdiff_t dst_pitch, const void* src, ptrdiff_t src_pitch, size_t rows,
              size_t row_bytes, Stores stores, DigestStream* digest);

// Absorbs the block row by row.
void AbsorbRows(const void* src, ptrdiff_t pitch, size_t rows, size_t row_bytes,
                DigestStream* digest);

}  // namespace waybill::kernels

#endif  // KERNELS_ROWS_H_
