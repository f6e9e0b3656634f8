// SPDX-License-Identifier: Apache-2.0

#include "tools/check/change.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <set>

namespace waybill::check {
namespace {

uint64_t Changed(uint64_t bits, uint32_t element_bytes, uint64_t version, uint64_t element) {
  return bits ^ (Change(KeyOf({version}, "w"), element) & BitsThatChange(element_bytes));
}

struct FormatCase {
  const char* name;
  uint32_t element_bytes;
  uint64_t sign_and_exponent;
};

class ChangeTest : public testing::TestWithParam<FormatCase> {};

// A float whose exponent stays is as finite as it was.
TEST_P(ChangeTest, SignAndExponentStay) {
  const FormatCase& c = GetParam();
  for (uint64_t version = 1; version < 20; ++version) {
    for (uint64_t element = 0; element < 500; ++element) {
      const uint64_t bits = 0x7E7D'7C7B'7A79'7877u * (element + 1);
      const uint64_t changed = Changed(bits, c.element_bytes, version, element);
      ASSERT_EQ(changed & c.sign_and_exponent, bits & c.sign_and_exponent);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, ChangeTest,
                         testing::ValuesIn<FormatCase>({
                             {"bf16", 2, 0xFF80},
                             {"f16", 2, 0xFC00},
                             {"f32", 4, 0xFF80'0000},
                             {"f64", 8, 0xFFF0'0000'0000'0000},
                             {"e4m3", 1, 0xF8},
                             {"e5m2", 1, 0xFC},
                         }),
                         [](const auto& info) { return info.param.name; });

TEST(Change, VersionZeroIsTheCheckpoint) {
  for (uint64_t element = 0; element < 100; ++element) {
    EXPECT_EQ(Change(KeyOf({0}, "w"), element), 0u);
  }
}

TEST(Change, VersionsElementsAndTensorsDiffer) {
  constexpr uint64_t kMask = BitsThatChange(4);
  std::set<uint64_t> seen;
  for (uint64_t version = 1; version <= 10; ++version) {
    for (const char* tensor : {"w", "v"}) {
      for (uint64_t element = 0; element < 50; ++element) {
        seen.insert(Change(KeyOf({version}, tensor), element) & kMask);
      }
    }
  }
  EXPECT_GE(seen.size(), 998u);  // By chance, two of 1000 may be alike among 4 million.
}

TEST(Change, APartOfTheElementsDiffersFromThoseOfTheVersionBeforeByOneUnit) {
  constexpr uint64_t kElements = 1'000'000;
  for (const double changed : {0.0, 0.01, 0.2, 0.5}) {
    const ChangeKey before = KeyOf({6, changed}, "w"), now = KeyOf({7, changed}, "w");
    uint64_t differ = 0;
    for (uint64_t element = 0; element < kElements; ++element) {
      const uint32_t change = Change(before, element) ^ Change(now, element);
      ASSERT_LE(change, 1u);
      differ += change;
    }
    // Six standard deviations of a binomial distribution.
    const double expected = changed * kElements;
    EXPECT_NEAR(static_cast<double>(differ), expected, 6 * std::sqrt(expected) + 1e-9);
  }
}

TEST(Change, ThePlacesThatChangeAreOthersInEachVersion) {
  const ChangeKey first = KeyOf({1, 0.1}, "w"), second = KeyOf({2, 0.1}, "w");
  uint64_t both = 0;
  for (uint64_t element = 0; element < 1'000'000; ++element) {
    both += Change(first, element) & Change(second, element);
  }
  EXPECT_NEAR(static_cast<double>(both), 1e6 * 0.0528 * 0.0528, 400);  // 0.0528: half of each.
}

}  // namespace
}  // namespace waybill::check
