// SPDX-License-Identifier: Apache-2.0

#include "core/base/plain_text.h"

#include <gtest/gtest.h>

#include <ostream>
#include <string>

namespace waybill {
namespace {

struct Case {
  const char* name;
  std::string text;
  bool is_utf8;
  bool is_plain;
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

class PlainTextTest : public testing::TestWithParam<Case> {};

TEST_P(PlainTextTest, OnlyWhatATerminalShowsAsItselfIsPlain) {
  EXPECT_EQ(IsUtf8(GetParam().text), GetParam().is_utf8);
  EXPECT_EQ(IsPlainText(GetParam().text), GetParam().is_plain);
}

INSTANTIATE_TEST_SUITE_P(
    Texts, PlainTextTest,
    testing::Values(
        Case{"empty", "", true, true}, Case{"letters", "rollout-7 ä 語 😀", true, true},
        Case{"escape", "a\x1b[2J", true, false}, Case{"newline", "a\nb", true, false},
        Case{"nul", std::string("a\0b", 3), true, false}, Case{"delete", "a\x7f", true, false},
        Case{"c1", "a\u009b2J", true, false}, Case{"first_after_c1", "\u00a0", true, true},
        Case{"bidirectional_override", "a\u202eb", true, false},
        Case{"bidirectional_isolate", "a\u2066b", true, false},
        Case{"line_separator", "a\u2028b", true, false}, Case{"byte_of_c1", "a\x9b", false, false},
        Case{"cut", "a\xe2\x82", false, false}, Case{"overlong", "\xc0\x80", false, false},
        Case{"surrogate", "\xed\xa0\x80", false, false}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace waybill
