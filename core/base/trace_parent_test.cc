// SPDX-License-Identifier: Apache-2.0

#include "core/base/trace_parent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace waybill {
namespace {

using ::testing::HasSubstr;

constexpr const char* kTrace = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr const char* kSpan = "00f067aa0ba902b7";

TEST(TraceParent, TheStandardsExampleIsRead) {
  const auto parent = ParseTraceParent(absl::StrCat("00-", kTrace, "-", kSpan, "-01"));
  ASSERT_TRUE(parent.ok()) << parent.status();
  EXPECT_EQ(absl::BytesToHexString(parent->trace_id), kTrace);
  EXPECT_EQ(absl::BytesToHexString(parent->span_id), kSpan);
  EXPECT_TRUE(parent->sampled);
}

TEST(TraceParent, OnlyTheLastBitOfTheFlagsSaysThatItIsSampled) {
  EXPECT_FALSE(ParseTraceParent(absl::StrCat("00-", kTrace, "-", kSpan, "-00"))->sampled);
  EXPECT_FALSE(ParseTraceParent(absl::StrCat("00-", kTrace, "-", kSpan, "-fe"))->sampled);
  EXPECT_TRUE(ParseTraceParent(absl::StrCat("00-", kTrace, "-", kSpan, "-ff"))->sampled);
}

TEST(TraceParent, ALaterVersionMayAppendFields) {
  EXPECT_TRUE(ParseTraceParent(absl::StrCat("01-", kTrace, "-", kSpan, "-01-more")).ok());
  EXPECT_FALSE(ParseTraceParent(absl::StrCat("01-", kTrace, "-", kSpan, "-01more")).ok());
  EXPECT_FALSE(ParseTraceParent(absl::StrCat("00-", kTrace, "-", kSpan, "-01-more")).ok());
}

TEST(TraceParent, WhatIsNoTraceparentIsRefusedWithWhatItShouldBe) {
  for (const std::string& text :
       {std::string(), std::string("00-abc-def-01"), absl::StrCat("ff-", kTrace, "-", kSpan, "-01"),
        absl::StrCat("00-", kTrace, "-", kSpan, "-0g"),
        absl::StrCat("00-", "4BF92F3577B34DA6A3CE929D0E0E4736", "-", kSpan, "-01"),
        absl::StrCat("00-", std::string(32, '0'), "-", kSpan, "-01"),
        absl::StrCat("00-", kTrace, "-", std::string(16, '0'), "-01"),
        absl::StrCat("00_", kTrace, "-", kSpan, "-01")}) {
    const auto parent = ParseTraceParent(text);
    EXPECT_TRUE(absl::IsInvalidArgument(parent.status())) << text;
    EXPECT_THAT(parent.status().message(), HasSubstr("VERSION-TRACE-SPAN-FLAGS")) << text;
  }
}

}  // namespace
}  // namespace waybill
