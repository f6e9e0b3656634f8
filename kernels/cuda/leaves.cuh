// SPDX-License-Identifier: Apache-2.0

// How the work of a stream of bytes is shared out on a GPU, and how its digest comes about on the
// way. A warp takes a leaf of 4096 bytes at a time, a thread 16 bytes of it at a time: two words,
// which meet the same pair of the digest's lanes in each of the leaf's eight rounds.

#ifndef KERNELS_CUDA_LEAVES_CUH_
#define KERNELS_CUDA_LEAVES_CUH_

#include <cstdint>

#include "kernels/cuda/element_arithmetic.h"
#include "kernels/cuda/launch_arguments.h"
#include "kernels/scalar.h"

namespace waybill::kernels::cuda {

__device__ constexpr scalar::DigestConstants kDigestConstants = scalar::MakeDigestConstants();

constexpr unsigned kLeafBytes = scalar::kLeafWords * 8;
constexpr unsigned kRoundBytes = kWarpThreads * kChunkBytes;
constexpr unsigned kRounds = kLeafBytes / kRoundBytes;
constexpr unsigned kAllThreads = 0xffff'ffff;

// Two words of a stream.
struct alignas(16) Chunk {
  uint64_t words[2];
};

// The place of a byte of the stream.
struct Place {
  uint64_t row;
  uint64_t column;  // In bytes.
};

// Finds places within one leaf without a long division each.
class LeafPlaces {
 public:
  __device__ LeafPlaces(const LeafWork& work, uint64_t begin)
      : row_bytes_(work.row_bytes),
        row_(work.rows == 1 ? 0 : begin / work.row_bytes),
        column_(begin - row_ * work.row_bytes) {}

  // `offset` is below kLeafBytes.
  __device__ Place At(unsigned offset) const {
    const uint64_t column = column_ + offset;
    if (column < row_bytes_) return {row_, column};
    // The leaf began in row row_, so this is at most a leaf past that row's end.
    const unsigned past = static_cast<unsigned>(column - row_bytes_);
    const unsigned length =
        row_bytes_ < kLeafBytes ? static_cast<unsigned>(row_bytes_) : kLeafBytes;
    return {row_ + 1 + past / length, past % length};
  }

 private:
  uint64_t row_bytes_;
  uint64_t row_;
  uint64_t column_;
};

// One leaf's lanes, spread over a warp: thread t has a part of lanes 2 * (t % 4) and the next.
struct LanePair {
  uint64_t even = 0;
  uint64_t odd = 0;

  __device__ void Absorb(const Chunk& chunk, const Chunk& keys, unsigned size_bytes) {
    even += KeyedProduct(chunk.words[0], keys.words[0]);
    odd += chunk.words[0];
    if (size_bytes <= 8) return;  // A word that is not there has no product.
    odd += KeyedProduct(chunk.words[1], keys.words[1]);
    even += chunk.words[1];
  }

  // The leaf's value, in every thread of the warp.
  __device__ uint64_t Value(uint64_t leaf_index) const {
    uint64_t lanes[2] = {even, odd};
    for (unsigned apart = 4; apart < kWarpThreads; apart *= 2) {
      lanes[0] += __shfl_xor_sync(kAllThreads, lanes[0], apart);
      lanes[1] += __shfl_xor_sync(kAllThreads, lanes[1], apart);
    }
    const unsigned pair = threadIdx.x % 4;
    const uint64_t* const offsets = &kDigestConstants.lane_offsets[2 * pair];
    uint64_t sum = scalar::Mix(lanes[0] + offsets[0]) + scalar::Mix(lanes[1] + offsets[1]);
    sum += __shfl_xor_sync(kAllThreads, sum, 1);
    sum += __shfl_xor_sync(kAllThreads, sum, 2);
    return scalar::Mix(sum + (leaf_index + 1) * kDigestConstants.leaf_step);
  }
};

// Makes the stream: for each chunk of 16 bytes (fewer at its end) maker.Load(place finder, offset
// in the leaf, size, &source), and later maker.Finish(the same, source), which stores what it makes
// and returns it, absent bytes as zeros. kBatch chunks are loaded before the first of them is
// stored.
template <unsigned kBatch, typename Maker>
__device__ void MakeLeaves(const LeafWork& work, const Maker& maker) {
  static_assert(kRounds % kBatch == 0);
  __shared__ Chunk keys[scalar::kLeafWords / 2];
  if (work.sum != nullptr) {
    for (unsigned i = threadIdx.x; i < scalar::kLeafWords / 2; i += blockDim.x) {
      keys[i] = {{kDigestConstants.keys[2 * i], kDigestConstants.keys[2 * i + 1]}};
    }
    __syncthreads();
  }
  const unsigned thread = threadIdx.x % kWarpThreads;
  const uint64_t warp = (uint64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarpThreads;
  const uint64_t stream_bytes = work.rows * work.row_bytes;
  uint64_t sum = 0;
  for (unsigned n = 0; n < work.leaves_per_warp; ++n) {
    const uint64_t leaf = warp * work.leaves_per_warp + n;
    if (leaf * kLeafBytes >= stream_bytes) break;
    const uint64_t left = stream_bytes - leaf * kLeafBytes;
    const unsigned leaf_bytes = left < kLeafBytes ? static_cast<unsigned>(left) : kLeafBytes;
    const LeafPlaces places(work, leaf * kLeafBytes);
    LanePair lanes;
    for (unsigned round = 0; round < kRounds; round += kBatch) {
      typename Maker::Source sources[kBatch];
#pragma unroll
      for (unsigned i = 0; i < kBatch; ++i) {
        const unsigned offset = (round + i) * kRoundBytes + thread * kChunkBytes;
        if (offset >= leaf_bytes) continue;
        const unsigned size = min(leaf_bytes - offset, kChunkBytes);
        maker.Load(places, offset, size, sources[i]);
      }
#pragma unroll
      for (unsigned i = 0; i < kBatch; ++i) {
        const unsigned offset = (round + i) * kRoundBytes + thread * kChunkBytes;
        if (offset >= leaf_bytes) continue;
        const unsigned size = min(leaf_bytes - offset, kChunkBytes);
        const Chunk chunk = maker.Finish(places, offset, size, sources[i]);
        if (work.sum == nullptr) continue;
        lanes.Absorb(chunk, keys[(round + i) * kWarpThreads + thread], size);
      }
    }
    if (work.sum != nullptr) sum += lanes.Value(work.first_leaf + leaf);
  }
  if (work.sum != nullptr && thread == 0 && sum != 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(work.sum), sum);
  }
}

}  // namespace waybill::kernels::cuda

#endif  // KERNELS_CUDA_LEAVES_CUH_
