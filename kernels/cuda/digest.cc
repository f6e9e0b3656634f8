// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/digest.h"

#include "kernels/cuda/launch_rows.h"

namespace waybill::kernels::cuda {

Outcome AddLeaves(const LeafSum& digest, const void* data, size_t size_bytes, Stream stream) {
  return LaunchRows(nullptr, 0, data, 0, 1, size_bytes, digest, stream);
}

Outcome AddLeavesOfRows(const LeafSum& digest, const void* src, ptrdiff_t pitch, size_t rows,
                        size_t row_bytes, Stream stream) {
  return LaunchRows(nullptr, 0, src, pitch, rows, row_bytes, digest, stream);
}

}  // namespace waybill::kernels::cuda
