// SPDX-License-Identifier: Apache-2.0

// Transposes by square tiles in shared memory, so that both sides are read and written along rows.

#include "kernels/cuda/element_arithmetic.h"
#include "kernels/cuda/launch_arguments.h"
#include "kernels/cuda/strips.h"

namespace waybill::kernels::cuda {
namespace {

struct Same {
  template <typename T>
  __device__ static T Of(T bits) {
    return bits;
  }
};

template <Cast kCast>
struct Converted {
  __device__ static uint32_t Of(uint32_t bits) {
    return F32ToWide(WideToF32(bits, SourceOf(kCast)), DestinationOf(kCast));
  }
};

template <typename From, typename To, typename Element>
__device__ void TransposeTile(const TransposeArguments& arguments) {
  constexpr unsigned kRowsAtOnce = kThreads / kTransposeTile;
  // Neighbouring rows lie in different banks.
  constexpr unsigned kPadding = sizeof(To) < 4 ? 4 / sizeof(To) : 1;
  __shared__ To tile[kTransposeTile][kTransposeTile + kPadding];
  const unsigned x = threadIdx.x % kTransposeTile;
  const unsigned y = threadIdx.x / kTransposeTile;
  // Rows of the destination.
  const uint32_t first_row = blockIdx.x / arguments.column_tiles * kTransposeTile;
  const uint32_t first_column = blockIdx.x % arguments.column_tiles * kTransposeTile;

  const char* const src = static_cast<const char*>(arguments.src);
#pragma unroll 8
  for (unsigned i = y; i < kTransposeTile; i += kRowsAtOnce) {
    if (first_column + i >= arguments.columns || first_row + x >= arguments.rows) continue;
    const From* const row = reinterpret_cast<const From*>(
        src + static_cast<ptrdiff_t>(first_column + i) * arguments.src_pitch);
    tile[i][x] = static_cast<To>(Element::Of(row[first_row + x]));
  }
  __syncthreads();
  char* const dst = static_cast<char*>(arguments.dst);
#pragma unroll 8
  for (unsigned i = y; i < kTransposeTile; i += kRowsAtOnce) {
    if (first_row + i >= arguments.rows || first_column + x >= arguments.columns) continue;
    To* const row =
        reinterpret_cast<To*>(dst + static_cast<ptrdiff_t>(first_row + i) * arguments.dst_pitch);
    row[first_column + x] = tile[x][i];
  }
}

}  // namespace

#define WAYBILL_TRANSPOSE(name, from, to, element)                                   \
  extern "C" __global__ void __launch_bounds__(kThreads)                             \
      WaybillTranspose##name(const __grid_constant__ TransposeArguments arguments) { \
    TransposeTile<from, to, element>(arguments);                                     \
  }

WAYBILL_TRANSPOSE(1, uint8_t, uint8_t, Same)
WAYBILL_TRANSPOSE(2, uint16_t, uint16_t, Same)
WAYBILL_TRANSPOSE(4, uint32_t, uint32_t, Same)
WAYBILL_TRANSPOSE(8, uint64_t, uint64_t, Same)
WAYBILL_TRANSPOSE(F32ToBf16, uint32_t, uint16_t, Converted<Cast::kF32ToBf16>)
WAYBILL_TRANSPOSE(F32ToF16, uint32_t, uint16_t, Converted<Cast::kF32ToF16>)
WAYBILL_TRANSPOSE(Bf16ToF32, uint16_t, uint32_t, Converted<Cast::kBf16ToF32>)
WAYBILL_TRANSPOSE(F16ToF32, uint16_t, uint32_t, Converted<Cast::kF16ToF32>)
WAYBILL_TRANSPOSE(Bf16ToF16, uint16_t, uint16_t, Converted<Cast::kBf16ToF16>)

}  // namespace waybill::kernels::cuda
