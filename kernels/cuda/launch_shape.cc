// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/launch_shape.h"

#include <algorithm>
#include <limits>
#include <string>

namespace waybill::kernels::cuda {
namespace {

constexpr uint64_t kMost = std::numeric_limits<uint32_t>::max();

// One dimension of a grid: false where it does not fit.
bool FitsDimension(size_t extent, size_t block, size_t phase, uint32_t* to_block,
                   uint32_t* to_phase) {
  if (extent > kMost || phase > kMost || extent + phase > kMost) return false;
  *to_block =
      static_cast<uint32_t>(std::min<uint64_t>(block, std::max<uint64_t>(extent + phase, 1)));
  *to_phase = static_cast<uint32_t>(phase);
  return true;
}

}  // namespace

unsigned SharedAlignment(std::initializer_list<uint64_t> numbers) {
  uint64_t bits = kChunkBytes;
  for (const uint64_t number : numbers) bits |= number;
  return static_cast<unsigned>(bits & -bits);
}

LeafWork LeafWorkOf(size_t rows, size_t row_bytes, const LeafSum& digest) {
  constexpr uint64_t kLeafBytes = 4096;
  // So many warps keep a GPU busy to the end; from there on, a warp with more leaves spends less of
  // its time on its start.
  constexpr uint64_t kEnoughWarps = 16384;
  constexpr uint64_t kMostLeaves = 8;
  const uint64_t leaves = CeilDiv(uint64_t{rows} * row_bytes, kLeafBytes);
  LeafWork work{};
  work.rows = rows;
  work.row_bytes = row_bytes;
  work.first_leaf = digest.first_leaf;
  work.sum = digest.sum;
  work.leaves_per_warp =
      static_cast<uint32_t>(std::clamp<uint64_t>(leaves / kEnoughWarps, 1, kMostLeaves));
  return work;
}

Launch LaunchOf(const LeafWork& work) {
  const uint64_t leaves = CeilDiv(work.rows * work.row_bytes, 4096);
  const uint64_t warps = CeilDiv(leaves, work.leaves_per_warp);
  return {CeilDiv(warps, kThreads / kWarpThreads)};
}

std::optional<DeviceRectangle> DeviceRectangleOf(size_t rows, size_t columns,
                                                 const BlockGrid& grid) {
  DeviceRectangle to{};
  if (!FitsDimension(rows, grid.block_rows, grid.row_phase, &to.grid.block_rows,
                     &to.grid.row_phase) ||
      !FitsDimension(columns, grid.block_columns, grid.column_phase, &to.grid.block_columns,
                     &to.grid.column_phase)) {
    return std::nullopt;
  }
  to.rows = static_cast<uint32_t>(rows);
  to.columns = static_cast<uint32_t>(columns);
  return to;
}

Outcome TooLarge(const char* what, size_t rows, size_t columns) {
  return Outcome::Failed(std::string(what) + ": " + std::to_string(rows) + " rows of " +
                         std::to_string(columns) +
                         " elements; a launch takes fewer than 4294967296 of either, with the "
                         "rectangle's place in its block counted; cut it");
}

bool SharesBlock(const DeviceRectangle& rectangle, unsigned count) {
  const DeviceGrid& grid = rectangle.grid;
  const bool is_one_block =
      uint64_t{rectangle.columns} + grid.column_phase <= uint64_t{grid.block_columns};
  return is_one_block || (grid.block_columns % count == 0 && grid.column_phase % count == 0);
}

}  // namespace waybill::kernels::cuda
