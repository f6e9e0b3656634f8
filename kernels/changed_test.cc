// SPDX-License-Identifier: Apache-2.0

#include "kernels/changed.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kernels/every_target.h"
#include "kernels/scalar.h"
#include "kernels/test_bytes.h"

namespace waybill::kernels {
namespace {

std::vector<uint16_t> Found(const SkewedBytes& newest, const SkewedBytes& before,
                            size_t element_bytes) {
  const size_t count = newest.size() / element_bytes;
  std::vector<uint16_t> indices(count);
  indices.resize(FindChanged(newest.data(), before.data(), count, element_bytes, indices.data()));
  return indices;
}

TEST(FindChanged, SeesEverySingleBit) {
  const size_t size = 3 * 64 * 4;  // Three groups of the widest elements.
  SkewedBytes before = SkewedBytes::Mixed(size), newest = before;
  OnEveryTarget([&] {
    for (const size_t element_bytes : {1, 2, 4}) {
      ASSERT_TRUE(Found(newest, before, element_bytes).empty());
      for (size_t bit = 0; bit < size * 8; ++bit) {
        newest.data()[bit / 8] ^= 1 << (bit % 8);
        const uint16_t index = static_cast<uint16_t>(bit / 8 / element_bytes);
        ASSERT_EQ(Found(newest, before, element_bytes), std::vector<uint16_t>{index}) << bit;
        newest.data()[bit / 8] ^= 1 << (bit % 8);
      }
    }
  });
}

TEST(FindChanged, EqualsTheScalarTruthAtEveryLengthAlignmentAndDensity) {
  std::mt19937_64 random(11);
  for (const size_t element_bytes : {1, 2, 4}) {
    for (const size_t count : {0, 1, 7, 31, 63, 64, 65, 127, 128, 129, 1000, 65536}) {
      for (const size_t skew : {0, 1, 33}) {
        for (const uint64_t percent : {1, 50, 100}) {
          SkewedBytes before = SkewedBytes::Mixed(count * element_bytes, skew);
          SkewedBytes newest = SkewedBytes::Mixed(count * element_bytes, 64 - skew);
          for (size_t i = 0; i < newest.size(); ++i) {
            if (random() % 100 < percent) newest.data()[i] ^= 1 << random() % 8;
          }
          std::vector<uint16_t> expected(count);
          expected.resize(scalar::FindChanged(newest.data(), before.data(), count, element_bytes,
                                              expected.data()));
          OnEveryTarget([&] {
            ASSERT_EQ(Found(newest, before, element_bytes), expected)
                << count << " elements of " << element_bytes << " bytes, skew " << skew;
          });
        }
      }
    }
  }
}

}  // namespace
}  // namespace waybill::kernels
