// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/launch_shape.h"

#include <gtest/gtest.h>

#include <optional>

#include "kernels/block_grid.h"
#include "kernels/cuda/launch_arguments.h"
#include "kernels/cuda/leaf_sum.h"

namespace waybill::kernels::cuda {
namespace {

TEST(SharedAlignment, IsTheLargestPowerOfTwoOfAll) {
  EXPECT_EQ(SharedAlignment({0}), 16U);
  EXPECT_EQ(SharedAlignment({256, 4096}), 16U);
  EXPECT_EQ(SharedAlignment({256, 24}), 8U);
  EXPECT_EQ(SharedAlignment({256, 24, 6}), 2U);
  EXPECT_EQ(SharedAlignment({static_cast<uint64_t>(-12)}), 4U);
  EXPECT_EQ(SharedAlignment({16, 1}), 1U);
}

struct LeafCase {
  uint64_t rows, row_bytes, leaves_per_warp, blocks;
};

TEST(LaunchOf, HasEnoughWarpsForEveryLeaf) {
  const LeafCase kCases[] = {
      {1, 1, 1, 1},           {1, 4096, 1, 1},
      {1, 8 * 4096, 1, 1},    {1, 8 * 4096 + 1, 1, 2},
      {3, 4096, 1, 1},        {16384, 4096, 1, 2048},
      {65536, 4096, 4, 2048}, {uint64_t{1} << 20, 4096, 8, 16384},
  };
  for (const LeafCase& c : kCases) {
    const LeafWork work = LeafWorkOf(c.rows, c.row_bytes, LeafSum());
    EXPECT_EQ(work.leaves_per_warp, c.leaves_per_warp) << c.rows << " x " << c.row_bytes;
    EXPECT_EQ(LaunchOf(work).blocks, c.blocks) << c.rows << " x " << c.row_bytes;
  }
}

TEST(DeviceRectangleOf, CutsBlocksDownToTheMatrix) {
  const size_t huge = size_t{1} << 40;
  const BlockGrid grid{.block_rows = 1, .block_columns = huge, .column_phase = 7};
  const std::optional<DeviceRectangle> rectangle = DeviceRectangleOf(3, 100, grid);
  ASSERT_TRUE(rectangle.has_value());
  EXPECT_EQ(rectangle->grid.block_columns, 107U);
  EXPECT_EQ(rectangle->grid.column_phase, 7U);
  EXPECT_EQ(rectangle->grid.block_rows, 1U);
}

TEST(DeviceRectangleOf, RefusesWhat32BitsDoNotHold) {
  const size_t huge = size_t{1} << 32;
  EXPECT_FALSE(DeviceRectangleOf(huge, 1, {}).has_value());
  EXPECT_FALSE(DeviceRectangleOf(1, huge, {}).has_value());
  EXPECT_FALSE(DeviceRectangleOf(10, 1, {.block_rows = huge, .row_phase = huge - 5}).has_value());
  EXPECT_NE(TooLarge("quantise", huge, 1).reason().find("4294967296 rows"), std::string::npos);
}

TEST(SharesBlock, GoesByBlocksAndPhases) {
  const auto shares = [](const BlockGrid& grid, size_t columns) {
    return SharesBlock(*DeviceRectangleOf(4, columns, grid), 16);
  };
  EXPECT_TRUE(shares({.block_columns = 128}, 512));
  EXPECT_TRUE(shares({.block_columns = 128, .column_phase = 32}, 512));
  EXPECT_FALSE(shares({.block_columns = 128, .column_phase = 8}, 512));
  EXPECT_FALSE(shares({.block_columns = 100}, 512));
  EXPECT_TRUE(shares({.block_columns = 100, .column_phase = 3}, 90));
}

}  // namespace
}  // namespace waybill::kernels::cuda
