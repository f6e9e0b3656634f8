// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/command_line/printable.h"

#include <gtest/gtest.h>

namespace waybill {
namespace {

TEST(Printable, LeavesWhatATerminalShowsAndEscapesTheRest) {
  EXPECT_EQ(Printable("group ä 語:\n  waits"), "group ä 語:\n  waits");
  EXPECT_EQ(Printable("a\x1b[2J\rb"), "a\\x1b[2J\\x0db");
  EXPECT_EQ(Printable("a\u009b2J \u202egpj"), "a\\u009b2J \\u202egpj");
  EXPECT_EQ(Printable("a\xff\xe2\x82"), "a\\xff\\xe2\\x82");
}

}  // namespace
}  // namespace waybill
