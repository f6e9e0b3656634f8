// SPDX-License-Identifier: Apache-2.0

// The arguments of kernels: one struct each, which host and device code share.

#ifndef KERNELS_CUDA_LAUNCH_ARGUMENTS_H_
#define KERNELS_CUDA_LAUNCH_ARGUMENTS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/elements.h"
#include "kernels/quantise_rule.h"
#include "kernels/scale.h"

namespace waybill::kernels::cuda {

inline constexpr unsigned kThreads = 256;  // Threads of a block, unless a kernel says otherwise.
inline constexpr unsigned kWarpThreads = 32;
inline constexpr unsigned kChunkBytes = 16;  // The bytes that a thread makes at once.

// The stream of bytes that a kernel makes or reads: `rows` rows, one after the other. Each warp has
// `leaves_per_warp` leaves of it. Unless `sum` is null, the leaves' values are added to it.
struct LeafWork {
  uint64_t rows;
  uint64_t row_bytes;
  uint64_t first_leaf;
  uint64_t* sum;
  uint32_t leaves_per_warp;
};

struct RowsArguments {
  LeafWork work;
  uint8_t* dst;  // Null: only the digest is wanted.
  const uint8_t* src;
  ptrdiff_t dst_pitch;
  ptrdiff_t src_pitch;
};

struct CastArguments {
  LeafWork work;  // One row.
  void* dst;
  const void* src;
};

struct TransposeArguments {
  void* dst;
  const void* src;
  ptrdiff_t dst_pitch;
  ptrdiff_t src_pitch;
  uint32_t rows;  // Rows of the destination.
  uint32_t columns;
  uint32_t column_tiles;
};

// A rectangle of elements.
struct Matrix {
  const uint8_t* data;
  ptrdiff_t pitch_bytes;
  uint32_t rows;
  uint32_t columns;
};

// BlockGrid, in numbers that a GPU divides quickly.
struct DeviceGrid {
  uint32_t block_rows;
  uint32_t block_columns;
  uint32_t row_phase;
  uint32_t column_phase;
};

struct MaximaArguments {
  Matrix src;
  uint32_t* maxima;  // Bits of floats.
  ptrdiff_t maxima_pitch;
  DeviceGrid grid;
  Wide type;
  Wide via;
  uint32_t column_strips;
};

struct ScalesArguments {
  float* scales;
  float* factors;  // Maxima become factors.
  ptrdiff_t scales_pitch;
  ptrdiff_t factors_pitch;
  uint32_t rows;  // Rows of blocks.
  uint32_t columns;
  ScaleRule rule;
};

struct QuantiseArguments {
  LeafWork work;
  Matrix src;
  uint8_t* dst;
  ptrdiff_t dst_pitch;
  DeviceGrid grid;
  const float* factors;
  ptrdiff_t factors_pitch;
  Wide via;
  Division division;
};

struct QuantiseBlocksArguments {
  Matrix src;
  uint8_t* dst;
  ptrdiff_t dst_pitch;
  float* scales;
  ptrdiff_t scales_pitch;
  uint32_t block_rows;
  uint32_t block_columns;
  uint32_t columns_of_blocks;
  ScaleRule rule;
  Wide via;
};

struct QuantiseMxArguments {
  Matrix src;
  uint8_t* dst;
  ptrdiff_t dst_pitch;
  uint8_t* scales;
  ptrdiff_t scales_pitch;
  uint32_t column_strips;  // So many blocks of threads make a row.
  ScaleRule rule;
  Wide via;
};

}  // namespace waybill::kernels::cuda

#endif  // KERNELS_CUDA_LAUNCH_ARGUMENTS_H_
