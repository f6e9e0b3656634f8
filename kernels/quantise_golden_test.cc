// SPDX-License-Identifier: Apache-2.0

// Holds every target, and the scalar truth, to what numpy and ml_dtypes give.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/block_grid.h"
#include "kernels/copy.h"
#include "kernels/elements.h"
#include "kernels/every_target.h"
#include "kernels/quantise.h"
#include "kernels/quantise_inputs.h"
#include "kernels/quantise_rule.h"
#include "kernels/scalar_quantise.h"
#include "kernels/scale.h"
#include "kernels/test_bytes.h"

namespace waybill::kernels {
namespace {

const std::map<std::string, Wide> kWide = {
    {"f32", Wide::kF32}, {"f16", Wide::kF16}, {"bf16", Wide::kBf16}};
const std::map<std::string, Narrow> kNarrow = {{"e4m3", Narrow::kE4m3}, {"e5m2", Narrow::kE5m2}};
const std::map<std::string, ScaleRounding> kRounding = {
    {"none", ScaleRounding::kNone},
    {"power_of_two_up", ScaleRounding::kPowerOfTwoUp},
    {"floor_exponent", ScaleRounding::kFloorExponent},
    {"even_exponent", ScaleRounding::kEvenExponent},
    {"ceil_exponent", ScaleRounding::kCeilExponent}};
const std::map<std::string, Division> kDivision = {
    {"multiply_by_reciprocal", Division::kMultiplyByReciprocal},
    {"multiply_by_largest_over_maximum", Division::kMultiplyByLargestOverMaximum},
    {"divide", Division::kDivide}};

// The lines that begin with `kind`, without it; at least one.
std::vector<std::istringstream> Lines(const std::string& kind) {
  std::ifstream file("kernels/golden/quantise_vectors.txt");
  std::vector<std::istringstream> lines;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(kind + " ")) lines.emplace_back(line.substr(kind.size() + 1));
  }
  EXPECT_FALSE(lines.empty()) << kind;
  return lines;
}

template <typename... Words>
void Parse(std::istringstream& line, Words&... words) {
  ASSERT_TRUE((line >> ... >> words)) << line.str();
}

std::string Hash(const void* data, size_t size_bytes) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx",
                static_cast<unsigned long long>(Fnv(data, size_bytes)));
  return text;
}

TEST(Golden, Casts) {
  for (std::istringstream& line : Lines("cast")) {
    std::string wide;
    std::string narrow;
    std::string expected;
    Parse(line, wide, narrow, expected);
    const Wide from = kWide.at(wide);
    const SkewedBytes src = AllInputs(from);
    const size_t count = src.size() / SizeBytes(from);
    std::vector<uint8_t> codes(count);
    scalar::CastToFp8(codes.data(), kNarrow.at(narrow), src.data(), from, count);
    EXPECT_EQ(Hash(codes.data(), count), expected) << line.str();
    OnEveryTarget([&] {
      std::fill(codes.begin(), codes.end(), 0);
      // A cast is a quantisation by 1, which changes no value and no NaN's sign.
      const float one = 1;
      const QuantiseRule rule{from, from, kNarrow.at(narrow), Division::kMultiplyByReciprocal};
      QuantiseRows(codes.data(), 0, src.data(), 0, 1, count, {1, count}, &one, 0, rule,
                   Stores::kCached, nullptr);
      EXPECT_EQ(Hash(codes.data(), count), expected) << line.str();
    });
  }
}

TEST(Golden, Decodes) {
  uint8_t codes[256];
  for (size_t i = 0; i < 256; ++i) codes[i] = static_cast<uint8_t>(i);
  for (std::istringstream& line : Lines("decode")) {
    std::string narrow;
    std::string expected;
    Parse(line, narrow, expected);
    float values[256];
    scalar::CastFromFp8(values, Wide::kF32, codes, kNarrow.at(narrow), 256);
    EXPECT_EQ(Hash(values, sizeof(values)), expected) << line.str();
  }
}

