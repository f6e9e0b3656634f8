// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/quantise.h"

#include <optional>
#include <string>

#include "kernels/cuda/kernel.h"
#include "kernels/cuda/launch_arguments.h"
#include "kernels/cuda/launch_shape.h"
#include "kernels/cuda/maxima.h"
#include "kernels/cuda/strips.h"

namespace waybill::kernels::cuda {
namespace {

// The kernels of a source type and a narrow type; of each, one for aligned elements and one for
// any.
struct Pair {
  Kernel aligned;
  Kernel any;
};

constinit Pair quantise_kernels[3][2] = {
    {{Kernel("WaybillQuantiseF32E4m3Aligned"), Kernel("WaybillQuantiseF32E4m3Any")},
     {Kernel("WaybillQuantiseF32E5m2Aligned"), Kernel("WaybillQuantiseF32E5m2Any")}},
    {{Kernel("WaybillQuantiseF16E4m3Aligned"), Kernel("WaybillQuantiseF16E4m3Any")},
     {Kernel("WaybillQuantiseF16E5m2Aligned"), Kernel("WaybillQuantiseF16E5m2Any")}},
    {{Kernel("WaybillQuantiseBf16E4m3Aligned"), Kernel("WaybillQuantiseBf16E4m3Any")},
     {Kernel("WaybillQuantiseBf16E5m2Aligned"), Kernel("WaybillQuantiseBf16E5m2Any")}}};

constinit Pair mx_kernels[3][2] = {
    {{Kernel("WaybillQuantiseMxF32E4m3Aligned"), Kernel("WaybillQuantiseMxF32E4m3Any")},
     {Kernel("WaybillQuantiseMxF32E5m2Aligned"), Kernel("WaybillQuantiseMxF32E5m2Any")}},
    {{Kernel("WaybillQuantiseMxF16E4m3Aligned"), Kernel("WaybillQuantiseMxF16E4m3Any")},
     {Kernel("WaybillQuantiseMxF16E5m2Aligned"), Kernel("WaybillQuantiseMxF16E5m2Any")}},
    {{Kernel("WaybillQuantiseMxBf16E4m3Aligned"), Kernel("WaybillQuantiseMxBf16E4m3Any")},
     {Kernel("WaybillQuantiseMxBf16E5m2Aligned"), Kernel("WaybillQuantiseMxBf16E5m2Any")}}};

constinit Kernel blocks_kernels[3][2] = {
    {Kernel("WaybillQuantiseBlocksF32E4m3"), Kernel("WaybillQuantiseBlocksF32E5m2")},
    {Kernel("WaybillQuantiseBlocksF16E4m3"), Kernel("WaybillQuantiseBlocksF16E5m2")},
    {Kernel("WaybillQuantiseBlocksBf16E4m3"), Kernel("WaybillQuantiseBlocksBf16E5m2")}};

constexpr int IndexOf(Wide type) { return type == Wide::kF32 ? 0 : type == Wide::kF16 ? 1 : 2; }
constexpr int IndexOf(Narrow type) { return type == Narrow::kE4m3 ? 0 : 1; }

Matrix MatrixOf(const void* src, ptrdiff_t pitch_bytes, const DeviceRectangle& rectangle) {
  return {static_cast<const uint8_t*>(src), pitch_bytes, rectangle.rows, rectangle.columns};
}

// Blocks that a block of threads holds in its registers, read and written by whole chunks.
bool FitsTile(void* dst, ptrdiff_t dst_pitch, const void* src, ptrdiff_t src_pitch_bytes,
              const DeviceRectangle& rectangle, Wide type) {
  const unsigned at_once = static_cast<unsigned>(kChunkBytes / SizeBytes(type));
  return rectangle.grid.block_rows <= kTileRows && rectangle.grid.block_columns <= kTileColumns &&
         SharesBlock(rectangle, at_once) && rectangle.columns % at_once == 0 &&
         SharedAlignment({AddressOf(src), PitchIfAny(src_pitch_bytes, rectangle.rows)}) ==
             kChunkBytes &&
         SharedAlignment({AddressOf(dst), PitchIfAny(dst_pitch, rectangle.rows)}) >= at_once;
}

}  // namespace

Outcome QuantiseRows(void* dst, ptrdiff_t dst_pitch, const void* src, ptrdiff_t src_pitch_bytes,
                     size_t rows, size_t columns, const BlockGrid& grid, const float* factors,
                     ptrdiff_t factors_pitch, const QuantiseRule& rule, const LeafSum& digest,
                     Stream stream) {
  if (rows == 0 || columns == 0) return {};
  const std::optional<DeviceRectangle> rectangle = DeviceRectangleOf(rows, columns, grid);
  if (!rectangle) return TooLarge("quantise", rows, columns);
  const bool is_aligned =
      SharedAlignment({AddressOf(dst), PitchIfAny(dst_pitch, rows), AddressOf(src),
                       PitchIfAny(src_pitch_bytes, rows), rows > 1 ? columns : 0}) == kChunkBytes &&
      SharesBlock(*rectangle, kChunkBytes);
  const LeafWork work = LeafWorkOf(rows, columns, digest);
  const QuantiseArguments arguments{work,
                                    MatrixOf(src, src_pitch_bytes, *rectangle),
                                    static_cast<uint8_t*>(dst),
                                    dst_pitch,
                                    rectangle->grid,
                                    factors,
                                    factors_pitch,
                                    rule.via,
                                    rule.division};
  Pair& kernels = quantise_kernels[IndexOf(rule.type)][IndexOf(rule.to)];
  return (is_aligned ? kernels.aligned : kernels.any)(LaunchOf(work), arguments, stream);
}

Outcome QuantiseBlocks(void* dst, ptrdiff_t dst_pitch, float* scales, ptrdiff_t scales_pitch,
                       float* factors, const void* src, ptrdiff_t src_pitch_bytes, size_t rows,
                       size_t columns, const BlockGrid& grid, const ScaleRule& rule, Wide type,
                       Wide via, Stream stream) {
  if (rows == 0 || columns == 0) return {};
  const std::optional<DeviceRectangle> rectangle = DeviceRectangleOf(rows, columns, grid);
  if (!rectangle) return TooLarge("quantise blocks", rows, columns);
  const size_t block_rows = grid.RowsOfBlocks(rows);
  const size_t block_columns = grid.ColumnsOfBlocks(columns);
  if (FitsTile(dst, dst_pitch, src, src_pitch_bytes, *rectangle, type)) {
    const QuantiseBlocksArguments arguments{MatrixOf(src, src_pitch_bytes, *rectangle),
                                            static_cast<uint8_t*>(dst),
                                            dst_pitch,
                                            scales,
                                            scales_pitch,
                                            rectangle->grid.block_rows,
                                            rectangle->grid.block_columns,
                                            static_cast<uint32_t>(block_columns),
                                            rule,
                                            via};
    return blocks_kernels[IndexOf(type)][IndexOf(rule.to)]({uint64_t{block_rows} * block_columns},
                                                           arguments, stream);
  }
  if (factors == nullptr) {
    return Outcome::Failed("quantise blocks of " + std::to_string(grid.block_rows) + " x " +
                           std::to_string(grid.block_columns) +
                           ", or unaligned ones: needs room for factors");
  }
  const ptrdiff_t factors_pitch = static_cast<ptrdiff_t>(block_columns);
  Outcome outcome = ClearMaxima(factors, factors_pitch, block_rows, block_columns, stream);
  if (outcome.ok()) {
    outcome = CombineMaxima(factors, factors_pitch, src, type, via, src_pitch_bytes, rows, columns,
                            grid, stream);
  }
  if (outcome.ok()) {
    outcome = ScalesOfMaxima(scales, scales_pitch, factors, factors_pitch, block_rows,
                             block_columns, rule, stream);
  }
  if (!outcome.ok()) return outcome;
  return QuantiseRows(dst, dst_pitch, src, src_pitch_bytes, rows, columns, grid, factors,
                      factors_pitch, {type, via, rule.to, rule.division}, {}, stream);
}

Outcome QuantiseMx(void* dst, ptrdiff_t dst_pitch, void* scales, ptrdiff_t scales_pitch,
                   const void* src, ptrdiff_t src_pitch_bytes, size_t rows, size_t columns,
                   const ScaleRule& rule, Wide type, Wide via, Stream stream) {
  if (rows == 0 || columns == 0) return {};
  if (rule.rounding == ScaleRounding::kNone) {
    return Outcome::Failed(
        "quantise to MX: scales of 8 bits are powers of two, and the rule does "
        "not round to them");
  }
  const std::optional<DeviceRectangle> rectangle =
      DeviceRectangleOf(rows, columns, {.block_rows = 1, .block_columns = kMxColumns});
  if (!rectangle) return TooLarge("quantise to MX", rows, columns);
  const unsigned at_once = static_cast<unsigned>(kChunkBytes / SizeBytes(type));
  const bool is_aligned =
      SharedAlignment({AddressOf(src), PitchIfAny(src_pitch_bytes, rows)}) == kChunkBytes &&
      SharedAlignment({AddressOf(dst), PitchIfAny(dst_pitch, rows), columns}) >= at_once;
  const uint64_t strips = CeilDiv(columns, uint64_t{kThreads} * (is_aligned ? at_once : 1));
  const QuantiseMxArguments arguments{MatrixOf(src, src_pitch_bytes, *rectangle),
                                      static_cast<uint8_t*>(dst),
                                      dst_pitch,
                                      static_cast<uint8_t*>(scales),
                                      scales_pitch,
                                      static_cast<uint32_t>(strips),
                                      rule,
                                      via};
  Pair& kernels = mx_kernels[IndexOf(type)][IndexOf(rule.to)];
  return (is_aligned ? kernels.aligned : kernels.any)({rows * strips}, arguments, stream);
}

}  // namespace waybill::kernels::cuda
