// SPDX-License-Identifier: Apache-2.0

#include "core/base/deflate.h"

#include <gtest/gtest.h>

#include <string>

namespace waybill {
namespace {

TEST(Deflate, WhatIsInflatedIsWhatWasDeflated) {
  const std::string numbers = "0, 1, 2, 3, 4, 5, 6, 7";
  for (const std::string& bytes : {std::string(), numbers, std::string(1 << 20, 'x')}) {
    EXPECT_EQ(*Inflate(Deflate(bytes), bytes.size()), bytes);
  }
  EXPECT_LT(Deflate(std::string(1 << 20, 'x')).size(), 8192u);
}

TEST(Inflate, RefusesMoreThanTheCallerTakes) {
  EXPECT_EQ(Inflate(Deflate("abcd"), 3).status().message(),
            "compressed: 20 bytes that say they hold 4, at most 3 are taken");
}

TEST(Inflate, RefusesASizeThatNoCompressionReaches) {
  std::string claim(64, '\0');
  claim[5] = 1;  // 2^40.
  EXPECT_EQ(Inflate(claim, ~size_t{0}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Inflate, RefusesTruncatedAndChangedBytes) {
  const std::string whole = Deflate("the quick brown fox jumps over the lazy dog");
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(Inflate(whole.substr(0, size), 100).ok()) << size;
  }
  std::string changed = whole;
  changed[20] ^= 1;
  EXPECT_FALSE(Inflate(changed, 100).ok());
}

}  // namespace
}  // namespace waybill
