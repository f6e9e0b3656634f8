// SPDX-License-Identifier: Apache-2.0

#include "kernels/cast.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/every_target.h"
#include "kernels/scalar.h"
#include "kernels/test_bytes.h"

namespace waybill::kernels {
namespace {

// The magnitudes of all finite BF16s in order, and behind them what infinity counts as: 2^128.
std::vector<double> Magnitudes() {
  std::vector<double> magnitudes;
  for (uint32_t high = 0; high < 0x7f80; ++high) {
    magnitudes.push_back(std::bit_cast<float>(high << 16));
  }
  magnitudes.push_back(std::ldexp(1.0, 128));
  return magnitudes;
}

// The definition itself: of all magnitudes the nearest, and of two as near the even one.
uint16_t NearestBySearch(const std::vector<double>& magnitudes, uint32_t bits) {
  const uint16_t sign = bits >> 16 & 0x8000;
  const float value = std::bit_cast<float>(bits);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  if (std::isinf(value)) return sign | 0x7f80;
  const double magnitude = std::fabs(static_cast<double>(value));
  const size_t above =
      std::lower_bound(magnitudes.begin(), magnitudes.end(), magnitude) - magnitudes.begin();
  if (above == 0) return sign;
  const double to_above = magnitudes[above] - magnitude;
  const double to_below = magnitude - magnitudes[above - 1];
  const bool up = to_above < to_below || (to_above == to_below && above % 2 == 0);
  return static_cast<uint16_t>(sign | (up ? above : above - 1));
}

TEST(CastF32ToBf16, RoundsEveryUpperHalfToTheNearest) {
  const std::vector<double> magnitudes = Magnitudes();
  std::vector<uint32_t> inputs;
  for (uint32_t high = 0; high <= 0xffff; ++high) {
    for (const uint32_t low : {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff}) {
      inputs.push_back(high << 16 | low);
    }
  }
  std::vector<uint16_t> expected;
  for (const uint32_t bits : inputs) {
    expected.push_back(NearestBySearch(magnitudes, bits));
    ASSERT_EQ(scalar::F32ToBf16(std::bit_cast<float>(bits)), expected.back()) << std::hex << bits;
  }
  OnEveryTarget([&] {
    std::vector<uint16_t> cast(inputs.size());
    CastElements(Cast::kF32ToBf16, cast.data(), inputs.data(), inputs.size(), Stores::kCached,
                 nullptr);
    for (size_t i = 0; i < inputs.size(); ++i) {
      ASSERT_EQ(cast[i], expected[i]) << "f32 0x" << std::hex << inputs[i];
    }
  });
}

// By the least difference, looking at every F16; NearestBySearch's rules.
uint16_t NearestF16(uint32_t bits) {
  const uint16_t sign = bits >> 16 & 0x8000;
  const float value = std::bit_cast<float>(bits);
  if (std::isnan(value)) return sign | 0x7e00;
  const double magnitude = std::fabs(static_cast<double>(value));
  static const std::vector<double>* const magnitudes = [] {
    auto* all = new std::vector<double>;
    for (int code = 0; code < 0x7c00; ++code) {
      const int exponent = code >> 10, mantissa = code & 0x3ff;
      all->push_back(exponent == 0 ? std::ldexp(mantissa, -24)
                                   : std::ldexp(1024 + mantissa, exponent - 25));
    }
    all->push_back(std::ldexp(1.0, 16));  // What infinity counts as.
    return all;
  }();
  const size_t above =
      std::lower_bound(magnitudes->begin(), magnitudes->end(), magnitude) - magnitudes->begin();
  if (above == 0) return sign;
  if (above == magnitudes->size()) return sign | 0x7c00;
  const double to_above = (*magnitudes)[above] - magnitude;
  const double to_below = magnitude - (*magnitudes)[above - 1];
  const bool up = to_above < to_below || (to_above == to_below && above % 2 == 0);
  return static_cast<uint16_t>(sign | (up ? above : above - 1));
}

TEST(CastF32ToF16, RoundsToTheNearestAroundEveryF16AndEveryPowerOfTwo) {
  std::vector<uint32_t> inputs;
  for (uint32_t high = 0; high <= 0x7ffff; ++high) {
    for (const uint32_t low : {0, 1, 0xfff, 0x1000, 0x1001, 0x1fff}) {
      inputs.push_back(high << 13 | low);
    }
  }
  OnEveryTarget([&] {
    std::vector<uint16_t> cast(inputs.size());
    CastElements(Cast::kF32ToF16, cast.data(), inputs.data(), inputs.size(), Stores::kCached,
                 nullptr);
    for (size_t i = 0; i < inputs.size(); ++i) {
      ASSERT_EQ(cast[i], NearestF16(inputs[i])) << "f32 0x" << std::hex << inputs[i];
    }
  });
}

std::vector<uint16_t> EveryHalf() {
  std::vector<uint16_t> halves(0x10000);
  std::iota(halves.begin(), halves.end(), uint16_t{0});
  return halves;
}

TEST(CastToF32, GivesTheNumberOfEveryElementAndKeepsTheBitsOfANan) {
  const std::vector<uint16_t> inputs = EveryHalf();
  OnEveryTarget([&] {
    std::vector<uint32_t> cast(inputs.size());
    CastElements(Cast::kBf16ToF32, cast.data(), inputs.data(), inputs.size(), Stores::kCached,
                 nullptr);
    for (uint32_t i = 0; i < inputs.size(); ++i) ASSERT_EQ(cast[i], i << 16);
    CastElements(Cast::kF16ToF32, cast.data(), inputs.data(), inputs.size(), Stores::kCached,
                 nullptr);
    for (uint32_t i = 0; i < inputs.size(); ++i) {
      const bool finite = (i & 0x7c00) != 0x7c00;
      if (finite) {  // Rounding back is exact.
        ASSERT_EQ(NearestF16(cast[i]), i);
      } else {
        ASSERT_EQ(cast[i], (i & 0x8000) << 16 | 0x7f80'0000 | (i & 0x3ff) << 13);
      }
    }
  });
}

TEST(CastBf16ToF16, RoundsEveryElementAsIfByWayOfF32) {
  const std::vector<uint16_t> inputs = EveryHalf();
  OnEveryTarget([&] {
    std::vector<uint16_t> cast(inputs.size());
    CastElements(Cast::kBf16ToF16, cast.data(), inputs.data(), inputs.size(), Stores::kCached,
                 nullptr);
    for (uint32_t i = 0; i < inputs.size(); ++i) ASSERT_EQ(cast[i], NearestF16(i << 16)) << i;
  });
}

class Casts : public testing::TestWithParam<Cast> {
 protected:
  size_t from_bytes_ = SizeBytes(SourceOf(GetParam()));
  size_t to_bytes_ = SizeBytes(DestinationOf(GetParam()));
};

TEST_P(Casts, AnyLengthAlignmentAndStoresGiveTheSameBytesAndDigest) {
  for (const size_t count :
       {0, 1, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 1000, 2047, 2048, 2049, 5003}) {
    for (const size_t skew : {0, 1, 3, 16}) {
      const SkewedBytes src = SkewedBytes::Mixed(count * from_bytes_, skew * from_bytes_);
      SkewedBytes expected(count * to_bytes_);
      scalar::CastElements(GetParam(), expected.data(), src.data(), count);
      const uint64_t sum = scalar::LeafSum(expected.data(), count * to_bytes_, 0);
      OnEveryTarget([&] {
        for (const Stores stores : {Stores::kCached, Stores::kStreaming}) {
          for (const bool with_digest : {false, true}) {
            SkewedBytes dst(count * to_bytes_, skew * to_bytes_);
            DigestStream digest;
            CastElements(GetParam(), dst.data(), src.data(), count, stores,
                         with_digest ? &digest : nullptr);
            StreamFence();
            ASSERT_TRUE(std::equal(dst.data(), dst.data() + dst.size(), expected.data()))
                << count << " elements, skew " << skew;
            ASSERT_TRUE(dst.GuardsHold());
            ASSERT_EQ(digest.sum(), with_digest ? sum : 0);
          }
        }
      });
    }
  }
}

TEST_P(Casts, ContinuesAStreamThatHasBegun) {
  const SkewedBytes src = SkewedBytes::Mixed(5003 * from_bytes_);
  SkewedBytes expected(100 + 5003 * to_bytes_);
  std::copy_n(src.data(), 100, expected.data());
  scalar::CastElements(GetParam(), expected.data() + 100, src.data(), 5003);
  OnEveryTarget([&] {
    SkewedBytes dst(5003 * to_bytes_);
    DigestStream digest;
    digest.Absorb(src.data(), 100);
    CastElements(GetParam(), dst.data(), src.data(), 5003, Stores::kStreaming, &digest);
    EXPECT_EQ(digest.sum(), scalar::LeafSum(expected.data(), expected.size(), 0));
  });
}

INSTANTIATE_TEST_SUITE_P(All, Casts,
                         testing::Values(Cast::kF32ToBf16, Cast::kF32ToF16, Cast::kBf16ToF32,
                                         Cast::kF16ToF32, Cast::kBf16ToF16));

}  // namespace
}  // namespace waybill::kernels
