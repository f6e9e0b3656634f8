// SPDX-License-Identifier: Apache-2.0

// Blocks of rows: copied, digested, or both. Addresses and what lies between them are multiples of
// kUnit bytes; the launch picks the largest that fits.

#include "kernels/cuda/leaves.cuh"

namespace waybill::kernels::cuda {
namespace {

template <unsigned kUnit>
struct UnitOf;
template <>
struct UnitOf<1> {
  using Type = uint8_t;
};
template <>
struct UnitOf<2> {
  using Type = uint16_t;
};
template <>
struct UnitOf<4> {
  using Type = uint32_t;
};
template <>
struct UnitOf<8> {
  using Type = uint64_t;
};
template <>
struct UnitOf<16> {
  using Type = uint4;
};

template <unsigned kUnit>
struct RowsMaker {
  using Unit = typename UnitOf<kUnit>::Type;
  union Source {
    __device__ Source() {}
    Unit units[kChunkBytes / kUnit];
    Chunk chunk;
  };

  __device__ void Load(const LeafPlaces& places, unsigned offset, unsigned size,
                       Source& source) const {
    const Place place = places.At(offset);
    if (IsWhole(place, size)) {
      const Unit* const from = reinterpret_cast<const Unit*>(From(place));
#pragma unroll
      for (unsigned i = 0; i < kChunkBytes / kUnit; ++i) source.units[i] = from[i];
      return;
    }
    Chunk chunk{};
#pragma unroll 1
    for (unsigned i = 0; i < size; ++i) {
      const uint64_t byte = uint64_t{*From(places.At(offset + i))} << (i % 8 * 8);
      chunk.words[0] |= i < 8 ? byte : 0;
      chunk.words[1] |= i < 8 ? 0 : byte;
    }
    source.chunk = chunk;
  }

  __device__ Chunk Finish(const LeafPlaces& places, unsigned offset, unsigned size,
                          const Source& source) const {
    if (arguments.dst == nullptr) return source.chunk;
    const Place place = places.At(offset);
    if (IsWhole(place, size)) {
      Unit* const to = reinterpret_cast<Unit*>(To(place));
#pragma unroll
      for (unsigned i = 0; i < kChunkBytes / kUnit; ++i) to[i] = source.units[i];
      return source.chunk;
    }
    const Chunk chunk = source.chunk;
#pragma unroll 1
    for (unsigned i = 0; i < size; ++i) {
      const uint64_t word = i < 8 ? chunk.words[0] : chunk.words[1];
      *To(places.At(offset + i)) = static_cast<uint8_t>(word >> (i % 8 * 8));
    }
    return chunk;
  }

  // The chunk is in one row, and so made of units; what crosses a row's end goes byte by byte.
  __device__ bool IsWhole(const Place& place, unsigned size) const {
    return size == kChunkBytes && place.column + kChunkBytes <= arguments.work.row_bytes;
  }
  __device__ const uint8_t* From(const Place& place) const {
    return arguments.src + static_cast<ptrdiff_t>(place.row) * arguments.src_pitch + place.column;
  }
  __device__ uint8_t* To(const Place& place) const {
    return arguments.dst + static_cast<ptrdiff_t>(place.row) * arguments.dst_pitch + place.column;
  }

  const RowsArguments& arguments;
};

}  // namespace

#define WAYBILL_ROWS(unit, batch)                                          \
  extern "C" __global__ void __launch_bounds__(kThreads)                   \
      WaybillRows##unit(const __grid_constant__ RowsArguments arguments) { \
    MakeLeaves<batch>(arguments.work, RowsMaker<unit>{arguments});         \
  }

WAYBILL_ROWS(1, 2)
WAYBILL_ROWS(2, 4)
WAYBILL_ROWS(4, 4)
WAYBILL_ROWS(8, 4)
WAYBILL_ROWS(16, 8)

}  // namespace waybill::kernels::cuda
