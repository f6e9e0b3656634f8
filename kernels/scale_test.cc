#include "kernels/scale.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "kernels/elements.h"

namespace waybill::kernels {
namespace {

struct ScaleCase {
  const char* name;
  float maximum;
  ScaleRule rule;
  float scale;
  float factor;
};

constexpr float kTiny = std::numeric_limits<float>::min();
constexpr Narrow kTo = Narrow::kE4m3;
constexpr Division kReciprocal = Division::kMultiplyByReciprocal;
constexpr Division kDivide = Division::kDivide;

const ScaleCase kScaleCases[] = {
    {"the_largest_maps_to_the_largest", 448, {}, 1, 1},
    {"a_reciprocal", 896, {}, 2, 0.5},
    {"a_divisor", 896, {.division = kDivide}, 2, 2},
    {"the_largest_over_the_maximum",
     7,
     {.division = Division::kMultiplyByLargestOverMaximum},
     7.0F / 448,
     64},
    {"of_e5m2", 57344.0F * 4, {.to = Narrow::kE5m2}, 4, 0.25},
    {"epsilon_holds_small_ones_up", 0, {.epsilon = 448}, 1, 1},
    {"zeros_without_epsilon", 0, {.epsilon = 0}, kTiny, 1 / kTiny},
    {"zeros_of_mx", 0, {kTo, 0, ScaleRounding::kFloorExponent, kReciprocal}, kTiny / 2, 2 / kTiny},
    {"the_next_power_of_two", 449, {.rounding = ScaleRounding::kPowerOfTwoUp}, 2, 0.5},
    {"a_power_of_two_stays", 448, {.rounding = ScaleRounding::kPowerOfTwoUp}, 1, 1},
    {"floor", 511, {.rounding = ScaleRounding::kFloorExponent}, 1, 1},
    {"even_below_the_bound", 495, {.rounding = ScaleRounding::kEvenExponent}, 1, 1},
    {"even_at_the_bound", 496, {.rounding = ScaleRounding::kEvenExponent}, 2, 0.5},
    {"ceil", 257, {.rounding = ScaleRounding::kCeilExponent}, 2, 0.5},
    {"ceil_of_a_power_of_two", 256, {.rounding = ScaleRounding::kCeilExponent}, 1, 1},
};

TEST(ScaleOf, Cases) {
  for (const ScaleCase& c : kScaleCases) {
    const Scale scale = ScaleOf(c.maximum, c.rule);
    EXPECT_EQ(scale.scale, c.scale) << c.name;
    EXPECT_EQ(scale.factor, c.factor) << c.name;
  }
}

TEST(ScaleOf, EveryMaximumHasAScaleAboveZeroAndAFiniteFactor) {
  for (const Narrow to : {Narrow::kE4m3, Narrow::kE5m2}) {
    for (int rounding = 0; rounding < 5; ++rounding) {
      for (int division = 0; division < 3; ++division) {
        const ScaleRule rule{to, 0, ScaleRounding(rounding), Division(division)};
        for (uint32_t bits = 0; bits < 0x7f80'0000; bits += 0x1'2345) {
          const Scale scale = ScaleOf(std::bit_cast<float>(bits), rule);
          ASSERT_GT(scale.scale, 0) << std::hex << bits;
          ASSERT_GT(scale.factor, 0) << std::hex << bits;
          ASSERT_TRUE(std::isfinite(scale.scale) && std::isfinite(scale.factor))
              << std::hex << bits;
        }
        const Scale nan = ScaleOf(std::numeric_limits<float>::quiet_NaN(), rule);
        EXPECT_TRUE(std::isnan(nan.scale) && std::isnan(nan.factor));
      }
    }
  }
}

TEST(E8m0, EveryCodeComesBack) {
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(FromE8m0(code), std::ldexp(1.0F, code - 127));
    EXPECT_EQ(ToE8m0(FromE8m0(code)), code);
  }
  EXPECT_TRUE(std::isnan(FromE8m0(255)));
  EXPECT_EQ(ToE8m0(FromE8m0(255)), 255);
}

}  // namespace
}  // namespace waybill::kernels
