// SPDX-License-Identifier: Apache-2.0

// The kernels of quantisation, held to the bits of scalar_quantise.h and scale.h.

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "kernels/block_grid.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/leaf_sum.h"
#include "kernels/cuda/maxima.h"
#include "kernels/cuda/quantise.h"
#include "kernels/cuda/test_memory.h"
#include "kernels/elements.h"
#include "kernels/quantise_inputs.h"
#include "kernels/quantise_rule.h"
#include "kernels/scalar.h"
#include "kernels/scalar_elements.h"
#include "kernels/scalar_quantise.h"
#include "kernels/scale.h"
#include "kernels/test_bytes.h"

namespace waybill::kernels::cuda {
namespace {

#define ASSERT_QUEUED(call)                        \
  do {                                             \
    const Outcome outcome = (call);                \
    ASSERT_TRUE(outcome.ok()) << outcome.reason(); \
  } while (false)

constexpr Wide kWides[] = {Wide::kF32, Wide::kF16, Wide::kBf16};
constexpr Narrow kNarrows[] = {Narrow::kE4m3, Narrow::kE5m2};

struct Shape {
  size_t rows, columns;
  size_t pitch;  // In elements.
  BlockGrid grid;
  size_t skew;  // In elements.
};

const Shape kShapes[] = {
    {1, 1, 1, {}, 0},
    {1, 1000, 1000, {}, 0},
    {128, 128, 128, {}, 0},
    {130, 272, 288, {}, 0},
    {130, 272, 288, {}, 1},
    {100, 200, 208, {128, 128, 100, 48}, 0},
    {70, 203, 210, {128, 128, 60, 99}, 3},
    {65, 130, 131, {16, 24, 3, 7}, 0},
    {5, 320, 320, {1, 32, 0, 0}, 0},
    {3, 100, 100, {1, 32, 0, 5}, 2},
    {40, 96, 96, {1, size_t{1} << 40, 0, 0}, 0},                // A scale a row.
    {40, 96, 96, {size_t{1} << 40, size_t{1} << 40, 0, 0}, 0},  // One for all.
};

std::vector<uint8_t> Bytes(const std::vector<float>& floats) {
  std::vector<uint8_t> bytes(floats.size() * 4);
  std::memcpy(bytes.data(), floats.data(), bytes.size());
  return bytes;
}

class MatrixKernels : public testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = TheMemory().Reason();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }

  const Stream stream_ = TheMemory().Reason().empty() ? TheMemory().stream() : nullptr;
};

// Some of its elements are infinities and NaNs, but for the first half of its rows.
SkewedBytes InputOf(const Shape& shape, Wide type) {
  const size_t count = (shape.rows - 1) * shape.pitch + shape.columns;
  SkewedBytes bytes = MatrixOf(type, count, 7, shape.skew);
  for (size_t i = count / 2 + 1; i < count; i += 997) {
    const float special = i % 2 == 0 ? std::numeric_limits<float>::infinity()
                                     : -std::numeric_limits<float>::quiet_NaN();
    scalar::StoreWide(bytes.data() + i * SizeBytes(type), special, type);
  }
  return bytes;
}

TEST_F(MatrixKernels, MaximaOfBlocks) {
  for (const Shape& shape : kShapes) {
    for (const Wide type : kWides) {
      for (const Wide via : {type, Wide::kBf16}) {
        SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.columns << " of "
                                        << SizeBytes(type) << " bytes, skew " << shape.skew);
        const SkewedBytes src = InputOf(shape, type);
        const ptrdiff_t pitch = static_cast<ptrdiff_t>(shape.pitch * SizeBytes(type));
        const size_t blocks = shape.grid.ColumnsOfBlocks(shape.columns);
        const ptrdiff_t maxima_pitch = static_cast<ptrdiff_t>(blocks + 2);
        std::vector<float> maxima(shape.grid.RowsOfBlocks(shape.rows) * (blocks + 2));
        const DeviceBytes from(src);
        const DeviceBytes to(maxima.data(), maxima.size() * 4);
        scalar::CombineMaxima(maxima.data(), maxima_pitch, src.data(), type, via, pitch, shape.rows,
                              shape.columns, shape.grid);
        ASSERT_QUEUED(CombineMaxima(to.floats(), maxima_pitch, from.data(), type, via, pitch,
                                    shape.rows, shape.columns, shape.grid, stream_));
        ASSERT_EQ(to.Read(), Bytes(maxima));
        ASSERT_TRUE(to.GuardsHold());
      }
    }
  }
}

