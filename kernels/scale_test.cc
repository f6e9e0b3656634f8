// SPDX-License-Identifier: Apache-2.0

#include "kernels/scale.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/elements.h"
#include "kernels/every_target.h"
#include "kernels/scales.h"

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

// Every exponent and the mantissas at which roundings change, in vectors and what they leave over.
TEST(ScalesOf, AreThoseOfEachMaximum) {
  std::vector<float> maxima;
  for (uint32_t field = 0; field <= 0xff; ++field) {
    for (const uint32_t mantissa : {0U, 1U, 0x07'ffffU, 0x08'0000U, 0x3f'ffffU, 0x40'0000U,
                                    0x40'0001U, 0x5f'ffffU, 0x60'0000U, 0x60'0001U, 0x68'0000U,
                                    0x6f'ffffU, 0x70'0000U, 0x77'ffffU, 0x78'0000U, 0x7f'ffffU}) {
      maxima.push_back(std::bit_cast<float>(field << 23 | mantissa));
    }
  }
  maxima.resize(maxima.size() - 3);
  const auto bits = [](const std::vector<float>& values) {
    std::vector<uint32_t> result;
    for (const float value : values) result.push_back(std::bit_cast<uint32_t>(value));
    return result;
  };
  for (const Narrow to : {Narrow::kE4m3, Narrow::kE5m2}) {
    for (int rounding = 0; rounding < 5; ++rounding) {
      for (int division = 0; division < 3; ++division) {
        for (const float epsilon : {0.0F, 1e-4F}) {
          const ScaleRule rule{to, epsilon, ScaleRounding(rounding), Division(division)};
          std::vector<float> scales;
          std::vector<float> factors;
          for (const float maximum : maxima) {
            const Scale scale = ScaleOf(maximum, rule);
            scales.push_back(scale.scale);
            factors.push_back(scale.factor);
          }
          OnEveryTarget([&] {
            std::vector<float> found(maxima.size());
            std::vector<float> in_place = maxima;
            ScalesOf(found.data(), in_place.data(), in_place.data(), maxima.size(), rule);
            ASSERT_EQ(bits(found), bits(scales)) << rounding;
            ASSERT_EQ(bits(in_place), bits(factors)) << rounding;
          });
        }
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
