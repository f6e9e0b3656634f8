// SPDX-License-Identifier: Apache-2.0

#include "tools/check/quantised.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace waybill::check {
namespace {

double ValueOf(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  return exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
}

// Against the definition: of all codes the nearest, over all BF16 numbers.
TEST(NearestE4m3, IsTheNearestOfAllCodesAndOfTwoTheEvenOne) {
  for (uint32_t high = 0; high < 0x7F80; ++high) {
    const float value = std::bit_cast<float>(high << 16);
    const double clamped = std::min<double>(value, 448);
    uint8_t best = 0;
    for (uint8_t code = 1; code < 0x7F; ++code) {
      const double better = std::fabs(ValueOf(best) - clamped) - std::fabs(ValueOf(code) - clamped);
      if (better > 0 || (better == 0 && code % 2 == 0)) best = code;
    }
    ASSERT_EQ(NearestE4m3(value), best) << value;
    ASSERT_EQ(NearestE4m3(-value), best | 0x80) << value;
  }
  EXPECT_EQ(NearestE4m3(std::numeric_limits<float>::quiet_NaN()) & 0x7F, 0x7F);
}

TEST(QuantisedTensor, TheLargestOfEachBlockBecomesTheLargestCode) {
  std::vector<uint16_t> bf16(4 * 6);
  for (size_t i = 0; i < bf16.size(); ++i) bf16[i] = static_cast<uint16_t>(0x3F80 + 7 * i);
  const StoredTensor tensor = {.name = "w",
                               .dtype = "BF16",
                               .shape = {4, 6},
                               .data = reinterpret_cast<const std::byte*>(bf16.data())};
  const QuantisedTensor q(tensor, {0}, {.block_rows = 2, .block_columns = 4});
  uint8_t codes[4 * 6];
  for (int64_t row = 0; row < 4; ++row) q.Codes(row * 6, 6, codes + row * 6);
  for (const int64_t last : {9, 11, 21, 23}) EXPECT_EQ(codes[last], 0x7E) << last;
  EXPECT_LT(codes[0], 0x7E);
  EXPECT_EQ(q.ScaleBits(0), q.ScaleBits(9));
  EXPECT_NE(q.ScaleBits(0), q.ScaleBits(10));
  EXPECT_EQ(std::bit_cast<float>(q.ScaleBits(9)),
            std::bit_cast<float>(uint32_t{bf16[9]} << 16) / 448.0f);
}

}  // namespace
}  // namespace waybill::check
