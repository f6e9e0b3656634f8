// SPDX-License-Identifier: Apache-2.0

// Casts between element types.

#include "kernels/cuda/leaves.cuh"
#include "kernels/cuda/wide_chunk.cuh"

namespace waybill::kernels::cuda {
namespace {

template <Cast kCast, bool kAligned>
struct CastMaker {
  static constexpr Wide kFrom = SourceOf(kCast);
  static constexpr Wide kTo = DestinationOf(kCast);
  static constexpr unsigned kFromBytes = SizeBytes(kFrom);
  static constexpr unsigned kToBytes = SizeBytes(kTo);
  static constexpr unsigned kElements = kChunkBytes / kToBytes;
  static constexpr unsigned kSourceWords = kElements * kFromBytes / 8;

  // The elements as they lie.
  struct Source {
    uint64_t words[kSourceWords];

    __device__ uint32_t Bits(unsigned i) const {
      const uint64_t shifted = words[i * kFromBytes / 8] >> (i * kFromBytes % 8 * 8);
      return static_cast<uint32_t>(shifted) & (kFromBytes == 4 ? ~uint32_t{0} : 0xffff);
    }
  };

  __device__ void Load(const LeafPlaces& places, unsigned offset, unsigned size,
                       Source& source) const {
    const uint8_t* const from = static_cast<const uint8_t*>(arguments.src) +
                                places.At(offset).column / kToBytes * kFromBytes;
    if (kAligned && size == kChunkBytes) {
      if constexpr (kSourceWords == 1) {
        source.words[0] = *reinterpret_cast<const uint64_t*>(from);
      } else {
#pragma unroll
        for (unsigned i = 0; i < kSourceWords; i += 2) {
          const Chunk chunk = reinterpret_cast<const Chunk*>(from)[i / 2];
          source.words[i] = chunk.words[0];
          source.words[i + 1] = chunk.words[1];
        }
      }
      return;
    }
    source = {};
#pragma unroll
    for (unsigned i = 0; i < kElements; ++i) {
      if (i * kToBytes >= size) continue;
      source.words[i * kFromBytes / 8] |= uint64_t{LoadBits<kFrom>(from + i * kFromBytes)}
                                          << (i * kFromBytes % 8 * 8);
    }
  }

  __device__ Chunk Finish(const LeafPlaces& places, unsigned offset, unsigned size,
                          const Source& source) const {
    Chunk chunk{};
#pragma unroll
    for (unsigned i = 0; i < kElements; ++i) {
      if (i * kToBytes >= size) continue;  // What is not there is zero.
      const uint32_t bits = F32ToWide(WideToF32(source.Bits(i), kFrom), kTo);
      chunk.words[i * kToBytes / 8] |= uint64_t{bits} << (i * kToBytes % 8 * 8);
    }
    uint8_t* const to = static_cast<uint8_t*>(arguments.dst) + places.At(offset).column;
    if (kAligned && size == kChunkBytes) {
      *reinterpret_cast<Chunk*>(to) = chunk;
      return chunk;
    }
#pragma unroll
    for (unsigned i = 0; i < kElements; ++i) {
      if (i * kToBytes >= size) continue;
      const uint64_t bits = chunk.words[i * kToBytes / 8] >> (i * kToBytes % 8 * 8);
      if (kToBytes == 4) {
        reinterpret_cast<uint32_t*>(to)[i] = static_cast<uint32_t>(bits);
      } else {
        reinterpret_cast<uint16_t*>(to)[i] = static_cast<uint16_t>(bits);
      }
    }
    return chunk;
  }

  const CastArguments& arguments;
};

}  // namespace

#define WAYBILL_CAST(name, suffix, aligned, chunks)                                   \
  extern "C" __global__ void __launch_bounds__(kThreads)                              \
      WaybillCast##name##suffix(const __grid_constant__ CastArguments arguments) {    \
    MakeLeaves<chunks>(arguments.work, CastMaker<Cast::k##name, aligned>{arguments}); \
  }
#define WAYBILL_CASTS(name)            \
  WAYBILL_CAST(name, Aligned, true, 4) \
  WAYBILL_CAST(name, Any, false, 1)

WAYBILL_CASTS(F32ToBf16)
WAYBILL_CASTS(F32ToF16)
WAYBILL_CASTS(Bf16ToF32)
WAYBILL_CASTS(F16ToF32)
WAYBILL_CASTS(Bf16ToF16)

}  // namespace waybill::kernels::cuda
