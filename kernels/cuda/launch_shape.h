// SPDX-License-Identifier: Apache-2.0

// Computes the numbers of a launch from those of a caller.

#ifndef KERNELS_CUDA_LAUNCH_SHAPE_H_
#define KERNELS_CUDA_LAUNCH_SHAPE_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>

#include "kernels/block_grid.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/launch_arguments.h"
#include "kernels/cuda/leaf_sum.h"

namespace waybill::kernels::cuda {

constexpr uint64_t CeilDiv(uint64_t a, uint64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

inline uint64_t AddressOf(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

// Returns the largest power of two, at most 16, that divides all numbers.
unsigned SharedAlignment(std::initializer_list<uint64_t> numbers);

// Returns the pitch, or 0 if there is only one row, where the pitch means nothing.
constexpr uint64_t PitchIfAny(ptrdiff_t pitch, size_t rows) {
  return rows > 1 ? static_cast<uint64_t>(pitch) : 0;
}

// Returns the launch shape for a stream of at least one byte.
LeafWork LeafWorkOf(size_t rows, size_t row_bytes, const LeafSum& digest);
Launch LaunchOf(const LeafWork& work);

// A rectangle of fewer than 2^32 rows and columns, and its grid, which blocks larger than it are
// cut down to. None where numbers do not fit: TooLarge says so.
struct DeviceRectangle {
  uint32_t rows;
  uint32_t columns;
  DeviceGrid grid;
};
std::optional<DeviceRectangle> DeviceRectangleOf(size_t rows, size_t columns,
                                                 const BlockGrid& grid);
Outcome TooLarge(const char* what, size_t rows, size_t columns);

// Returns true if no `count` elements that begin at a multiple of `count` belong to two blocks.
bool SharesBlock(const DeviceRectangle& rectangle, unsigned count);

}  // namespace waybill::kernels::cuda

#endif  // KERNELS_CUDA_LAUNCH_SHAPE_H_
