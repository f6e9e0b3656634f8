#include "kernels/cuda/cast.h"

#include "kernels/cuda/kernel.h"
#include "kernels/cuda/launch_arguments.h"
#include "kernels/cuda/launch_shape.h"

namespace waybill::kernels::cuda {
namespace {

constinit Kernel cast_aligned_kernel("WaybillCastAligned");
constinit Kernel cast_any_kernel("WaybillCastAny");

}  // namespace

Outcome CastF32ToBf16(void* dst, const void* src, size_t count, const LeafSum& digest,
                      Stream stream) {
  if (count == 0) return {};
  const LeafWork work = LeafWorkOf(1, count * 2, digest);
  const CastArguments arguments{work, static_cast<uint16_t*>(dst), static_cast<const float*>(src)};
  const bool is_aligned = SharedAlignment({AddressOf(dst), AddressOf(src)}) == kChunkBytes;
  return (is_aligned ? cast_aligned_kernel : cast_any_kernel)(LaunchOf(work), arguments, stream);
}

}  // namespace waybill::kernels::cuda
