// SPDX-License-Identifier: Apache-2.0

#include "kernels/transpose.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/every_target.h"
#include "kernels/scalar.h"
#include "kernels/test_bytes.h"

namespace waybill::kernels {
namespace {

struct Shape {
  size_t rows, columns;  // Extents of dst.
};

const Shape kShapes[] = {{0, 0},   {0, 9},     {5, 0},    {1, 1},     {1, 100},  {100, 1},
                         {2, 3},   {7, 8},     {8, 8},    {9, 7},     {15, 17},  {16, 16},
                         {31, 33}, {32, 32},   {33, 31},  {63, 65},   {64, 64},  {65, 63},
                         {130, 5}, {129, 300}, {257, 70}, {20, 9000}, {300, 300}};

// The digest's truth: the rows of dst, packed.
uint64_t SumOfRows(const uint8_t* dst, size_t pitch, size_t rows, size_t row_bytes) {
  std::vector<uint8_t> packed;
  for (size_t r = 0; r < rows; ++r) {
    packed.insert(packed.end(), dst + r * pitch, dst + r * pitch + row_bytes);
  }
  return scalar::LeafSum(packed.data(), packed.size(), 0);
}

TEST(Transpose, EqualsTheScalarTruthForEveryElementSizeAndShape) {
  for (const size_t element : {1, 2, 4, 8}) {
    for (const Shape& shape : kShapes) {
      for (const size_t gap : {0, 3}) {  // Elements between rows, on both sides.
        const size_t src_pitch = (shape.rows + gap) * element;
        const size_t dst_pitch = (shape.columns + gap) * element;
        const SkewedBytes src = SkewedBytes::Mixed(shape.columns * src_pitch, gap);
        SkewedBytes expected(shape.rows * dst_pitch);
        scalar::Transpose(expected.data(), dst_pitch, src.data(), src_pitch, shape.rows,
                          shape.columns, element);
        const uint64_t sum =
            SumOfRows(expected.data(), dst_pitch, shape.rows, shape.columns * element);
        OnEveryTarget([&] {
          for (const bool with_digest : {false, true}) {
            SkewedBytes dst(expected.size(), gap);
            DigestStream digest;
            Transpose(dst.data(), dst_pitch, src.data(), src_pitch, shape.rows, shape.columns,
                      element, with_digest ? &digest : nullptr);
            ASSERT_TRUE(std::equal(dst.data(), dst.data() + dst.size(), expected.data()))
                << shape.rows << " x " << shape.columns << " elements of " << element;
            ASSERT_TRUE(dst.GuardsHold());
            ASSERT_EQ(digest.sum(), with_digest ? sum : 0);
          }
        });
      }
    }
  }
}

TEST(Transpose, LargeBlocksAreWrittenPastTheCache) {
  // Aligned, and large enough; 1000 rows leave a part of a tile.
  const size_t rows = 1000, columns = 640;
  for (const size_t element : {2, 4}) {
    const SkewedBytes src = SkewedBytes::Mixed(rows * columns * element);
    SkewedBytes expected(src.size());
    scalar::Transpose(expected.data(), columns * element, src.data(), rows * element, rows, columns,
                      element);
    const uint64_t sum = scalar::LeafSum(expected.data(), expected.size(), 0);
    OnEveryTarget([&] {
      SkewedBytes dst(src.size());
      DigestStream digest;
      Transpose(dst.data(), columns * element, src.data(), rows * element, rows, columns, element,
                &digest);
      ASSERT_EQ(digest.sum(), sum);
      ASSERT_TRUE(std::equal(dst.data(), dst.data() + dst.size(), expected.data()));
      ASSERT_TRUE(dst.GuardsHold());
    });
  }
}

TEST(Transpose, ItsRowsContinueAStreamWhereverThatIs) {
  // Stripe by stripe where the stream and the rows allow it: not after 100 bytes, nor with 63
  // columns.
  for (const size_t columns : {63, 64, 96, 640}) {
    const size_t rows = 70;
    const SkewedBytes src = SkewedBytes::Mixed(rows * columns * 2);
    std::vector<uint8_t> stream = std::vector<uint8_t>(2 * kLeafBytes, 7);
    for (const size_t before : {size_t{0}, size_t{64}, size_t{100}, kLeafBytes - 64, kLeafBytes}) {
      SkewedBytes expected(src.size());
      scalar::Transpose(expected.data(), columns * 2, src.data(), rows * 2, rows, columns, 2);
      std::vector<uint8_t> whole(stream.begin(), stream.begin() + static_cast<ptrdiff_t>(before));
      whole.insert(whole.end(), expected.data(), expected.data() + expected.size());
      whole.insert(whole.end(), 77, 5);
      OnEveryTarget([&] {
        SkewedBytes dst(src.size());
        DigestStream digest(3);
        digest.Absorb(stream.data(), before);
        Transpose(dst.data(), columns * 2, src.data(), rows * 2, rows, columns, 2, &digest);
        digest.Absorb(std::vector<uint8_t>(77, 5).data(), 77);
        ASSERT_EQ(digest.sum(), scalar::LeafSum(whole.data(), whole.size(), 3))
            << columns << " columns after " << before << " bytes";
      });
    }
  }
}

TEST(Transpose, TwiceIsTheSameAgain) {
  const SkewedBytes src = SkewedBytes::Mixed(123 * 321 * 2);
  SkewedBytes once(src.size()), twice(src.size());
  OnEveryTarget([&] {
    Transpose(once.data(), 123 * 2, src.data(), 321 * 2, 321, 123, 2, nullptr);
    Transpose(twice.data(), 321 * 2, once.data(), 123 * 2, 123, 321, 2, nullptr);
    ASSERT_TRUE(std::equal(src.data(), src.data() + src.size(), twice.data()));
  });
}

TEST(Transpose, ReadsRowsThatRunBackwards) {
  const SkewedBytes src = SkewedBytes::Mixed(40 * 50 * 4);
  SkewedBytes expected(src.size());
  const uint8_t* last_row = src.data() + 39 * 50 * 4;
  scalar::Transpose(expected.data(), 40 * 4, last_row, -50 * 4, 50, 40, 4);
  OnEveryTarget([&] {
    SkewedBytes dst(src.size());
    Transpose(dst.data(), 40 * 4, last_row, -50 * 4, 50, 40, 4, nullptr);
    ASSERT_TRUE(std::equal(dst.data(), dst.data() + dst.size(), expected.data()));
  });
}

TEST(TransposeDeathTest, AnotherElementSizeEndsTheProgram) {
  EXPECT_DEATH(Transpose(nullptr, 0, nullptr, 0, 0, 0, 3, nullptr), "element of 3 bytes");
}

TEST(CastTranspose, EqualsTheScalarTruthForEveryShape) {
  for (const Shape& shape : kShapes) {
    for (const size_t gap : {0, 3}) {
      const size_t src_pitch = (shape.rows + gap) * 4;
      const size_t dst_pitch = (shape.columns + gap) * 2;
      const SkewedBytes src = SkewedBytes::Mixed(shape.columns * src_pitch, gap * 4);
      SkewedBytes expected(shape.rows * dst_pitch);
      scalar::CastTranspose(Cast::kF32ToBf16, expected.data(), dst_pitch, src.data(), src_pitch,
                            shape.rows, shape.columns);
      const uint64_t sum = SumOfRows(expected.data(), dst_pitch, shape.rows, shape.columns * 2);
      OnEveryTarget([&] {
        for (const bool with_digest : {false, true}) {
          SkewedBytes dst(expected.size(), gap * 2);
          DigestStream digest;
          CastTransposeF32ToBf16(dst.data(), dst_pitch, src.data(), src_pitch, shape.rows,
                                 shape.columns, with_digest ? &digest : nullptr);
          ASSERT_TRUE(std::equal(dst.data(), dst.data() + dst.size(), expected.data()))
              << shape.rows << " x " << shape.columns;
          ASSERT_TRUE(dst.GuardsHold());
          ASSERT_EQ(digest.sum(), with_digest ? sum : 0);
        }
      });
    }
  }
}

}  // namespace
}  // namespace waybill::kernels
