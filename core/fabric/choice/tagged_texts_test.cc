// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/choice/tagged_texts.h"

#include <gtest/gtest.h>

namespace waybill::choice {
namespace {

TEST(TaggedTexts, WhatWasJoinedIsSplit) {
  for (const TaggedTexts& texts :
       {TaggedTexts{}, TaggedTexts{{"tcp", ""}},
        TaggedTexts{{"local", "a/b:3:"}, {"verbs", "1,2,,:"}, {"tcp", "10.0.0.1:80/5"}}}) {
    const auto split = Split(Join(texts));
    ASSERT_TRUE(split.ok()) << split.status();
    EXPECT_EQ(*split, texts);
  }
}

TEST(TaggedTexts, WhatIsNoneIsRefused) {
  for (const char* text : {"x", ":", "tcp:", "tcp:x:", "tcp:4:abc", "tcp:-1:a", "tcp:1:ab",
                           "tcp:99999999999999999999:a"}) {
    EXPECT_EQ(Split(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace waybill::choice
