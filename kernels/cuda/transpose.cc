// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/transpose.h"

#include <limits>
#include <string>

#include "kernels/cuda/kernel.h"
#include "kernels/cuda/launch_arguments.h"
#include "kernels/cuda/launch_shape.h"
#include "kernels/cuda/strips.h"

namespace waybill::kernels::cuda {
namespace {

constinit Kernel transpose1_kernel("WaybillTranspose1");
constinit Kernel transpose2_kernel("WaybillTranspose2");
constinit Kernel transpose4_kernel("WaybillTranspose4");
constinit Kernel transpose8_kernel("WaybillTranspose8");
// By Cast.
constinit Kernel cast_kernels[5] = {
    Kernel("WaybillTransposeF32ToBf16"), Kernel("WaybillTransposeF32ToF16"),
    Kernel("WaybillTransposeBf16ToF32"), Kernel("WaybillTransposeF16ToF32"),
    Kernel("WaybillTransposeBf16ToF16")};

Kernel* KernelOf(size_t element_bytes) {
  switch (element_bytes) {
    case 1:
      return &transpose1_kernel;
    case 2:
      return &transpose2_kernel;
    case 4:
      return &transpose4_kernel;
    case 8:
      return &transpose8_kernel;
    default:
      return nullptr;
  }
}

Outcome Queue(Kernel& kernel, void* dst, ptrdiff_t dst_pitch, const void* src, ptrdiff_t src_pitch,
              size_t rows, size_t columns, size_t dst_bytes, size_t src_bytes, Stream stream) {
  if (rows == 0 || columns == 0) return {};
  constexpr size_t kMost = std::numeric_limits<uint32_t>::max() - kTransposeTile;
  if (rows > kMost || columns > kMost) return TooLarge("transpose", rows, columns);
  if (SharedAlignment({AddressOf(dst), PitchIfAny(dst_pitch, rows)}) < dst_bytes ||
      SharedAlignment({AddressOf(src), PitchIfAny(src_pitch, columns)}) < src_bytes) {
    return Outcome::Failed("transpose: elements of " + std::to_string(src_bytes) + " to " +
                           std::to_string(dst_bytes) +
                           " bytes, and an address or a pitch that is no multiple of that");
  }
  const uint64_t column_tiles = CeilDiv(columns, kTransposeTile);
  const TransposeArguments arguments{dst,
                                     src,
                                     dst_pitch,
                                     src_pitch,
                                     static_cast<uint32_t>(rows),
                                     static_cast<uint32_t>(columns),
                                     static_cast<uint32_t>(column_tiles)};
  return kernel({CeilDiv(rows, kTransposeTile) * column_tiles}, arguments, stream);
}

}  // namespace

Outcome Transpose(void* dst, ptrdiff_t dst_pitch, const void* src, ptrdiff_t src_pitch, size_t rows,
                  size_t columns, size_t element_bytes, Stream stream) {
  Kernel* const kernel = KernelOf(element_bytes);
  if (kernel == nullptr) {
    return Outcome::Failed("transpose: elements of " + std::to_string(element_bytes) +
                           " bytes; there are those of 1, 2, 4 and 8");
  }
  return Queue(*kernel, dst, dst_pitch, src, src_pitch, rows, columns, element_bytes, element_bytes,
               stream);
}

Outcome CastTranspose(Cast cast, void* dst, ptrdiff_t dst_pitch, const void* src,
                      ptrdiff_t src_pitch, size_t rows, size_t columns, Stream stream) {
  return Queue(cast_kernels[static_cast<size_t>(cast)], dst, dst_pitch, src, src_pitch, rows,
               columns, SizeBytes(DestinationOf(cast)), SizeBytes(SourceOf(cast)), stream);
}

}  // namespace waybill::kernels::cuda
