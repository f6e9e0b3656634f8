// F32 to BF16.

#include "kernels/cuda/leaves.cuh"

namespace waybill::kernels::cuda {
namespace {

template <bool kAligned>
struct CastMaker {
  static constexpr unsigned kElements = kChunkBytes / 2;
  struct Source {
    float4 halves[2];
  };

  __device__ void Load(const LeafPlaces& places, unsigned offset, unsigned size,
                       Source& source) const {
    const float* const from = arguments.src + places.At(offset).column / 2;
    if (kAligned && size == kChunkBytes) {
      source.halves[0] = reinterpret_cast<const float4*>(from)[0];
      source.halves[1] = reinterpret_cast<const float4*>(from)[1];
      return;
    }
    float values[kElements];
#pragma unroll
    for (unsigned i = 0; i < kElements; ++i) values[i] = i < size / 2 ? from[i] : 0.0F;
    source.halves[0] = make_float4(values[0], values[1], values[2], values[3]);
    source.halves[1] = make_float4(values[4], values[5], values[6], values[7]);
  }

  __device__ Chunk Finish(const LeafPlaces& places, unsigned offset, unsigned size,
                          const Source& source) const {
    const Chunk chunk{{Word(source.halves[0]), Word(source.halves[1])}};
    uint16_t* const to = arguments.dst + places.At(offset).column / 2;
    if (kAligned && size == kChunkBytes) {
      *reinterpret_cast<Chunk*>(to) = chunk;
      return chunk;
    }
#pragma unroll
    for (unsigned i = 0; i < kElements; ++i) {
      if (i < size / 2) to[i] = static_cast<uint16_t>(chunk.words[i / 4] >> (i % 4 * 16));
    }
    return chunk;
  }

  static __device__ uint64_t Word(const float4& values) {
    return uint64_t{scalar::F32ToBf16(values.x)} | uint64_t{scalar::F32ToBf16(values.y)} << 16 |
           uint64_t{scalar::F32ToBf16(values.z)} << 32 |
           uint64_t{scalar::F32ToBf16(values.w)} << 48;
  }

  const CastArguments& arguments;
};

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    WaybillCastAligned(const __grid_constant__ CastArguments arguments) {
  MakeLeaves<4>(arguments.work, CastMaker<true>{arguments});
}

extern "C" __global__ void __launch_bounds__(kThreads)
    WaybillCastAny(const __grid_constant__ CastArguments arguments) {
  MakeLeaves<4>(arguments.work, CastMaker<false>{arguments});
}

}  // namespace waybill::kernels::cuda
