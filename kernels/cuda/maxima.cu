// SPDX-License-Identifier: Apache-2.0

// The largest magnitude of each block, and what becomes of it.

#include "kernels/cuda/launch_arguments.h"
#include "kernels/cuda/strips.h"
#include "kernels/cuda/wide_chunk.cuh"

namespace waybill::kernels::cuda {
namespace {

// A warp takes kStripRows rows of as many columns as its threads have at once. Each thread stays in
// its columns, whose block changes from row to row only.
template <Wide kType, bool kAligned>
__device__ void FindMaxima(const MaximaArguments& arguments) {
  constexpr unsigned kColumns = kAligned ? WideChunk<kType>::kElements : 1;
  const Matrix& src = arguments.src;
  const DeviceGrid& grid = arguments.grid;
  const uint64_t warp = (uint64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarpThreads;
  const uint64_t begin = warp / arguments.column_strips * kStripRows;
  if (begin >= src.rows) return;  // The whole warp.
  const uint32_t end = static_cast<uint32_t>(min(begin + kStripRows, uint64_t{src.rows}));
  const uint64_t column =
      (warp % arguments.column_strips * kWarpThreads + threadIdx.x % kWarpThreads) * kColumns;
  const bool is_inside = column < src.columns;
  const uint32_t last_column = src.columns - kColumns;
  const uint32_t block_column =
      ((is_inside ? static_cast<uint32_t>(column) : last_column) + grid.column_phase) /
      grid.block_columns;
  const bool is_one_block =
      __all_sync(0xffff'ffff, block_column == __shfl_sync(0xffff'ffff, block_column, 0));
  const uint8_t* const from = src.data + column * SizeBytes(kType);
  for (uint32_t row = static_cast<uint32_t>(begin); row < end;) {
    const uint32_t block_row = (row + grid.row_phase) / grid.block_rows;
    const uint64_t next_block = (uint64_t{block_row} + 1) * grid.block_rows - grid.row_phase;
    const uint32_t stop = next_block < end ? static_cast<uint32_t>(next_block) : end;
    uint32_t largest = 0;
    if (is_inside) {
#pragma unroll 8
      for (uint32_t r = row; r < stop; ++r) {
        const uint8_t* const address = from + static_cast<ptrdiff_t>(r) * src.pitch_bytes;
        WideChunk<kType> chunk;
        if (kAligned) {
          chunk.raw = *reinterpret_cast<const uint4*>(address);
        } else {
          chunk.raw.x = LoadBits<kType>(address);
        }
        largest = chunk.Largest(largest);
      }
    }
    row = stop;
    if (is_one_block) largest = __reduce_max_sync(0xffff'ffff, largest);
    if (largest == 0 || (is_one_block && threadIdx.x % kWarpThreads != 0)) continue;
    uint32_t* const maximum = arguments.maxima +
                              static_cast<ptrdiff_t>(block_row) * arguments.maxima_pitch +
                              block_column;
    atomicMax(maximum, MaximumBits(largest, arguments.type, arguments.via));
  }
}

}  // namespace

// F16 and BF16 are found alike: without its sign the larger number is the larger magnitude.
#define WAYBILL_MAXIMA(name, type, aligned)                                    \
  extern "C" __global__ void __launch_bounds__(kThreads)                       \
      WaybillMaxima##name(const __grid_constant__ MaximaArguments arguments) { \
    FindMaxima<type, aligned>(arguments);                                      \
  }

WAYBILL_MAXIMA(32Aligned, Wide::kF32, true)
WAYBILL_MAXIMA(32Any, Wide::kF32, false)
WAYBILL_MAXIMA(16Aligned, Wide::kBf16, true)
WAYBILL_MAXIMA(16Any, Wide::kBf16, false)

extern "C" __global__ void __launch_bounds__(kThreads)
    WaybillClearMaxima(const __grid_constant__ ScalesArguments arguments) {
  const uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  const uint64_t row = i / arguments.columns;
  if (row >= arguments.rows) return;
  arguments.factors[static_cast<ptrdiff_t>(row) * arguments.factors_pitch +
                    static_cast<ptrdiff_t>(i - row * arguments.columns)] = 0;
}

extern "C" __global__ void __launch_bounds__(kThreads)
    WaybillScales(const __grid_constant__ ScalesArguments arguments) {
  const uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  const uint64_t row = i / arguments.columns;
  if (row >= arguments.rows) return;
  const ptrdiff_t column = static_cast<ptrdiff_t>(i - row * arguments.columns);
  float& factor = arguments.factors[static_cast<ptrdiff_t>(row) * arguments.factors_pitch + column];
  const Scale scale = ScaleOfMaximum(factor, arguments.rule);
  arguments.scales[static_cast<ptrdiff_t>(row) * arguments.scales_pitch + column] = scale.scale;
  factor = scale.factor;
}

}  // namespace waybill::kernels::cuda