TEST_F(MatrixKernels, ScalesOfEveryRule) {
  std::vector<float> maxima;
  for (uint32_t high = 0; high < 0x7f81; ++high) maxima.push_back(scalar::Bf16ToF32(high));
  const size_t rows = 5, columns = maxima.size() / 5, pitch = columns + 3;
  maxima.resize(rows * pitch);
  for (const Narrow to : kNarrows) {
    for (int rounding = 0; rounding <= static_cast<int>(ScaleRounding::kCeilExponent); ++rounding) {
      const ScaleRule rule{to, 1e-10F, static_cast<ScaleRounding>(rounding),
                           static_cast<Division>(rounding % 3)};
      std::vector<float> scales(maxima.size(), 3.0F);
      std::vector<float> factors = maxima;
      const DeviceBytes device_scales(scales.data(), scales.size() * 4);
      const DeviceBytes device_factors(factors.data(), factors.size() * 4);
      for (size_t i = 0; i < maxima.size(); ++i) {
        if (i % pitch >= columns) continue;
        const Scale scale = ScaleOf(maxima[i], rule);
        scales[i] = scale.scale;
        factors[i] = scale.factor;
      }
      ASSERT_QUEUED(ScalesOfMaxima(device_scales.floats(), static_cast<ptrdiff_t>(pitch),
                                   device_factors.floats(), static_cast<ptrdiff_t>(pitch), rows,
                                   columns, rule, stream_));
      ASSERT_EQ(device_scales.Read(), Bytes(scales)) << rounding;
      ASSERT_EQ(device_factors.Read(), Bytes(factors)) << rounding;
    }
  }
}

TEST_F(MatrixKernels, EveryPatternIsQuantised) {
  for (const Wide type : {Wide::kBf16, Wide::kF16}) {
    const SkewedBytes src = AllInputs(type);
    const DeviceBytes from(src);
    for (const Narrow to : kNarrows) {
      for (const Division division : {Division::kMultiplyByReciprocal,
                                      Division::kMultiplyByLargestOverMaximum, Division::kDivide}) {
        for (const float factor : {1.0F, 0.37F, 1e-30F, 0x1p-127F, 3e30F}) {
          const QuantiseRule rule{type, type, to, division};
          const DeviceBytes factors(&factor, 4);
          const BlockGrid grid{.block_rows = 1, .block_columns = 65536};
          std::vector<uint8_t> expected(65536);
          scalar::QuantiseRows(expected.data(), 0, src.data(), 0, 1, 65536, grid, &factor, 0, rule);
          const DeviceBytes dst(65536);
          ASSERT_QUEUED(QuantiseRows(dst.data(), 0, from.data(), 0, 1, 65536, grid,
                                     factors.floats(), 0, rule, {}, stream_));
          ASSERT_EQ(dst.Read(), expected) << factor;
        }
      }
    }
  }
}

TEST_F(MatrixKernels, RowsAreQuantisedAndDigested) {
  for (const Shape& shape : kShapes) {
    for (const Wide type : kWides) {
      const Narrow to = type == Wide::kF16 ? Narrow::kE5m2 : Narrow::kE4m3;
      const Division division =
          type == Wide::kF32 ? Division::kDivide : Division::kMultiplyByReciprocal;
      const QuantiseRule rule{type, Wide::kBf16, to, division};
      SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.columns << " of "
                                      << SizeBytes(type) << " bytes, skew " << shape.skew);
      const SkewedBytes src = InputOf(shape, type);
      const ptrdiff_t pitch = static_cast<ptrdiff_t>(shape.pitch * SizeBytes(type));
      const size_t blocks = shape.grid.ColumnsOfBlocks(shape.columns);
      std::vector<float> factors(shape.grid.RowsOfBlocks(shape.rows) * blocks);
      for (size_t i = 0; i < factors.size(); ++i) factors[i] = 0.5F + static_cast<float>(i) * 37;
      std::vector<uint8_t> expected(shape.rows * shape.columns);
      scalar::QuantiseRows(expected.data(), static_cast<ptrdiff_t>(shape.columns), src.data(),
                           pitch, shape.rows, shape.columns, shape.grid, factors.data(),
                           static_cast<ptrdiff_t>(blocks), rule);
      const DeviceBytes from(src);
      const DeviceBytes device_factors(factors.data(), factors.size() * 4);
      const DeviceBytes dst(expected.size(), shape.skew);
      uint64_t sum = 0;
      const DeviceBytes device_sum(&sum, 8);
      ASSERT_QUEUED(QuantiseRows(dst.data(), static_cast<ptrdiff_t>(shape.columns), from.data(),
                                 pitch, shape.rows, shape.columns, shape.grid,
                                 device_factors.floats(), static_cast<ptrdiff_t>(blocks), rule,
                                 {reinterpret_cast<uint64_t*>(device_sum.data()), 3}, stream_));
      ASSERT_EQ(dst.Read(), expected);
      ASSERT_TRUE(dst.GuardsHold());
      std::memcpy(&sum, device_sum.Read().data(), 8);
      ASSERT_EQ(sum, scalar::LeafSum(expected.data(), expected.size(), 3));
    }
  }
}

