// Transposes by square tiles in shared memory, so that both sides are read and written along rows.

#include "kernels/cuda/element_arithmetic.h"
#include "kernels/cuda/launch_arguments.h"
#include "kernels/cuda/strips.h"

namespace waybill::kernels::cuda {
namespace {

__device__ uint16_t Convert(float value, const uint16_t*) { return scalar::F32ToBf16(value); }
template <typename T>
__device__ T Convert(T value, const T*) {
  return value;
}

template <typename From, typename To>
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
    tile[i][x] = Convert(row[first_row + x], static_cast<const To*>(nullptr));
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

#define WAYBILL_TRANSPOSE(name, from, to)                                            \
  extern "C" __global__ void __launch_bounds__(kThreads)                             \
      WaybillTranspose##name(const __grid_constant__ TransposeArguments arguments) { \
    TransposeTile<from, to>(arguments);                                              \
  }

WAYBILL_TRANSPOSE(1, uint8_t, uint8_t)
WAYBILL_TRANSPOSE(2, uint16_t, uint16_t)
WAYBILL_TRANSPOSE(4, uint32_t, uint32_t)
WAYBILL_TRANSPOSE(8, uint64_t, uint64_t)
WAYBILL_TRANSPOSE(F32ToBf16, float, uint16_t)

}  // namespace waybill::kernels::cuda
