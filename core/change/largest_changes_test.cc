// SPDX-License-Identifier: Apache-2.0

#include "core/change/largest_changes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

namespace waybill {
namespace {

using kernels::Wide;

std::vector<float> Take(std::vector<float> image, const std::vector<float>& newest, size_t most,
                        uint64_t* left_out = nullptr) {
  LargestChanges changes;
  const uint64_t left =
      changes.Take(Wide::kF32, reinterpret_cast<const std::byte*>(newest.data()),
                   reinterpret_cast<std::byte*>(image.data()), image.size(), most);
  if (left_out != nullptr) *left_out = left;
  return image;
}

uint32_t Bits(float value) { return std::bit_cast<uint32_t>(value); }

TEST(LargestChanges, AreThoseThatAreLargestRelativeToTheElement) {
  uint64_t left = 0;
  EXPECT_EQ(Take({100, 1, 8, 0}, {101, 1.5, 8, 1e-6F}, 2, &left),
            (std::vector<float>{100, 1.5, 8, 1e-6F}));
  EXPECT_EQ(left, 1u);
  EXPECT_EQ(Take({100, 1, 8, 0}, {101, 1.5, 8, 1e-6F}, 3, &left),
            (std::vector<float>{101, 1.5, 8, 1e-6F}));
  EXPECT_EQ(left, 0u);
  EXPECT_EQ(Take({100, 1}, {101, 2}, 0, &left), (std::vector<float>{100, 1}));
  EXPECT_EQ(left, 2u);
}

TEST(LargestChanges, OfEqualOnesTheFirstAreTaken) {
  EXPECT_EQ(Take({1, 2, 4, 8}, {2, 4, 8, 16}, 2), (std::vector<float>{2, 4, 4, 8}));
}

TEST(LargestChanges, ANanOrAnInfinityThatComesOrGoesIsTheLargest) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const auto& [before, newest] :
       {std::pair(1.0F, kNan), std::pair(kNan, 1.0F), std::pair(1.0F, kInf), std::pair(kInf, 1.0F),
        std::pair(kInf, -kInf)}) {
    const std::vector<float> taken = Take({1, before, 1}, {-1, newest, -1}, 1);
    EXPECT_EQ(Bits(taken[1]), Bits(newest)) << before << " to " << newest;
  }
}

TEST(LargestChanges, AZeroThatChangesItsSignIsTheSmallest) {
  const std::vector<float> taken = Take({0.0F, 1}, {-0.0F, std::nextafter(1.0F, 2.0F)}, 1);
  EXPECT_EQ(Bits(taken[0]), Bits(0.0F));
  EXPECT_EQ(Bits(Take({0.0F}, {-0.0F}, 1)[0]), Bits(-0.0F));
}

// Sorts all of them, which is slow and simple.
TEST(LargestChanges, AreWhatASortByRelativeChangeFindsInEveryType) {
  std::mt19937 random(1);
  LargestChanges changes;
  for (const Wide type : {Wide::kF32, Wide::kF16, Wide::kBf16}) {
    const size_t width = kernels::SizeBytes(type);
    for (const size_t elements : {size_t{1}, size_t{1000}, LargestChanges::kBlockElements}) {
      std::vector<float> before(elements), newest(elements);
      std::vector<std::byte> image(elements * width), tensor(elements * width);
      // The values are exact in every type: 6 bits, and 4 exponents.
      const auto make = [&] {
        return std::ldexp(static_cast<float>(64 + random() % 64), static_cast<int>(random() % 4));
      };
      const auto put = [&](float value, std::byte* place) {
        uint16_t bits = static_cast<uint16_t>(Bits(value) >> 16);
        if (type == Wide::kF16) bits = static_cast<uint16_t>((Bits(value) - (112U << 23)) >> 13);
        std::memcpy(place, type == Wide::kF32 ? static_cast<const void*>(&value) : &bits, width);
      };
      for (size_t i = 0; i < elements; ++i) {
        before[i] = make();
        newest[i] = random() % 2 == 0 ? make() : before[i];
        put(before[i], &image[i * width]);
        put(newest[i], &tensor[i * width]);
      }
      std::vector<size_t> order(elements);
      std::iota(order.begin(), order.end(), 0);
      const auto change = [&](size_t i) {
        return std::abs(newest[i] - before[i]) / std::max(newest[i], before[i]);
      };
      std::stable_sort(order.begin(), order.end(),
                       [&](size_t a, size_t b) { return change(a) > change(b); });
      const auto changed = static_cast<size_t>(
          std::count_if(order.begin(), order.end(), [&](size_t i) { return change(i) > 0; }));
      for (const size_t most : {elements / 100, elements / 4, elements}) {
        std::vector<std::byte> taken = image, wanted = image;
        for (size_t k = 0; k < std::min(most, changed); ++k) {
          std::memcpy(&wanted[order[k] * width], &tensor[order[k] * width], width);
        }
        EXPECT_EQ(changes.Take(type, tensor.data(), taken.data(), elements, most),
                  changed - std::min(most, changed));
        EXPECT_EQ(taken, wanted) << elements << " elements, " << most;
      }
    }
  }
}

}  // namespace
}  // namespace waybill
