// SPDX-License-Identifier: Apache-2.0

#include "kernels/memory_bound.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/test_bytes.h"

namespace waybill::kernels {
namespace {

TEST(MeasureCopyRate, CopiesEverythingWithAnyNumberOfThreads) {
  const SkewedBytes src = SkewedBytes::Mixed(1 << 20, 3);
  for (const size_t threads : {0, 1, 2, 3, 7}) {
    SkewedBytes dst(src.size());
    EXPECT_GT(MeasureCopyRate(dst.data(), src.data(), src.size(), threads, 2), 0);
    EXPECT_TRUE(std::equal(src.data(), src.data() + src.size(), dst.data()));
    EXPECT_TRUE(dst.GuardsHold());
  }
}

TEST(MeasureReadRate, IsPositiveForAnyNumberOfThreads) {
  const SkewedBytes src = SkewedBytes::Mixed(1 << 20);
  for (const size_t threads : {1, 2, 5}) {
    EXPECT_GT(MeasureReadRate(src.data(), src.size(), threads, 2), 0);
  }
}

TEST(MemoryBound, NothingIsCopiedAtNoRate) {
  EXPECT_EQ(MeasureCopyRate(nullptr, nullptr, 0, 1, 1), 0);
}

}  // namespace
}  // namespace waybill::kernels
