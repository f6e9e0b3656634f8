// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/progress.h"

#include <gtest/gtest.h>

#include <deque>
#include <vector>

#include "core/base/steady_now.h"

namespace waybill {
namespace {

template <typename Events>
Events Ten() {
  Events events;
  for (uint64_t i = 0; i < 10; ++i) events.push_back({.token = i});
  return events;
}

TEST(HandOut, AVectorThatReservedTakesAsManyAsItHasRoomForTheOldestFirst) {
  std::vector<FabricEvent> events;
  events.reserve(4);
  ASSERT_EQ(events.capacity(), 4u);
  events.push_back({.token = 77});
  std::vector<FabricEvent> own = Ten<std::vector<FabricEvent>>();
  HandOut(own, events);
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events.capacity(), 4u);
  EXPECT_EQ(events[0].token, 77u);
  for (uint64_t i = 0; i < 3; ++i) EXPECT_EQ(events[1 + i].token, i);
  ASSERT_EQ(own.size(), 7u);
  EXPECT_EQ(own.front().token, 3u);
  HandOut(own, events);
  EXPECT_EQ(events.size(), 4u);
  EXPECT_EQ(own.size(), 7u);
}

TEST(HandOut, AVectorThatReservedNothingTakesAll) {
  std::vector<FabricEvent> events;
  std::deque<FabricEvent> own = Ten<std::deque<FabricEvent>>();
  HandOut(own, events);
  ASSERT_EQ(events.size(), 10u);
  for (uint64_t i = 0; i < 10; ++i) EXPECT_EQ(events[i].token, i);
  EXPECT_TRUE(own.empty());
}

TEST(MillisecondsUntil, NeverEndsBeforeTheDeadlineNorBlocksForEver) {
  EXPECT_EQ(MillisecondsUntil(absl::InfinitePast()), 0);
  EXPECT_EQ(MillisecondsUntil(absl::InfiniteFuture()), 3'600'000);
  const absl::Time deadline = SteadyNow() + absl::Microseconds(1'500'100);
  EXPECT_GE(SteadyNow() + absl::Milliseconds(MillisecondsUntil(deadline)), deadline);
}

}  // namespace
}  // namespace waybill
