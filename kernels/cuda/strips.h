// SPDX-License-Identifier: Apache-2.0

// The sizes of the pieces that blocks of threads handle. Host and GPU code share them.

#ifndef KERNELS_CUDA_STRIPS_H_
#define KERNELS_CUDA_STRIPS_H_

#include <cstdint>

namespace waybill::kernels::cuda {

inline constexpr uint32_t kStripRows = 64;  // Rows of which a warp finds the maxima.
inline constexpr uint32_t kTileRows = 128;  // The largest block that registers hold.
inline constexpr uint32_t kTileColumns = 128;
inline constexpr uint32_t kMxColumns = 32;      // Columns of an MX block.
inline constexpr uint32_t kTransposeTile = 64;  // The side of a square.

}  // namespace waybill::kernels::cuda

#endif  // KERNELS_CUDA_STRIPS_H_
