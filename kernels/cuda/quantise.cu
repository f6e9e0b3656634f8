// SPDX-License-Identifier: Apache-2.0

// Wide elements to FP8 by given factors, and back, row by row.

#include "kernels/cuda/leaves.cuh"
#include "kernels/cuda/wide_chunk.cuh"

namespace waybill::kernels::cuda {
namespace {

// The factor of an element's block.
__device__ ptrdiff_t BlockIndex(const DeviceGrid& grid, ptrdiff_t pitch, uint32_t row,
                                uint32_t column) {
  return static_cast<ptrdiff_t>((row + grid.row_phase) / grid.block_rows) * pitch +
         static_cast<ptrdiff_t>((column + grid.column_phase) / grid.block_columns);
}

// Aligned: sixteen elements of a row that begin at a multiple of sixteen share a block.
template <Wide kType, Narrow kTo, bool kAligned>
struct QuantiseMaker {
  static constexpr unsigned kLoads = SizeBytes(kType);  // Of 16 bytes, for 16 elements.
  struct Source {
    WideChunk<kType> loads[kAligned ? kLoads : 1];
  };

  __device__ void Load(const LeafPlaces& places, unsigned offset, unsigned size,
                       Source& source) const {
    if (!kAligned || size != kChunkBytes) return;
    const Place place = places.At(offset);
    const uint4* const from = reinterpret_cast<const uint4*>(From(place));
#pragma unroll
    for (unsigned i = 0; i < kLoads; ++i) source.loads[kAligned ? i : 0].raw = from[i];
  }

  __device__ Chunk Finish(const LeafPlaces& places, unsigned offset, unsigned size,
                          const Source& source) const {
    if (!kAligned || size != kChunkBytes) return FinishEach(places, offset, size);
    const Place place = places.At(offset);
    const float factor = Factor(place);
    uint32_t codes[4];
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      constexpr unsigned kPerLoad = WideChunk<kType>::kElements;
      codes[i] = QuantiseFour<kTo>(source.loads[kAligned ? i * 4 / kPerLoad : 0], i * 4 % kPerLoad,
                                   arguments.via, factor, arguments.division);
    }
    *reinterpret_cast<uint4*>(To(place)) = make_uint4(codes[0], codes[1], codes[2], codes[3]);
    return {{codes[0] | uint64_t{codes[1]} << 32, codes[2] | uint64_t{codes[3]} << 32}};
  }

  // One element at a time.
  __device__ Chunk FinishEach(const LeafPlaces& places, unsigned offset, unsigned size) const {
    Chunk chunk{};
#pragma unroll 1
    for (unsigned i = 0; i < size; ++i) {
      const Place place = places.At(offset + i);
      const float value = LoadValue<kType>(From(place), arguments.via);
      const uint32_t code =
          QuantisePair<kTo>(value, value, Factor(place), arguments.division) & 0xff;
      *To(place) = static_cast<uint8_t>(code);
      const uint64_t byte = uint64_t{code} << (i % 8 * 8);
      chunk.words[0] |= i < 8 ? byte : 0;
      chunk.words[1] |= i < 8 ? 0 : byte;
    }
    return chunk;
  }

  __device__ const uint8_t* From(const Place& place) const {
    return arguments.src.data + static_cast<ptrdiff_t>(place.row) * arguments.src.pitch_bytes +
           place.column * SizeBytes(kType);
  }
  __device__ uint8_t* To(const Place& place) const {
    return arguments.dst + static_cast<ptrdiff_t>(place.row) * arguments.dst_pitch + place.column;
  }
  __device__ float Factor(const Place& place) const {
    return arguments
        .factors[BlockIndex(arguments.grid, arguments.factors_pitch,
                            static_cast<uint32_t>(place.row), static_cast<uint32_t>(place.column))];
  }

  const QuantiseArguments& arguments;
};

}  // namespace

#define WAYBILL_QUANTISE(name, type, to)                                                    \
  extern "C" __global__ void __launch_bounds__(kThreads)                                    \
      WaybillQuantise##name##Aligned(const __grid_constant__ QuantiseArguments arguments) { \
    MakeLeaves<SizeBytes(type) == 4 ? 2 : 4>(arguments.work,                                \
                                             QuantiseMaker<type, to, true>{arguments});     \
  }                                                                                         \
  extern "C" __global__ void __launch_bounds__(kThreads)                                    \
      WaybillQuantise##name##Any(const __grid_constant__ QuantiseArguments arguments) {     \
    MakeLeaves<1>(arguments.work, QuantiseMaker<type, to, false>{arguments});               \
  }

WAYBILL_QUANTISE(F32E4m3, Wide::kF32, Narrow::kE4m3)
WAYBILL_QUANTISE(F32E5m2, Wide::kF32, Narrow::kE5m2)
WAYBILL_QUANTISE(F16E4m3, Wide::kF16, Narrow::kE4m3)
WAYBILL_QUANTISE(F16E5m2, Wide::kF16, Narrow::kE5m2)
WAYBILL_QUANTISE(Bf16E4m3, Wide::kBf16, Narrow::kE4m3)
WAYBILL_QUANTISE(Bf16E5m2, Wide::kBf16, Narrow::kE5m2)

}  // namespace waybill::kernels::cuda
