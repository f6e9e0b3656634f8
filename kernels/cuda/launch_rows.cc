// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/launch_rows.h"

#include "kernels/cuda/kernel.h"
#include "kernels/cuda/launch_arguments.h"
#include "kernels/cuda/launch_shape.h"

namespace waybill::kernels::cuda {
namespace {

constinit Kernel rows1_kernel("WaybillRows1");
constinit Kernel rows2_kernel("WaybillRows2");
constinit Kernel rows4_kernel("WaybillRows4");
constinit Kernel rows8_kernel("WaybillRows8");
constinit Kernel rows16_kernel("WaybillRows16");

Kernel& KernelOf(unsigned alignment) {
  switch (alignment) {
    case 1:
      return rows1_kernel;
    case 2:
      return rows2_kernel;
    case 4:
      return rows4_kernel;
    case 8:
      return rows8_kernel;
    default:
      return rows16_kernel;
  }
}

}  // namespace

Outcome LaunchRows(void* dst, ptrdiff_t dst_pitch, const void* src, ptrdiff_t src_pitch,
                   size_t rows, size_t row_bytes, const LeafSum& digest, Stream stream) {
  if (rows == 0 || row_bytes == 0) return {};
  // Rows without gaps are one long row, whose length has no alignment to keep.
  const ptrdiff_t length = static_cast<ptrdiff_t>(row_bytes);
  if (src_pitch == length && (dst == nullptr || dst_pitch == length)) {
    row_bytes *= rows;
    rows = 1;
  }
  const unsigned alignment = SharedAlignment(
      {AddressOf(dst), AddressOf(src), dst == nullptr ? 0 : PitchIfAny(dst_pitch, rows),
       PitchIfAny(src_pitch, rows), rows > 1 ? row_bytes : 0});
  const LeafWork work = LeafWorkOf(rows, row_bytes, digest);
  const RowsArguments arguments{work, static_cast<uint8_t*>(dst), static_cast<const uint8_t*>(src),
                                dst_pitch, src_pitch};
  return KernelOf(alignment)(LaunchOf(work), arguments, stream);
}

}  // namespace waybill::kernels::cuda
