// SPDX-License-Identifier: Apache-2.0

// The digest of memory that a GPU sees: ../README.md defines it. Each launch adds the values of a
// stream's leaves to one number, in any order.

#ifndef KERNELS_CUDA_DIGEST_H_
#define KERNELS_CUDA_DIGEST_H_

#include <cstddef>

#include "kernels/cuda/driver.h"
#include "kernels/cuda/leaf_sum.h"

namespace waybill::kernels::cuda {

// Adds the leaves of `size_bytes` bytes. Any alignment; fastest at 16 bytes.
Outcome AddLeaves(const LeafSum& digest, const void* data, size_t size_bytes, Stream stream);

// The same of `rows` rows of `row_bytes` bytes that lie `pitch` bytes apart, one after the other.
Outcome AddLeavesOfRows(const LeafSum& digest, const void* src, ptrdiff_t pitch, size_t rows,
                        size_t row_bytes, Stream stream);

}  // namespace waybill::kernels::cuda

#endif  // KERNELS_CUDA_DIGEST_H_
