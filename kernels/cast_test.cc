#include "kernels/cast.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
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
    CastF32ToBf16(cast.data(), inputs.data(), inputs.size(), Stores::kCached, nullptr);
    for (size_t i = 0; i < inputs.size(); ++i) {
      ASSERT_EQ(cast[i], expected[i]) << "f32 0x" << std::hex << inputs[i];
    }
  });
}

TEST(CastF32ToBf16, AnyLengthAlignmentAndStoresGiveTheSameBytesAndDigest) {
  for (const size_t count :
       {0, 1, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 1000, 2047, 2048, 2049, 5003}) {
    for (const size_t skew : {0, 1, 3, 16}) {
      const SkewedBytes src = SkewedBytes::Mixed(count * 4, skew * 4);
      SkewedBytes expected(count * 2);
      scalar::CastF32ToBf16(expected.data(), src.data(), count);
      const uint64_t sum = scalar::LeafSum(expected.data(), count * 2, 0);
      OnEveryTarget([&] {
        for (const Stores stores : {Stores::kCached, Stores::kStreaming}) {
          for (const bool with_digest : {false, true}) {
            SkewedBytes dst(count * 2, skew * 2);
            DigestStream digest;
            CastF32ToBf16(dst.data(), src.data(), count, stores, with_digest ? &digest : nullptr);
            StreamFence();
            ASSERT_TRUE(std::equal(dst.data(), dst.data() + dst.size(), expected.data()))
                << count << " floats, skew " << skew;
            ASSERT_TRUE(dst.GuardsHold());
            ASSERT_EQ(digest.sum(), with_digest ? sum : 0);
          }
        }
      });
    }
  }
}

TEST(CastF32ToBf16, ContinuesAStreamThatHasBegun) {
  const SkewedBytes src = SkewedBytes::Mixed(5003 * 4);
  SkewedBytes expected(100 + 5003 * 2);
  std::copy_n(src.data(), 100, expected.data());
  scalar::CastF32ToBf16(expected.data() + 100, src.data(), 5003);
  OnEveryTarget([&] {
    SkewedBytes dst(5003 * 2);
    DigestStream digest;
    digest.Absorb(src.data(), 100);
    CastF32ToBf16(dst.data(), src.data(), 5003, Stores::kStreaming, &digest);
    EXPECT_EQ(digest.sum(), scalar::LeafSum(expected.data(), expected.size(), 0));
  });
}

}  // namespace
}  // namespace waybill::kernels
