// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/maxima.h"

#include <optional>

#include "kernels/cuda/kernel.h"
#include "kernels/cuda/launch_arguments.h"
#include "kernels/cuda/launch_shape.h"
#include "kernels/cuda/strips.h"

namespace waybill::kernels::cuda {
namespace {

constinit Kernel maxima32_aligned_kernel("WaybillMaxima32Aligned");
constinit Kernel maxima32_any_kernel("WaybillMaxima32Any");
constinit Kernel maxima16_aligned_kernel("WaybillMaxima16Aligned");
constinit Kernel maxima16_any_kernel("WaybillMaxima16Any");
constinit Kernel clear_maxima_kernel("WaybillClearMaxima");
constinit Kernel scales_kernel("WaybillScales");

Outcome QueueForEach(const char* what, Kernel& kernel, float* scales, ptrdiff_t scales_pitch,
                     float* factors, ptrdiff_t factors_pitch, size_t rows, size_t columns,
                     const ScaleRule& rule, Stream stream) {
  if (rows == 0 || columns == 0) return {};
  const std::optional<DeviceRectangle> rectangle = DeviceRectangleOf(rows, columns, {});
  if (!rectangle) return TooLarge(what, rows, columns);
  const ScalesArguments arguments{
      scales, factors, scales_pitch, factors_pitch, rectangle->rows, rectangle->columns, rule};
  return kernel({CeilDiv(rows * columns, kThreads)}, arguments, stream);
}

}  // namespace

Outcome CombineMaxima(float* maxima, ptrdiff_t maxima_pitch, const void* src, Wide type, Wide via,
                      ptrdiff_t src_pitch_bytes, size_t rows, size_t columns, const BlockGrid& grid,
                      Stream stream) {
  if (rows == 0 || columns == 0) return {};
  const std::optional<DeviceRectangle> rectangle = DeviceRectangleOf(rows, columns, grid);
  if (!rectangle) return TooLarge("find maxima", rows, columns);
  const unsigned at_once = static_cast<unsigned>(kChunkBytes / SizeBytes(type));
  const bool is_aligned =
      SharedAlignment({AddressOf(src), PitchIfAny(src_pitch_bytes, rows)}) == kChunkBytes &&
      columns % at_once == 0 && SharesBlock(*rectangle, at_once);
  const uint64_t strips = CeilDiv(columns, kWarpThreads * (is_aligned ? at_once : 1));
  const MaximaArguments arguments{
      {static_cast<const uint8_t*>(src), src_pitch_bytes, rectangle->rows, rectangle->columns},
      reinterpret_cast<uint32_t*>(maxima),
      maxima_pitch,
      rectangle->grid,
      type,
      via,
      static_cast<uint32_t>(strips)};
  Kernel& kernel = type == Wide::kF32
                       ? (is_aligned ? maxima32_aligned_kernel : maxima32_any_kernel)
                       : (is_aligned ? maxima16_aligned_kernel : maxima16_any_kernel);
  const uint64_t warps = CeilDiv(rows, kStripRows) * strips;
  return kernel({CeilDiv(warps, kThreads / kWarpThreads)}, arguments, stream);
}

Outcome ScalesOfMaxima(float* scales, ptrdiff_t scales_pitch, float* factors,
                       ptrdiff_t factors_pitch, size_t rows, size_t columns, const ScaleRule& rule,
                       Stream stream) {
  return QueueForEach("make scales", scales_kernel, scales, scales_pitch, factors, factors_pitch,
                      rows, columns, rule, stream);
}

Outcome ClearMaxima(float* maxima, ptrdiff_t maxima_pitch, size_t rows, size_t columns,
                    Stream stream) {
  return QueueForEach("clear maxima", clear_maxima_kernel, nullptr, 0, maxima, maxima_pitch, rows,
                      columns, {}, stream);
}

}  // namespace waybill::kernels::cuda
