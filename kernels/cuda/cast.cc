// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/cast.h"

#include "kernels/cuda/kernel.h"
#include "kernels/cuda/launch_arguments.h"
#include "kernels/cuda/launch_shape.h"

namespace waybill::kernels::cuda {
namespace {

// By Cast, then for aligned memory or for any.
constinit Kernel kernels[5][2] = {
    {Kernel("WaybillCastF32ToBf16Aligned"), Kernel("WaybillCastF32ToBf16Any")},
    {Kernel("WaybillCastF32ToF16Aligned"), Kernel("WaybillCastF32ToF16Any")},
    {Kernel("WaybillCastBf16ToF32Aligned"), Kernel("WaybillCastBf16ToF32Any")},
    {Kernel("WaybillCastF16ToF32Aligned"), Kernel("WaybillCastF16ToF32Any")},
    {Kernel("WaybillCastBf16ToF16Aligned"), Kernel("WaybillCastBf16ToF16Any")},
};

}  // namespace

Outcome CastElements(Cast cast, void* dst, const void* src, size_t count, const LeafSum& digest,
                     Stream stream) {
  if (count == 0) return {};
  const LeafWork work = LeafWorkOf(1, count * SizeBytes(DestinationOf(cast)), digest);
  const CastArguments arguments{work, dst, src};
  const bool is_aligned = SharedAlignment({AddressOf(dst), AddressOf(src)}) == kChunkBytes;
  return kernels[static_cast<size_t>(cast)][is_aligned ? 0 : 1](LaunchOf(work), arguments, stream);
}

}  // namespace waybill::kernels::cuda
