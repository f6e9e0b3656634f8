#include "kernels/fp8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/copy.h"
#include "kernels/digest.h"
#include "kernels/elements.h"
#include "kernels/every_target.h"
#include "kernels/quantise_inputs.h"
#include "kernels/scalar.h"
#include "kernels/scalar_elements.h"
#include "kernels/scalar_quantise.h"
#include "kernels/test_bytes.h"

namespace waybill::kernels {
namespace {

constexpr Wide kWides[] = {Wide::kF32, Wide::kF16, Wide::kBf16};
constexpr Narrow kNarrows[] = {Narrow::kE4m3, Narrow::kE5m2};

// The value of a finite code, from the format's table.
double ValueOf(uint8_t code, Narrow type) {
  const int mantissa_bits = type == Narrow::kE4m3 ? 3 : 2;
  const int bias = type == Narrow::kE4m3 ? 7 : 15;
  const int field = code >> mantissa_bits;
  const double fraction = std::ldexp(code & ((1 << mantissa_bits) - 1), -mantissa_bits);
  return field == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, field - bias);
}

// The definition itself: of all magnitudes the nearest, and of two as near the even one.
uint8_t NearestBySearch(float value, Narrow to) {
  const uint8_t sign = std::signbit(value) ? 0x80 : 0;
  if (std::isnan(value)) return sign | 0x7f;
  const uint8_t largest = to == Narrow::kE4m3 ? 0x7e : 0x7b;
  const double magnitude = std::fabs(static_cast<double>(value));
  uint8_t nearest = largest;
  for (int code = largest - 1; code >= 0; --code) {
    const double better = std::fabs(ValueOf(code, to) - magnitude);
    const double best = std::fabs(ValueOf(nearest, to) - magnitude);
    if (better < best || (better == best && code % 2 == 0)) nearest = static_cast<uint8_t>(code);
  }
  return sign | (magnitude >= ValueOf(largest, to) ? largest : nearest);
}

TEST(CastToFp8, EveryBf16AndF16RoundsToTheNearest) {
  for (const Wide from : {Wide::kF16, Wide::kBf16}) {
    const SkewedBytes src = AllInputs(from);
    for (const Narrow to : kNarrows) {
      std::vector<uint8_t> expected;
      for (size_t i = 0; i < 65536; ++i) {
        expected.push_back(NearestBySearch(scalar::LoadWide(src.data() + i * 2, from), to));
      }
      std::vector<uint8_t> cast(65536);
      scalar::CastToFp8(cast.data(), to, src.data(), from, 65536);
      ASSERT_EQ(cast, expected);
      OnEveryTarget([&] {
        CastToFp8(cast.data(), to, src.data(), from, 65536, Stores::kCached, nullptr);
        for (size_t i = 0; i < 65536; ++i) ASSERT_EQ(cast[i], expected[i]) << std::hex << i;
      });
    }
  }
}

TEST(CastToFp8, EveryF32NearABoundIsAsTheScalarOne) {
  const SkewedBytes src = AllInputs(Wide::kF32);
  const size_t count = src.size() / 4;
  for (const Narrow to : kNarrows) {
    std::vector<uint8_t> expected(count);
    scalar::CastToFp8(expected.data(), to, src.data(), Wide::kF32, count);
    for (size_t i = 0; i < count; i += 97) {
      ASSERT_EQ(expected[i], NearestBySearch(scalar::LoadWide(src.data() + i * 4, Wide::kF32), to));
    }
    OnEveryTarget([&] {
      std::vector<uint8_t> cast(count);
      CastToFp8(cast.data(), to, src.data(), Wide::kF32, count, Stores::kCached, nullptr);
      ASSERT_EQ(cast, expected);
    });
  }
}

TEST(CastFromFp8, EveryCodeComesBack) {
  std::vector<uint8_t> codes(256);
  for (size_t i = 0; i < 256; ++i) codes[i] = static_cast<uint8_t>(i);
  for (const Narrow type : kNarrows) {
    const uint8_t largest = type == Narrow::kE4m3 ? 0x7e : 0x7b;
    for (const Wide to : kWides) {
      OnEveryTarget([&] {
        std::vector<uint8_t> wide(256 * SizeBytes(to));
        std::vector<uint8_t> again(256);
        CastFromFp8(wide.data(), to, codes.data(), type, 256, Stores::kCached, nullptr);
        CastToFp8(again.data(), type, wide.data(), to, 256, Stores::kCached, nullptr);
        for (size_t i = 0; i < 256; ++i) {
          const uint8_t magnitude = i & 0x7f;
          const float value = scalar::LoadWide(wide.data() + i * SizeBytes(to), to);
          if (magnitude <= largest) {
            ASSERT_EQ(std::fabs(value), ValueOf(magnitude, type)) << i;
            ASSERT_EQ(again[i], i);
          } else if (type == Narrow::kE5m2 && magnitude == 0x7c) {
            ASSERT_TRUE(std::isinf(value)) << i;
          } else {
            ASSERT_TRUE(std::isnan(value)) << i;
            ASSERT_EQ(again[i], 0x7f | (i & 0x80));
          }
          ASSERT_EQ(std::signbit(value), i >= 128) << i;
        }
      });
    }
  }
}

const size_t kCounts[] = {0,  1,  7,  8,  9,  15,   16,   17,   31,
                          32, 33, 63, 64, 65, 1000, 4096, 4097, 9001};

TEST(CastToFp8, AnyLengthAlignmentAndStoresGiveTheSameBytesAndDigest) {
  for (const Wide from : kWides) {
    for (const size_t count : kCounts) {
      const size_t skew = count % 5;
      const SkewedBytes src = MatrixOf(from, count, 3, skew);
      SkewedBytes expected(count);
      scalar::CastToFp8(expected.data(), Narrow::kE4m3, src.data(), from, count);
      const uint64_t sum = scalar::LeafSum(expected.data(), count, 0);
      OnEveryTarget([&] {
        for (const Stores stores : {Stores::kCached, Stores::kStreaming}) {
          for (const bool with_digest : {false, true}) {
            SkewedBytes dst(count, skew);
            DigestStream digest;
            CastToFp8(dst.data(), Narrow::kE4m3, src.data(), from, count, stores,
                      with_digest ? &digest : nullptr);
            StreamFence();
            ASSERT_TRUE(std::equal(dst.data(), dst.data() + count, expected.data())) << count;
            ASSERT_TRUE(dst.GuardsHold()) << count;
            ASSERT_EQ(digest.sum(), with_digest ? sum : 0);
          }
        }
      });
    }
  }
}

TEST(CastFromFp8, AnyLengthAlignmentAndStoresGiveTheSameBytesAndDigest) {
  for (const Wide to : kWides) {
    for (const size_t count : kCounts) {
      const size_t skew = count % 5;
      const SkewedBytes src = SkewedBytes::Mixed(count, skew);
      for (const Narrow from : kNarrows) {
        SkewedBytes expected(count * SizeBytes(to));
        scalar::CastFromFp8(expected.data(), to, src.data(), from, count);
        const uint64_t sum = scalar::LeafSum(expected.data(), expected.size(), 0);
        OnEveryTarget([&] {
          for (const Stores stores : {Stores::kCached, Stores::kStreaming}) {
            SkewedBytes dst(expected.size(), skew * SizeBytes(to));
            DigestStream digest;
            CastFromFp8(dst.data(), to, src.data(), from, count, stores, &digest);
            StreamFence();
            ASSERT_TRUE(std::equal(dst.data(), dst.data() + dst.size(), expected.data())) << count;
            ASSERT_TRUE(dst.GuardsHold()) << count;
            ASSERT_EQ(digest.sum(), sum);
          }
        });
      }
    }
  }
}

}  // namespace
}  // namespace waybill::kernels