// The two passes of the scalar truth.
void QuantiseByTruth(const SkewedBytes& src, const Shape& shape, Wide type, Wide via,
                     const ScaleRule& rule, std::vector<float>* scales,
                     std::vector<uint8_t>* codes) {
  const ptrdiff_t pitch = static_cast<ptrdiff_t>(shape.pitch * SizeBytes(type));
  const ptrdiff_t blocks = static_cast<ptrdiff_t>(shape.grid.ColumnsOfBlocks(shape.columns));
  std::vector<float> factors(shape.grid.RowsOfBlocks(shape.rows) * static_cast<size_t>(blocks));
  scalar::CombineMaxima(factors.data(), blocks, src.data(), type, via, pitch, shape.rows,
                        shape.columns, shape.grid);
  scales->clear();
  for (float& factor : factors) {
    const Scale scale = ScaleOf(factor, rule);
    scales->push_back(scale.scale);
    factor = scale.factor;
  }
  codes->resize(shape.rows * shape.columns);
  scalar::QuantiseRows(codes->data(), static_cast<ptrdiff_t>(shape.columns), src.data(), pitch,
                       shape.rows, shape.columns, shape.grid, factors.data(), blocks,
                       {type, via, rule.to, rule.division});
}

TEST_F(MatrixKernels, BlocksAreQuantisedInOnePassOrThree) {
  for (const Shape& given : kShapes) {
    Shape shape = given;
    shape.grid.row_phase = shape.grid.column_phase = 0;
    for (const Wide type : kWides) {
      for (const Narrow to : kNarrows) {
        SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.columns << " of "
                                        << SizeBytes(type) << " bytes, skew " << shape.skew);
        const ScaleRule rule{to, 1e-4F, ScaleRounding::kNone,
                             static_cast<Division>(shape.rows % 3)};
        const SkewedBytes src = InputOf(shape, type);
        std::vector<float> scales;
        std::vector<uint8_t> codes;
        QuantiseByTruth(src, shape, type, Wide::kBf16, rule, &scales, &codes);
        const size_t blocks = shape.grid.ColumnsOfBlocks(shape.columns);
        const DeviceBytes from(src);
        const DeviceBytes dst(codes.size(), shape.skew);
        const DeviceBytes device_scales(scales.size() * 4);
        const DeviceBytes factors(scales.size() * 4);
        ASSERT_QUEUED(QuantiseBlocks(
            dst.data(), static_cast<ptrdiff_t>(shape.columns), device_scales.floats(),
            static_cast<ptrdiff_t>(blocks), factors.floats(), from.data(),
            static_cast<ptrdiff_t>(shape.pitch * SizeBytes(type)), shape.rows, shape.columns,
            shape.grid, rule, type, Wide::kBf16, stream_));
        ASSERT_EQ(device_scales.Read(), Bytes(scales));
        ASSERT_EQ(dst.Read(), codes);
        ASSERT_TRUE(dst.GuardsHold() && device_scales.GuardsHold() && factors.GuardsHold());
      }
    }
  }
}

TEST_F(MatrixKernels, UnalignedBlocksNeedRoomForFactors) {
  const DeviceBytes memory(4096);
  EXPECT_FALSE(QuantiseBlocks(memory.data(), 10, memory.floats(), 1, nullptr, memory.data() + 1024,
                              20, 10, 10, {}, {}, Wide::kBf16, Wide::kBf16, stream_)
                   .ok());
}

const Shape kMxShapes[] = {
    {1, 32, 32, {1, 32}, 0},  {3, 96, 104, {1, 32}, 0},    {5, 100, 104, {1, 32}, 0},
    {5, 97, 101, {1, 32}, 0}, {4, 2080, 2080, {1, 32}, 0}, {3, 64, 64, {1, 32}, 1},
};

TEST_F(MatrixKernels, MxBlocksHaveScalesOfOneByte) {
  for (const Shape& shape : kMxShapes) {
    for (const Wide type : kWides) {
      for (const Narrow to : kNarrows) {
        for (int rounding = 1; rounding <= static_cast<int>(ScaleRounding::kCeilExponent);
             ++rounding) {
          SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.columns << " of "
                                          << SizeBytes(type) << " bytes, skew " << shape.skew);
          const ScaleRule rule{to, 0, static_cast<ScaleRounding>(rounding), Division::kDivide};
          const SkewedBytes src = InputOf(shape, type);
          std::vector<float> scales;
          std::vector<uint8_t> codes;
          QuantiseByTruth(src, shape, type, type, rule, &scales, &codes);
          std::vector<uint8_t> e8m0;
          for (const float scale : scales) e8m0.push_back(ToE8m0(scale));
          const size_t blocks = shape.grid.ColumnsOfBlocks(shape.columns);
          const DeviceBytes from(src);
          const DeviceBytes dst(codes.size(), shape.skew);
          const DeviceBytes device_scales(e8m0.size());
          ASSERT_QUEUED(QuantiseMx(dst.data(), static_cast<ptrdiff_t>(shape.columns),
                                   device_scales.data(), static_cast<ptrdiff_t>(blocks),
                                   from.data(),
                                   static_cast<ptrdiff_t>(shape.pitch * SizeBytes(type)),
                                   shape.rows, shape.columns, rule, type, type, stream_));
          ASSERT_EQ(device_scales.Read(), e8m0);
          ASSERT_EQ(dst.Read(), codes);
          ASSERT_TRUE(dst.GuardsHold() && device_scales.GuardsHold());
        }
      }
    }
  }
}

}  // namespace
}  // namespace waybill::kernels::cuda
