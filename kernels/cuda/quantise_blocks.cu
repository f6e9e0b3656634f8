// SPDX-License-Identifier: Apache-2.0

// Both passes of block quantisation at once: what is read once stays in registers until the block's
// maximum is known.

#include "kernels/cuda/launch_arguments.h"
#include "kernels/cuda/strips.h"
#include "kernels/cuda/wide_chunk.cuh"

namespace waybill::kernels::cuda {
namespace {

template <typename Codes>
__device__ void StoreCodes(uint8_t* to, const uint32_t (&codes)[sizeof(Codes) / 4]) {
  if constexpr (sizeof(Codes) == 8) {
    *reinterpret_cast<uint2*>(to) = make_uint2(codes[0], codes[1]);
  } else {
    *reinterpret_cast<uint32_t*>(to) = codes[0];
  }
}

// A block of threads for each block of at most kTileRows x kTileColumns elements.
template <Wide kType, Narrow kTo>
__device__ void QuantiseTile(const QuantiseBlocksArguments& arguments) {
  constexpr unsigned kElements = WideChunk<kType>::kElements;
  constexpr unsigned kChunksOfRow = kTileColumns / kElements;
  constexpr unsigned kRowsAtOnce = kThreads / kChunksOfRow;
  constexpr unsigned kLoads = kTileRows / kRowsAtOnce;
  using Codes = uint32_t[kElements / 4];
  const Matrix& src = arguments.src;
  const uint32_t block_row = blockIdx.x / arguments.columns_of_blocks;
  const uint32_t block_column = blockIdx.x % arguments.columns_of_blocks;
  const uint32_t first_row = block_row * arguments.block_rows;
  const uint32_t column =
      block_column * arguments.block_columns + threadIdx.x % kChunksOfRow * kElements;
  const bool is_inside =
      threadIdx.x % kChunksOfRow * kElements < arguments.block_columns && column < src.columns;
  const uint32_t rows = is_inside ? min(arguments.block_rows, src.rows - first_row) : 0;

  WideChunk<kType> loads[kLoads];
#pragma unroll
  for (unsigned i = 0; i < kLoads; ++i) {
    const uint32_t row = threadIdx.x / kChunksOfRow + i * kRowsAtOnce;
    if (row >= rows) continue;
    loads[i].raw = *reinterpret_cast<const uint4*>(
        src.data + static_cast<ptrdiff_t>(first_row + row) * src.pitch_bytes +
        uint64_t{column} * SizeBytes(kType));
  }
  uint32_t largest = 0;
#pragma unroll
  for (unsigned i = 0; i < kLoads; ++i) largest = loads[i].Largest(largest);

  __shared__ uint32_t of_warps[kThreads / kWarpThreads];
  largest = __reduce_max_sync(0xffff'ffff, largest);
  if (threadIdx.x % kWarpThreads == 0) of_warps[threadIdx.x / kWarpThreads] = largest;
  __syncthreads();
#pragma unroll
  for (unsigned i = 0; i < kThreads / kWarpThreads; ++i) largest = max(largest, of_warps[i]);
  const Scale scale =
      ScaleOfMaximum(FloatOf(MaximumBits(largest, kType, arguments.via)), arguments.rule);
  if (threadIdx.x == 0) {
    arguments.scales[static_cast<ptrdiff_t>(block_row) * arguments.scales_pitch + block_column] =
        scale.scale;
  }

#pragma unroll
  for (unsigned i = 0; i < kLoads; ++i) {
    const uint32_t row = threadIdx.x / kChunksOfRow + i * kRowsAtOnce;
    if (row >= rows) continue;
    Codes codes;
#pragma unroll
    for (unsigned j = 0; j < kElements / 4; ++j) {
      codes[j] =
          QuantiseFour<kTo>(loads[i], 4 * j, arguments.via, scale.factor, arguments.rule.division);
    }
    StoreCodes<Codes>(
        arguments.dst + static_cast<ptrdiff_t>(first_row + row) * arguments.dst_pitch + column,
        codes);
  }
}

// Blocks of 1 x 32, with scales of 8 bits. A few threads of a warp share one; a block of threads
// stays in a row.
template <Wide kType, Narrow kTo, bool kAligned>
__device__ void QuantiseMx(const QuantiseMxArguments& arguments) {
  constexpr unsigned kElements = kAligned ? WideChunk<kType>::kElements : 1;
  constexpr unsigned kSharers = kMxColumns / kElements;
  using Codes = uint32_t[kAligned ? kElements / 4 : 1];
  const Matrix& src = arguments.src;
  const uint32_t row = blockIdx.x / arguments.column_strips;
  const uint64_t column =
      (uint64_t{blockIdx.x % arguments.column_strips} * kThreads + threadIdx.x) * kElements;
  const bool is_inside = column < src.columns;
  const uint8_t* const from =
      src.data + static_cast<ptrdiff_t>(row) * src.pitch_bytes + column * SizeBytes(kType);
  WideChunk<kType> chunk;
  if (is_inside && kAligned) chunk.raw = *reinterpret_cast<const uint4*>(from);
  if (is_inside && !kAligned) chunk.raw.x = LoadBits<kType>(from);
  uint32_t largest = chunk.Largest(0);
#pragma unroll
  for (unsigned apart = 1; apart < kSharers; apart *= 2) {
    largest = max(largest, __shfl_xor_sync(0xffff'ffff, largest, apart));
  }
  if (!is_inside) return;
  const Scale scale =
      ScaleOfMaximum(FloatOf(MaximumBits(largest, kType, arguments.via)), arguments.rule);
  if (threadIdx.x % kSharers == 0) {
    arguments.scales[static_cast<ptrdiff_t>(row) * arguments.scales_pitch +
                     static_cast<ptrdiff_t>(column / kMxColumns)] =
        static_cast<uint8_t>(E8m0Of(scale.scale));
  }
  uint8_t* const to = arguments.dst + static_cast<ptrdiff_t>(row) * arguments.dst_pitch + column;
  if constexpr (kAligned) {
    Codes codes;
#pragma unroll
    for (unsigned j = 0; j < kElements / 4; ++j) {
      codes[j] =
          QuantiseFour<kTo>(chunk, 4 * j, arguments.via, scale.factor, arguments.rule.division);
    }
    StoreCodes<Codes>(to, codes);
  } else {
    const float value = chunk.Value(0, arguments.via);
    *to = static_cast<uint8_t>(
        QuantisePair<kTo>(value, value, scale.factor, arguments.rule.division));
  }
}

}  // namespace

#define WAYBILL_BLOCKS(name, type, to)                                                          \
  extern "C" __global__ void __launch_bounds__(kThreads)                                        \
      WaybillQuantiseBlocks##name(const __grid_constant__ QuantiseBlocksArguments arguments) {  \
    QuantiseTile<type, to>(arguments);                                                          \
  }                                                                                             \
  extern "C" __global__ void __launch_bounds__(kThreads)                                        \
      WaybillQuantiseMx##name##Aligned(const __grid_constant__ QuantiseMxArguments arguments) { \
    QuantiseMx<type, to, true>(arguments);                                                      \
  }                                                                                             \
  extern "C" __global__ void __launch_bounds__(kThreads)                                        \
      WaybillQuantiseMx##name##Any(const __grid_constant__ QuantiseMxArguments arguments) {     \
    QuantiseMx<type, to, false>(arguments);                                                     \
  }

WAYBILL_BLOCKS(F32E4m3, Wide::kF32, Narrow::kE4m3)
WAYBILL_BLOCKS(F32E5m2, Wide::kF32, Narrow::kE5m2)
WAYBILL_BLOCKS(F16E4m3, Wide::kF16, Narrow::kE4m3)
WAYBILL_BLOCKS(F16E5m2, Wide::kF16, Narrow::kE5m2)
WAYBILL_BLOCKS(Bf16E4m3, Wide::kBf16, Narrow::kE4m3)
WAYBILL_BLOCKS(Bf16E5m2, Wide::kBf16, Narrow::kE5m2)

}  // namespace waybill::kernels::cuda
