// SPDX-License-Identifier: Apache-2.0

#include "core/tensor/region_cover.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "core/tensor/runs.h"

namespace waybill {
namespace {

struct Array {
  uint64_t offset;
  std::vector<int64_t> extents;
  std::vector<int64_t> strides;
};

constexpr uint32_t kElementBytes = 2;

std::vector<ByteClaim> ClaimsOf(const std::vector<Array>& arrays) {
  std::vector<ByteClaim> claims;
  for (uint32_t i = 0; i < arrays.size(); ++i) {
    const auto claim =
        MakeByteClaim(i, arrays[i].offset, arrays[i].extents, arrays[i].strides, kElementBytes);
    if (claim) claims.push_back(*claim);
  }
  return claims;
}

// The definition itself: walks every run and counts how often each byte is in one.
std::vector<int> CountsByWalking(const std::vector<Array>& arrays, uint64_t size) {
  std::vector<int> counts(size);
  for (const Array& array : arrays) {
    ForEachRun(array.extents, array.strides, kElementBytes, [&](uint64_t offset, uint64_t bytes) {
      for (uint64_t i = 0; i < bytes; ++i) ++counts.at(array.offset + offset + i);
    });
  }
  return counts;
}

// Checks the verdict against `counts`, and that the bytes which a fault names are wrong.
void ExpectRight(const std::vector<Array>& arrays, uint64_t size) {
  const std::vector<int> counts = CountsByWalking(arrays, size);
  CoverBudget budget;
  const auto fault = CheckRegionCover(ClaimsOf(arrays), size, budget);
  const bool filled = std::all_of(counts.begin(), counts.end(), [](int n) { return n == 1; });
  ASSERT_EQ(!fault, filled);
  if (!fault) return;
  ASSERT_NE(fault->kind, CoverFault::Kind::kFragmented);
  ASSERT_LT(fault->begin, fault->end);
  for (uint64_t i = fault->begin; i < fault->end; ++i) {
    if (fault->kind == CoverFault::Kind::kHole) {
      ASSERT_EQ(counts[i], 0) << "byte " << i;
    } else {
      ASSERT_GT(counts[i], 1) << "byte " << i;
    }
  }
}

// Cuts a dense array of `shape` at `offset` into two along a random dimension, again and again.
void CutAtRandom(std::mt19937& random, const Array& whole, int cuts, std::vector<Array>& out) {
  const auto pick = [&](int64_t below) {
    return std::uniform_int_distribution<int64_t>(0, below - 1)(random);
  };
  const auto d = static_cast<size_t>(pick(static_cast<int64_t>(whole.extents.size())));
  if (cuts == 0 || whole.extents[d] < 2) {
    out.push_back(whole);
    return;
  }
  Array before = whole, after = whole;
  before.extents[d] = 1 + pick(whole.extents[d] - 1);
  after.extents[d] -= before.extents[d];
  after.offset += static_cast<uint64_t>(before.extents[d] * whole.strides[d]) * kElementBytes;
  CutAtRandom(random, before, cuts - 1, out);
  CutAtRandom(random, after, cuts - 1, out);
}

TEST(RegionCover, AgreesWithWalkingEveryByte) {
  std::mt19937 random(7);
  const auto pick = [&](int64_t from, int64_t to) {
    return std::uniform_int_distribution<int64_t>(from, to)(random);
  };
  for (int trial = 0; trial < 20000; ++trial) {
    SCOPED_TRACE(trial);
    Array whole{.offset = 0, .extents = {}, .strides = {}};
    int64_t elements = 1;
    for (int64_t d = pick(1, 4); d > 0; --d) {
      whole.extents.push_back(pick(1, 6));
      whole.strides.push_back(elements);
      elements *= whole.extents.back();
    }
    std::vector<Array> arrays;
    CutAtRandom(random, whole, static_cast<int>(pick(0, 4)), arrays);
    const auto size = static_cast<uint64_t>(elements) * kElementBytes;
    ASSERT_NO_FATAL_FAILURE(ExpectRight(arrays, size));

    // And spoilt: one array has another stride, extent or offset.
    Array& spoilt = arrays[static_cast<size_t>(pick(0, static_cast<int64_t>(arrays.size()) - 1))];
    const auto d = static_cast<size_t>(pick(0, static_cast<int64_t>(whole.extents.size()) - 1));
    switch (pick(0, 2)) {
      case 0:
        spoilt.strides[d] = pick(0, 8);
        break;
      case 1:
        spoilt.extents[d] = pick(0, 6);
        break;
      default:
        spoilt.offset += static_cast<uint64_t>(pick(1, 4));
    }
    uint64_t last = spoilt.offset + kElementBytes;
    bool empty = false;
    for (size_t i = 0; i < spoilt.extents.size(); ++i) {
      empty = empty || spoilt.extents[i] == 0;
      last += static_cast<uint64_t>((spoilt.extents[i] - 1) * spoilt.strides[i]) * kElementBytes;
    }
    if (!empty && last > size) continue;  // CheckManifest() refuses it before.
    ASSERT_NO_FATAL_FAILURE(ExpectRight(arrays, size));
  }
}

// Checks that such claims end the budget, and with it the work.
void ExpectTooManyPieces(const std::vector<Array>& arrays, uint64_t size) {
  CoverBudget budget;
  const auto fault = CheckRegionCover(ClaimsOf(arrays), size, budget);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->kind, CoverFault::Kind::kFragmented);
  EXPECT_LT(budget.pieces_left, CoverBudget().pieces_left);
}

TEST(RegionCover, WorkIsBoundedWithoutACommonPeriod) {
  // In each twelve elements, two arrays take every fourth one, and three take every sixth.
  const int64_t twelves = int64_t{1} << 40;
  std::vector<Array> arrays = {{0, {3 * twelves}, {4}},
                               {4, {3 * twelves}, {4}},
                               {2, {2 * twelves}, {6}},
                               {6, {2 * twelves}, {6}},
                               {10, {2 * twelves}, {6}}};
  ExpectTooManyPieces(arrays, static_cast<uint64_t>(twelves) * 12 * kElementBytes);
  for (Array& array : arrays) array.extents[0] /= twelves / 1000;
  ExpectRight(arrays, 1000 * 12 * kElementBytes);
}

TEST(RegionCover, WorkIsBoundedWhereEveryPeriodDiffers) {
  std::vector<Array> arrays;
  constexpr int64_t kColumns = 3000, kRows = 5000;
  for (int64_t i = 0; i < kColumns; ++i) {
    const int64_t rows = 1000 + i;
    const auto column = static_cast<uint64_t>(i) * kElementBytes;
    arrays.push_back({column, {rows}, {kColumns}});
    arrays.push_back({column + static_cast<uint64_t>(rows * kColumns) * kElementBytes,
                      {kRows - rows},
                      {kColumns}});
  }
  ExpectTooManyPieces(arrays, uint64_t{kRows * kColumns} * kElementBytes);
}

TEST(RegionCover, StridesThatAreNotNestedAreWalked) {
  // Elements {0, 2} + {0, 3} are 0, 2, 3, 5.
  ExpectRight({{0, {2, 2}, {2, 3}}, {2, {2}, {3}}}, 12);
  ExpectRight({{0, {2, 2}, {2, 3}}, {2, {2}, {2}}}, 12);
  ExpectTooManyPieces({{0, {int64_t{1} << 30, int64_t{1} << 30}, {2, 3}}}, uint64_t{1} << 40);
}

}  // namespace
}  // namespace waybill
