// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/rows.h"

#include "kernels/cuda/launch_rows.h"

namespace waybill::kernels::cuda {

Outcome CopyRows(void* dst, ptrdiff_t dst_pitch, const void* src, ptrdiff_t src_pitch, size_t rows,
                 size_t row_bytes, const LeafSum& digest, Stream stream) {
  return LaunchRows(dst, dst_pitch, src, src_pitch, rows, row_bytes, digest, stream);
}

}  // namespace waybill::kernels::cuda
