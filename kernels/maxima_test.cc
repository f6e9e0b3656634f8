// SPDX-License-Identifier: Apache-2.0

#include "kernels/maxima.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/block_grid.h"
#include "kernels/elements.h"
#include "kernels/every_target.h"
#include "kernels/quantise_inputs.h"
#include "kernels/scalar_elements.h"
#include "kernels/scalar_quantise.h"
#include "kernels/test_bytes.h"

namespace waybill::kernels {
namespace {

constexpr Wide kWides[] = {Wide::kF32, Wide::kF16, Wide::kBf16};

// The floats themselves: NaNs too are told apart by their bits.
std::vector<uint32_t> Bits(const std::vector<float>& values) {
  std::vector<uint32_t> bits(values.size());
  if (!values.empty()) std::memcpy(bits.data(), values.data(), values.size() * 4);
  return bits;
}

TEST(CombineMaximum, ANaNIsOneNaNWhateverTheOrder) {
  const float nan = std::bit_cast<float>(0xffc1'2345);
  for (const float other : {0.0F, 1.0F, std::numeric_limits<float>::infinity(), nan}) {
    EXPECT_EQ(std::bit_cast<uint32_t>(CombineMaximum(nan, other)), 0x7fc0'0000);
    EXPECT_EQ(std::bit_cast<uint32_t>(CombineMaximum(other, nan)), 0x7fc0'0000);
  }
  EXPECT_EQ(CombineMaximum(1, 2), 2);
}

struct Rectangle {
  size_t rows;
  size_t columns;
  BlockGrid grid;
};

Rectangle AnyRectangle(std::mt19937& random) {
  constexpr size_t kExtents[] = {1, 3, 8, 16, 32, 64, 100, 128, 1 << 20};
  const auto below = [&](size_t n) { return random() % n; };
  Rectangle r{below(70), below(300), {kExtents[below(9)], kExtents[below(9)], 0, 0}};
  r.grid.row_phase = below(r.grid.block_rows);
  r.grid.column_phase = below(r.grid.block_columns);
  return r;
}

TEST(CombineMaxima, AnyRectangleIsAsTheScalarOne) {
  std::mt19937 random(5);
  for (size_t i = 0; i < 150; ++i) {
    const Rectangle r = AnyRectangle(random);
    const Wide type = kWides[random() % 3];
    const Wide via = kWides[random() % 3];
    const size_t pitch = r.columns + random() % 9;
    SkewedBytes src = MatrixOf(type, r.rows * pitch, i, random() % 7);
    // Sometimes an infinity, a NaN, or the largest finite value, which may round to infinity.
    for (size_t odd = random() % 3; odd-- > 0 && r.rows * pitch != 0;) {
      const size_t size = SizeBytes(type);
      const uint32_t bits[] = {0xffff'ffff, 0x7f7f'ffff, 0xff80'0000, 0x8000'0000};
      scalar::StoreWide(src.data() + random() % (r.rows * pitch) * size,
                        std::bit_cast<float>(bits[random() % 4]), type);
    }
    const size_t blocks = r.grid.ColumnsOfBlocks(r.columns);
    std::vector<float> expected(r.grid.RowsOfBlocks(r.rows) * blocks);
    for (size_t b = 0; b < expected.size(); b += 3) expected[b] = 0.001F;
    const std::vector<float> before = expected;
    scalar::CombineMaxima(expected.data(), blocks, src.data(), type, via, pitch * SizeBytes(type),
                          r.rows, r.columns, r.grid);
    const uint64_t non_finite =
        scalar::CountNonFinite(src.data(), type, pitch * SizeBytes(type), r.rows, r.columns);
    OnEveryTarget([&] {
      std::vector<float> maxima = before;
      CombineMaxima(maxima.data(), blocks, src.data(), type, via, pitch * SizeBytes(type), r.rows,
                    r.columns, r.grid);
      ASSERT_EQ(Bits(maxima), Bits(expected)) << "rectangle " << i;
      ASSERT_EQ(CountNonFinite(src.data(), type, pitch * SizeBytes(type), r.rows, r.columns),
                non_finite)
          << "rectangle " << i;
    });
  }
}

// Short blocks, such as those of MX, are found many at a time: every pattern as the largest of its
// block, in each place.
class ShortBlocksTest : public testing::TestWithParam<size_t> {};

TEST_P(ShortBlocksTest, AreAsTheScalarOnes) {
  const size_t block_columns = GetParam();
  for (const Wide type : kWides) {
    const size_t size = SizeBytes(type);
    const SkewedBytes all = AllInputs(type);
    const size_t blocks = all.size() / size;
    SkewedBytes src(blocks * block_columns * size, size);
    std::memset(src.data(), 0, src.size());
    for (size_t b = 0; b < blocks; ++b) {
      std::memcpy(src.data() + (b * block_columns + b * 5 % block_columns) * size,
                  all.data() + b * size, size);
    }
    for (const Wide via : kWides) {
      std::vector<float> expected(blocks, 0.001F);
      scalar::CombineMaxima(expected.data(), 0, src.data(), type, via, 0, 1, blocks * block_columns,
                            {1, block_columns});
      OnEveryTarget([&] {
        std::vector<float> maxima(blocks, 0.001F);
        CombineMaxima(maxima.data(), 0, src.data(), type, via, 0, 1, blocks * block_columns,
                      {1, block_columns});
        ASSERT_EQ(Bits(maxima), Bits(expected));
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Of, ShortBlocksTest, testing::Values(16, 32));

TEST(CombineMaxima, TheMaximumOfPartsIsThatOfTheWhole) {
  const SkewedBytes src = MatrixOf(Wide::kBf16, 200 * 300, 1);
  const BlockGrid grid;
  std::vector<float> whole(grid.RowsOfBlocks(200) * grid.ColumnsOfBlocks(300));
  CombineMaxima(whole.data(), 3, src.data(), Wide::kBf16, Wide::kBf16, 600, 200, 300, grid);
  std::vector<float> parts(whole.size());
  for (const size_t row : {0, 70, 150}) {
    for (const size_t column : {0, 10, 200}) {
      const size_t rows = (row == 0 ? 70 : row == 70 ? 150 : 200) - row;
      const size_t columns = (column == 0 ? 10 : column == 10 ? 200 : 300) - column;
      const BlockGrid part{128, 128, row % 128, column % 128};
      CombineMaxima(parts.data() + row / 128 * 3 + column / 128, 3,
                    src.data() + row * 600 + column * 2, Wide::kBf16, Wide::kBf16, 600, rows,
                    columns, part);
    }
  }
  EXPECT_EQ(parts, whole);
}

TEST(CountNonFinite, CountsEveryPatternOnce) {
  for (const Wide type : kWides) {
    const SkewedBytes src = AllInputs(type);
    const size_t count = src.size() / SizeBytes(type);
    const uint64_t expected = scalar::CountNonFinite(src.data(), type, 0, 1, count);
    if (type == Wide::kBf16) {
      EXPECT_EQ(expected, 2U * 128);
    }
    if (type == Wide::kF16) {
      EXPECT_EQ(expected, 2U * 1024);
    }
    OnEveryTarget([&] { EXPECT_EQ(CountNonFinite(src.data(), type, 0, 1, count), expected); });
  }
}

}  // namespace
}  // namespace waybill::kernels
