// SPDX-License-Identifier: Apache-2.0

// Every operation of one element against its scalar truth, over all inputs where that is possible.

#include "kernels/cuda/element_arithmetic.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

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

constexpr Wide kWides[] = {Wide::kF32, Wide::kF16, Wide::kBf16};
constexpr Narrow kNarrows[] = {Narrow::kE4m3, Narrow::kE5m2};
constexpr float kFactors[] = {1.0F,
                              0.37F,
                              448.0F,
                              1.0F / 448,
                              1e-30F,
                              3.7e30F,
                              0x1p-127F,
                              0x1p127F,
                              0.0F,
                              std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()};

uint32_t LoadBits(const void* src, Wide type) {
  uint32_t bits = 0;
  std::memcpy(&bits, src, SizeBytes(type));
  return bits;
}

TEST(WideToF32, IsAsTheTruthHasItForEveryPattern) {
  for (const Wide type : {Wide::kF16, Wide::kBf16}) {
    for (uint32_t i = 0; i < 65536; ++i) {
      const uint32_t bits = i;
      ASSERT_EQ(BitsOf(WideToF32(i, type)), BitsOf(scalar::LoadWide(&bits, type))) << i;
    }
  }
}

TEST(F32ToWide, IsAsTheTruthHasIt) {
  const SkewedBytes inputs = AllInputs(Wide::kF32);
  for (const Wide type : kWides) {
    for (size_t i = 0; i < inputs.size(); i += 4) {
      const float value = scalar::LoadWide(inputs.data() + i, Wide::kF32);
      uint32_t expected = 0;
      scalar::StoreWide(&expected, value, type);
      ASSERT_EQ(F32ToWide(value, type), expected) << std::hex << BitsOf(value);
    }
  }
}

TEST(NarrowMagnitude, IsAsTheTruthHasItForEveryCode) {
  for (const Narrow type : kNarrows) {
    for (uint32_t code = 0; code < 128; ++code) {
      EXPECT_EQ(BitsOf(NarrowMagnitude(code, type)),
                BitsOf(scalar::NarrowToF32(static_cast<uint8_t>(code), type)))
          << code;
    }
  }
}

TEST(MagnitudeToNarrow, IsAsTheTruthHasIt) {
  const SkewedBytes inputs = AllInputs(Wide::kF32);
  for (const Narrow type : kNarrows) {
    for (size_t i = 0; i < inputs.size() / 2; i += 4) {  // Those without a sign.
      const float value = scalar::LoadWide(inputs.data() + i, Wide::kF32);
      ASSERT_EQ(MagnitudeToNarrow(value, type), scalar::F32ToNarrow(value, type))
          << std::hex << BitsOf(value);
    }
  }
}

TEST(QuantiseElement, IsAsTheTruthHasItForEveryPatternAndManyFactors) {
  for (const Wide type : {Wide::kF16, Wide::kBf16}) {
    const SkewedBytes inputs = AllInputs(type);
    for (const Narrow to : kNarrows) {
      for (const Division division : {Division::kMultiplyByReciprocal, Division::kDivide}) {
        for (const float factor : kFactors) {
          for (size_t i = 0; i < inputs.size(); i += 2) {
            uint8_t expected;
            scalar::QuantiseRun(&expected, inputs.data() + i, 1, factor,
                                {type, type, to, division});
            const float value = WideToF32(LoadBits(inputs.data() + i, type), type);
            ASSERT_EQ(QuantiseElement(value, factor, to, division), expected)
                << "pattern " << i / 2 << ", factor " << factor;
          }
        }
      }
    }
  }
}

TEST(MaximumBits, IsTheRoundedMagnitudeOrTheOneNan) {
  for (const Wide type : {Wide::kF16, Wide::kBf16}) {
    for (const Wide via : kWides) {
      for (uint32_t magnitude = 0; magnitude < 0x8000; ++magnitude) {
        const uint32_t bits = magnitude;
        float expected = 0;
        scalar::CombineMaxima(&expected, 0, &bits, type, via, 0, 1, 1, {});
        ASSERT_EQ(MaximumBits(magnitude, type, via), BitsOf(expected)) << magnitude;
      }
    }
  }
}

TEST(ScaleOfMaximum, IsAsScaleOfHasIt) {
  const SkewedBytes inputs = AllInputs(Wide::kF32);
  for (const Narrow to : kNarrows) {
    for (int rounding = 0; rounding <= static_cast<int>(ScaleRounding::kCeilExponent); ++rounding) {
      for (int division = 0; division <= static_cast<int>(Division::kDivide); ++division) {
        for (const float epsilon : {0.0F, 1e-4F}) {
          const ScaleRule rule{to, epsilon, static_cast<ScaleRounding>(rounding),
                               static_cast<Division>(division)};
          for (size_t i = 0; i < inputs.size() / 2; i += 4) {
            const float maximum = scalar::LoadWide(inputs.data() + i, Wide::kF32);
            const Scale expected = ScaleOf(maximum, rule);
            const Scale scale = ScaleOfMaximum(maximum, rule);
            ASSERT_EQ(BitsOf(scale.scale), BitsOf(expected.scale)) << maximum;
            ASSERT_EQ(BitsOf(scale.factor), BitsOf(expected.factor)) << maximum;
          }
        }
      }
    }
  }
}

TEST(E8m0Of, IsAsToE8m0HasIt) {
  for (uint32_t code = 0; code <= 0xff; ++code) {
    const float power = FromE8m0(static_cast<uint8_t>(code));
    EXPECT_EQ(E8m0Of(power), ToE8m0(power));
    EXPECT_EQ(BitsOf(code == 0xff ? FloatOf(kNanBits) : PowerOfE8m0(code)), BitsOf(power));
  }
}

TEST(KeyedProduct, IsWhatAbsorbWordAdds) {
  for (uint64_t i = 0; i < 1000; ++i) {
    const uint64_t word = scalar::Mix(i);
    const uint64_t key = scalar::kDigestConstants.keys[i % scalar::kLeafWords];
    scalar::Lanes lanes{};
    scalar::AbsorbWord(word, key, 3, lanes.data());
    EXPECT_EQ(KeyedProduct(word, key), lanes[3]);
    EXPECT_EQ(word, lanes[2]);
  }
}

}  // namespace
}  // namespace waybill::kernels::cuda
