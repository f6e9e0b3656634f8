// How large the pieces are that blocks of threads take; both sides of a launch go by these.

#ifndef KERNELS_CUDA_STRIPS_H_
#define KERNELS_CUDA_STRIPS_H_

#include <cstdint>

namespace waybill::kernels::cuda {

inline constexpr uint32_t kStripRows = 64;  // That a warp finds maxima of.
inline constexpr uint32_t kTileRows = 128;  // The largest block that registers hold.
inline constexpr uint32_t kTileColumns = 128;
inline constexpr uint32_t kMxColumns = 32;      // Of a block of MX.
inline constexpr uint32_t kTransposeTile = 64;  // The side of a square.

}  // namespace waybill::kernels::cuda

#endif  // KERNELS_CUDA_STRIPS_H_
