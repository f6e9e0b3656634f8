// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/polled_clock.h"

#include <gtest/gtest.h>

namespace waybill {
namespace {

TEST(PolledClock, CountsOnlyAPartOfLongPauses) {
  absl::Time now = absl::UnixEpoch();
  PolledClock clock([&] { return now; });
  now += absl::Milliseconds(70);
  EXPECT_EQ(clock.Look(), absl::UnixEpoch() + absl::Milliseconds(70));
  now += absl::Seconds(100);
  EXPECT_EQ(clock.Look(), absl::UnixEpoch() + absl::Milliseconds(270));
  now -= absl::Seconds(100);  // The system's clock was set back.
  EXPECT_EQ(clock.Look(), absl::UnixEpoch() + absl::Milliseconds(270));
  now += absl::Milliseconds(1);
  EXPECT_EQ(clock.Look(), absl::UnixEpoch() + absl::Milliseconds(271));
}

}  // namespace
}  // namespace waybill
