// SPDX-License-Identifier: Apache-2.0

#include "kernels/quantise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/block_grid.h"
#include "kernels/copy.h"
#include "kernels/digest.h"
#include "kernels/elements.h"
#include "kernels/every_target.h"
#include "kernels/maxima.h"
#include "kernels/quantise_inputs.h"
#include "kernels/quantise_rule.h"
#include "kernels/scalar.h"
#include "kernels/scalar_elements.h"
#include "kernels/scalar_quantise.h"
#include "kernels/scale.h"
#include "kernels/test_bytes.h"

namespace waybill::kernels {
namespace {

constexpr Wide kWides[] = {Wide::kF32, Wide::kF16, Wide::kBf16};
constexpr Narrow kNarrows[] = {Narrow::kE4m3, Narrow::kE5m2};

// Factors of ordinary blocks and of odd ones: infinities and NaNs, subnormals, zeros.
const uint32_t kFactorBits[] = {0x3f80'0000, 0x447a'0001, 0x4b12'3457, 0x7f00'0000,
                                0x0040'0000, 0x7f80'0000, 0x7fc0'0000, 0x0000'0000};

// Every BF16 and F16 and many F32 under every kind of factor.
TEST(QuantiseRows, EveryElementIsAsTheScalarOne) {
  for (const Wide type : kWides) {
    const SkewedBytes src = AllInputs(type);
    const size_t count = src.size() / SizeBytes(type);
    for (const Wide via : kWides) {
      for (const Narrow to : kNarrows) {
        for (const Division division : {Division::kMultiplyByReciprocal, Division::kDivide}) {
          for (const uint32_t factor_bits : kFactorBits) {
            // The rarer ones with fewer.
            if ((type == Wide::kF32 || via != type) && factor_bits % 2 == 0) continue;
            const float factor = std::bit_cast<float>(factor_bits);
            const QuantiseRule rule{type, via, to, division};
            std::vector<uint8_t> expected(count);
            scalar::QuantiseRun(expected.data(), src.data(), count, factor, rule);
            OnEveryTarget([&] {
              std::vector<uint8_t> codes(count);
              QuantiseRows(codes.data(), count, src.data(), 0, 1, count, {1, count}, &factor, 0,
                           rule, Stores::kCached, nullptr);
              for (size_t i = 0; i < count; ++i) {
                ASSERT_EQ(codes[i], expected[i]) << i << " times " << factor;
              }
            });
          }
        }
      }
    }
  }
}

// Blocks of many rows take another way than single rows: every BF16 under factors of each binade.
TEST(QuantiseRows, EveryBf16InABlockOfManyRowsIsAsTheScalarOne) {
  constexpr size_t kRows = 32;
  constexpr size_t kColumns = 65536 / kRows;
  const SkewedBytes src = AllInputs(Wide::kBf16);
  for (const Narrow to : kNarrows) {
    for (const Division division : {Division::kMultiplyByReciprocal, Division::kDivide}) {
      for (uint32_t field = 0; field <= 0xff; field += 3) {
        const float factor = std::bit_cast<float>(field << 23 | field * 0x7531);
        const QuantiseRule rule{Wide::kBf16, Wide::kBf16, to, division};
        std::vector<uint8_t> expected(65536);
        scalar::QuantiseRun(expected.data(), src.data(), 65536, factor, rule);
        OnEveryTarget([&] {
          for (const Stores stores : {Stores::kCached, Stores::kStreaming}) {
            SkewedBytes codes(65536);
            QuantiseRows(codes.data(), kColumns, src.data(), kColumns * 2, kRows, kColumns,
                         {kRows, kColumns}, &factor, 0, rule, stores, nullptr);
            StreamFence();
            for (size_t i = 0; i < 65536; ++i) {
              ASSERT_EQ(codes.data()[i], expected[i]) << std::hex << i << " by " << factor;
            }
          }
        });
      }
    }
  }
}

// Powers of two go another way again, as far as floats have them. Neighbours are of one binade
// here: what is rare does not hide the rest.
TEST(QuantiseRows, EveryBf16InBlocksOfMxIsAsTheScalarOne) {
  constexpr size_t kBlock = 32;
  constexpr size_t kCount = 65536 + 11;  // The last block has less than any vector.
  const SkewedBytes all = AllInputs(Wide::kBf16);
  SkewedBytes src(kCount * 2, 2);
  std::memcpy(src.data(), all.data(), 65536 * 2);
  for (const Narrow to : kNarrows) {
    for (const Division division : {Division::kMultiplyByReciprocal, Division::kDivide}) {
      const QuantiseRule rule{Wide::kBf16, Wide::kBf16, to, division};
      for (uint32_t field = 0; field <= 0x100; ++field) {
        const float factor = std::bit_cast<float>(field == 0x100 ? 0x0040'0000 : field << 23);
        std::vector<uint8_t> expected(kCount);
        scalar::QuantiseRun(expected.data(), src.data(), kCount, factor, rule);
        const std::vector<float> factors((kCount + kBlock - 1) / kBlock, factor);
        OnEveryTarget([&] {
          std::vector<uint8_t> codes(kCount);
          QuantiseRows(codes.data(), kCount, src.data(), 0, 1, kCount, {1, kBlock}, factors.data(),
                       0, rule, Stores::kCached, nullptr);
          for (size_t i = 0; i < kCount; ++i) {
            ASSERT_EQ(codes[i], expected[i]) << std::hex << i << " by " << factor;
          }
        });
      }
    }
  }
}

// The boundaries between codes within a binade depend on the factor's mantissa.
TEST(QuantiseRows, TheStepsOfABinadeAreAsTheScalarOnes) {
  constexpr size_t kRows = 16;
  SkewedBytes src(kRows * 256);
  for (size_t i = 0; i < kRows * 128; ++i) {
    reinterpret_cast<uint16_t*>(src.data())[i] = 127 << 7 | i % 128;
  }
  for (const Narrow to : kNarrows) {
    for (const Division division : {Division::kMultiplyByReciprocal, Division::kDivide}) {
      const QuantiseRule rule{Wide::kBf16, Wide::kBf16, to, division};
      for (uint32_t i = 0; i <= 2048; ++i) {
        // Those near simple fractions, where steps fall on mantissas, and others.
        const uint32_t mantissa = i * 0x1000 + (i % 5) - 2;
        const float factor = std::bit_cast<float>((126U << 23) + mantissa);
        std::vector<uint8_t> expected(kRows * 128);
        scalar::QuantiseRun(expected.data(), src.data(), expected.size(), factor, rule);
        OnEveryTarget([&] {
          std::vector<uint8_t> codes(expected.size());
          QuantiseRows(codes.data(), 128, src.data(), 256, kRows, 128, {}, &factor, 0, rule,
                       Stores::kCached, nullptr);
          ASSERT_EQ(codes, expected) << "by " << factor;
        });
      }
    }
  }
}

// A rectangle somewhere on a grid, with its factors.
struct Rectangle {
  size_t rows;
  size_t columns;
  BlockGrid grid;
  size_t pitch;
  std::vector<float> factors;
};

Rectangle AnyRectangle(std::mt19937& random) {
  constexpr BlockGrid kGrids[] = {{128, 128},         {64, 64}, {1, 32},  {1, 1 << 20},
                                  {1 << 20, 1 << 20}, {3, 5},   {128, 1}, {1, 128}};
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  Rectangle r{1 + below(150), 1 + below(400), kGrids[below(8)], 0, {}};
  if (below(20) == 0) r.columns += 9000;
  r.grid.row_phase = below(r.grid.block_rows);
  r.grid.column_phase = below(r.grid.block_columns);
  r.pitch = r.columns + below(9);
  for (size_t i = r.grid.RowsOfBlocks(r.rows) * r.grid.ColumnsOfBlocks(r.columns); i-- > 0;) {
    r.factors.push_back(std::ldexp(1.0F + static_cast<float>(below(1000)) / 999, below(30)));
  }
  return r;
}

TEST(QuantiseRows, AnyRectangleGivesTheBytesAndTheDigestOfTheScalarOne) {
  std::mt19937 random(3);
  for (size_t i = 0; i < 120; ++i) {
    const Rectangle r = AnyRectangle(random);
    const Wide type = kWides[random() % 3];
    const QuantiseRule rule{type, kWides[random() % 3], kNarrows[random() % 2],
                            Division(random() % 3)};
    const size_t blocks = r.grid.ColumnsOfBlocks(r.columns);
    const size_t skew = random() % 64;
    const SkewedBytes src = MatrixOf(type, r.rows * r.pitch, i, random() % 9);
    SkewedBytes expected(r.rows * r.pitch, skew);
    scalar::QuantiseRows(expected.data(), r.pitch, src.data(), r.pitch * SizeBytes(type), r.rows,
                         r.columns, r.grid, r.factors.data(), blocks, rule);
    std::vector<uint8_t> stream;
    for (size_t row = 0; row < r.rows; ++row) {
      const uint8_t* begin = expected.data() + row * r.pitch;
      stream.insert(stream.end(), begin, begin + r.columns);
    }
    const uint64_t sum = scalar::LeafSum(stream.data(), stream.size(), 0);
    OnEveryTarget([&] {
      for (const Stores stores : {Stores::kCached, Stores::kStreaming}) {
        for (const bool with_digest : {false, true}) {
          SkewedBytes dst(r.rows * r.pitch, skew);
          DigestStream digest;
          QuantiseRows(dst.data(), r.pitch, src.data(), r.pitch * SizeBytes(type), r.rows,
                       r.columns, r.grid, r.factors.data(), blocks, rule, stores,
                       with_digest ? &digest : nullptr);
          StreamFence();
          ASSERT_TRUE(std::equal(dst.data(), dst.data() + dst.size(), expected.data())) << i;
          ASSERT_TRUE(dst.GuardsHold()) << i;
          ASSERT_EQ(digest.sum(), with_digest ? sum : 0) << i;
        }
      }
    });
  }
}

// The definition of QuantiseBlocks, in scalar steps.
void QuantiseInSteps(std::vector<uint8_t>& codes, std::vector<float>& scales,
                     const SkewedBytes& src, size_t rows, size_t columns, const BlockGrid& grid,
                     const ScaleRule& rule, Wide type, Wide via) {
  const size_t blocks = grid.ColumnsOfBlocks(columns);
  scales.assign(grid.RowsOfBlocks(rows) * blocks, 0);
  codes.assign(rows * columns, 0);
  scalar::CombineMaxima(scales.data(), blocks, src.data(), type, via, columns * SizeBytes(type),
                        rows, columns, grid);
  std::vector<float> factors;
  for (float& scale : scales) {
    const Scale found = ScaleOf(scale, rule);
    scale = found.scale;
    factors.push_back(found.factor);
  }
  scalar::QuantiseRows(codes.data(), columns, src.data(), columns * SizeBytes(type), rows, columns,
                       grid, factors.data(), blocks, {type, via, rule.to, rule.division});
}

TEST(QuantiseBlocks, GivesTheBytesOfItsStepsForAnyShapeAndRule) {
  constexpr BlockGrid kGrids[] = {{128, 128},   {64, 64},           {1, 32},
                                  {1, 1 << 20}, {1 << 20, 1 << 20}, {128, 1 << 20}};
  std::mt19937 random(6);
  for (size_t i = 0; i < 60; ++i) {
    // The last block is whole, half full or nearly empty.
    const size_t rows = random() % 2 == 0 ? 64 * (1 + random() % 4) : 1 + random() % 260;
    const size_t columns = random() % 2 == 0 ? 64 * (1 + random() % 40) : 1 + random() % 700;
    const BlockGrid grid = kGrids[random() % 6];
    const ScaleRule rule{kNarrows[random() % 2], random() % 2 == 0 ? 0 : 1e-4F,
                         ScaleRounding(random() % 5), Division(random() % 3)};
    const Wide type = kWides[random() % 3];
    const Wide via = random() % 2 == 0 ? type : Wide::kBf16;
    SkewedBytes src = MatrixOf(type, rows * columns, i, random() % 5);
    if (random() % 3 == 0) {  // A block of zeros, and one with a NaN or an infinity.
      std::memset(src.data(), 0, std::min<size_t>(src.size(), columns * 130 * SizeBytes(type)));
      const float odd = std::bit_cast<float>(random() % 2 == 0 ? 0xffc0'0000 : 0x7f80'0000);
      scalar::StoreWide(src.data() + src.size() - SizeBytes(type), odd, type);
    }
    std::vector<uint8_t> codes;
    std::vector<float> scales;
    QuantiseInSteps(codes, scales, src, rows, columns, grid, rule, type, via);
    const uint64_t sum = scalar::LeafSum(codes.data(), codes.size(), 0);
    const size_t blocks = grid.ColumnsOfBlocks(columns);
    OnEveryTarget([&] {
      for (const Stores stores : {Stores::kCached, Stores::kStreaming}) {
        for (const bool with_digest : {false, true}) {
          SkewedBytes dst(codes.size(), i % 3);
          std::vector<float> found(scales.size());
          DigestStream digest;
          QuantiseBlocks(dst.data(), columns, found.data(), blocks, src.data(),
                         columns * SizeBytes(type), rows, columns, grid, rule, type, via, stores,
                         with_digest ? &digest : nullptr);
          StreamFence();
          ASSERT_EQ(std::memcmp(found.data(), scales.data(), scales.size() * 4), 0) << i;
          ASSERT_TRUE(std::equal(codes.begin(), codes.end(), dst.data())) << i;
          ASSERT_TRUE(dst.GuardsHold()) << i;
          ASSERT_EQ(digest.sum(), with_digest ? sum : 0) << i;
        }
      }
    });
  }
}

TEST(Quantise, EmptyRectanglesAreLeftAlone) {
  float value = 3;
  uint8_t byte = 5;
  for (const size_t rows : {0, 1}) {
    const size_t columns = 1 - rows;
    CombineMaxima(&value, 1, &value, Wide::kF32, Wide::kF32, 4, rows, columns, {});
    QuantiseRows(&byte, 1, &value, 4, rows, columns, {}, &value, 1, {}, Stores::kStreaming,
                 nullptr);
    QuantiseBlocks(&byte, 1, &value, 1, &value, 4, rows, columns, {}, {}, Wide::kF32, Wide::kF32,
                   Stores::kStreaming, nullptr);
  }
  EXPECT_EQ(value, 3);
  EXPECT_EQ(byte, 5);
}

}  // namespace
}  // namespace waybill::kernels
