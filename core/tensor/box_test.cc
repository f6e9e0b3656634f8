// SPDX-License-Identifier: Apache-2.0

#include "core/tensor/box.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "core/tensor/runs.h"

namespace waybill {
namespace {

Box Make(std::vector<int64_t> begin, std::vector<int64_t> end) { return Box(begin, end); }

TEST(Box, HalfOpenRangesThatTouchDoNotMeet) {
  EXPECT_TRUE(Intersect(Make({0}, {4}), Make({4}, {8})).empty());
  EXPECT_EQ(Intersect(Make({0, 2}, {4, 9}), Make({3, 0}, {8, 5})), Make({3, 2}, {4, 5}));
  EXPECT_EQ(Make({3, 2}, {4, 5}).element_count(), 3);
  EXPECT_EQ(Make({3, 6}, {4, 5}).element_count(), 0);
}

TEST(Box, AScalarHasOneElement) {
  EXPECT_EQ(Box().element_count(), 1);
  EXPECT_EQ(ToString(Box()), "scalar");
  EXPECT_EQ(ToString(Make({0, 128}, {512, 256})), "[0, 512) x [128, 256)");
}

TEST(Box, AnEmptyBoxIsInEveryBox) {
  EXPECT_TRUE(Make({0}, {4}).Contains(Make({9}, {9})));
  EXPECT_FALSE(Make({0}, {4}).Contains(Make({3}, {5})));
}

TEST(Strides, LastDimensionIsFastest) {
  std::vector<int64_t> strides(3);
  RowMajorStrides({2, 3, 4}, absl::MakeSpan(strides));
  EXPECT_EQ(strides, (std::vector<int64_t>{12, 4, 1}));
}

// Every byte of every element, by the definition of a place.
std::vector<uint64_t> BytesByDefinition(const std::vector<int64_t>& extents,
                                        const std::vector<int64_t>& strides, uint32_t size) {
  std::vector<uint64_t> elements = {0};
  for (size_t d = 0; d < extents.size(); ++d) {
    std::vector<uint64_t> next;
    for (const uint64_t base : elements) {
      for (int64_t i = 0; i < extents[d]; ++i) {
        next.push_back(base + static_cast<uint64_t>(i * strides[d]) * size);
      }
    }
    elements = next;
  }
  std::vector<uint64_t> bytes;
  for (const uint64_t e : elements) {
    for (uint32_t b = 0; b < size; ++b) bytes.push_back(e + b);
  }
  std::sort(bytes.begin(), bytes.end());
  return bytes;
}

TEST(Runs, CoverEveryByteOfTheArrayInMemoryOrder) {
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    const size_t dimensions = random() % 5;
    std::vector<int64_t> extents, strides(dimensions);
    for (size_t d = 0; d < dimensions; ++d) extents.push_back(random() % 4);
    std::vector<size_t> order(dimensions);
    for (size_t d = 0; d < dimensions; ++d) order[d] = d;
    std::shuffle(order.begin(), order.end(), random);
    int64_t stride = 1;
    for (const size_t d : order) {
      strides[d] = stride;
      stride *= std::max<int64_t>(extents[d], 1) + random() % 2;
    }
    std::vector<uint64_t> bytes;
    uint64_t end = 0;
    ForEachRun(extents, strides, 2, [&](uint64_t offset, uint64_t size) {
      EXPECT_TRUE(bytes.empty() || offset >= end);
      end = offset + size;
      for (uint64_t b = 0; b < size; ++b) bytes.push_back(offset + b);
    });
    EXPECT_EQ(bytes, BytesByDefinition(extents, strides, 2)) << "round " << round;
  }
}

TEST(Runs, ContiguousDimensionsAreOneRun) {
  int runs = 0;
  const auto count = [&](uint64_t, uint64_t) { ++runs; };
  ForEachRun({4, 3, 8}, {24, 8, 1}, 2, count);
  EXPECT_EQ(runs, 1);
  ForEachRun({4, 3, 8}, {32, 8, 1}, 2, count);
  EXPECT_EQ(runs, 1 + 4);
  ForEachRun({8, 4}, {1, 8}, 2, count);  // Another axis order, and dense.
  EXPECT_EQ(runs, 1 + 4 + 1);
}

TEST(Box, CountsTheElementsOfAnyBoxWithoutOverflow) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  const auto count = [](std::vector<int64_t> begin, std::vector<int64_t> end) {
    return CheckedElementCount(Box(begin, end));
  };
  EXPECT_EQ(count({}, {}), 1);
  EXPECT_EQ(count({1, 2}, {3, 5}), 6);
  EXPECT_EQ(count({0, 0, 0}, {kMax, kMax, 0}), 0);
  EXPECT_EQ(count({0, 0}, {int64_t{1} << 31, int64_t{1} << 31}), std::nullopt);
  EXPECT_EQ(count({0, 0}, {kMax, 2}), std::nullopt);
  EXPECT_EQ(count({-1}, {2}), std::nullopt);
  EXPECT_EQ(count({3, 0}, {2, 0}), std::nullopt);
  EXPECT_EQ(count({std::numeric_limits<int64_t>::min()}, {kMax}), std::nullopt);
}

}  // namespace
}  // namespace waybill