TEST(Golden, RoundsToF16) {
  const SkewedBytes src = AllInputs(Wide::kF32);
  std::vector<uint16_t> rounded(src.size() / 4);
  for (size_t i = 0; i < rounded.size(); ++i) {
    rounded[i] = scalar::F32ToF16(scalar::LoadWide(src.data() + i * 4, Wide::kF32));
  }
  for (std::istringstream& line : Lines("round")) {
    std::string from;
    std::string to;
    std::string expected;
    Parse(line, from, to, expected);
    EXPECT_EQ(Hash(rounded.data(), rounded.size() * 2), expected) << line.str();
  }
}

// As maxima_for_scales() of the generator.
std::vector<uint32_t> MaximaForScales() {
  std::vector<uint32_t> bits = {0,          1,          0x00400000, 0x00400001, 0x00800000,
                                0x3f800000, 0x3f800001, 0x7f7fffff, 0x43e00000, 0x43e00001,
                                0x43dfffff, 0x47600000, 0x38d1b717, 0x3ff00000, 0x3fefffff,
                                0x3ff80000, 0x3fe00000};
  for (uint64_t i = 1; i <= 40; ++i) {
    bits.push_back(static_cast<uint32_t>(scalar::Mix(i) % 0x7f800000));
  }
  return bits;
}

TEST(Golden, Scales) {
  for (std::istringstream& line : Lines("scales")) {
    std::string narrow;
    std::string rounding;
    std::string division;
    std::string epsilon;
    std::string expected;
    Parse(line, narrow, rounding, division, epsilon, expected);
    const ScaleRule rule{kNarrow.at(narrow), std::stof(epsilon), kRounding.at(rounding),
                         kDivision.at(division)};
    std::vector<float> found;
    for (const uint32_t bits : MaximaForScales()) {
      const Scale scale = ScaleOf(std::bit_cast<float>(bits), rule);
      found.push_back(scale.scale);
      found.push_back(scale.factor);
    }
    EXPECT_EQ(Hash(found.data(), found.size() * 4), expected) << line.str();
  }
}

TEST(Golden, Blocks) {
  for (std::istringstream& line : Lines("blocks")) {
    std::string wide;
    std::string via;
    std::string narrow;
    std::string rounding;
    std::string division;
    std::string epsilon;
    std::string expected_codes;
    std::string expected_scales;
    std::string expected_values;
    BlockGrid grid;
    size_t rows;
    size_t columns;
    Parse(line, wide, via, narrow, grid.block_rows, grid.block_columns, rounding, division, epsilon,
          rows, columns, expected_codes, expected_scales, expected_values);
    const Wide type = kWide.at(wide);
    const ScaleRule rule{kNarrow.at(narrow), std::stof(epsilon), kRounding.at(rounding),
                         kDivision.at(division)};
    const SkewedBytes src = MatrixOf(type, rows * columns, 7);
    const size_t scales_pitch = grid.ColumnsOfBlocks(columns);
    OnEveryTarget([&] {
      std::vector<uint8_t> codes(rows * columns);
      std::vector<float> scales(grid.RowsOfBlocks(rows) * scales_pitch);
      std::vector<float> values(rows * columns);
      QuantiseBlocks(codes.data(), columns, scales.data(), scales_pitch, src.data(),
                     columns * SizeBytes(type), rows, columns, grid, rule, type, kWide.at(via),
                     Stores::kCached, nullptr);
      EXPECT_EQ(Hash(codes.data(), codes.size()), expected_codes) << line.str();
      EXPECT_EQ(Hash(scales.data(), scales.size() * 4), expected_scales) << line.str();
      scalar::DequantiseRows(values.data(), Wide::kF32, columns * 4, codes.data(), rule.to, columns,
                             rows, columns, grid, scales.data(), scales_pitch);
      EXPECT_EQ(Hash(values.data(), values.size() * 4), expected_values) << line.str();
    });
  }
}

}  // namespace
}  // namespace waybill::kernels
