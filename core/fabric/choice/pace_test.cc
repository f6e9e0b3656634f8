// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/choice/pace.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace waybill::choice {
namespace {

constexpr uint64_t kRate = 100'000'000;  // Bytes a second.
constexpr uint64_t kPost = 4 << 20;
const absl::Time kBegin = absl::FromUnixSeconds(1000);

// Posts as often as the pace lets it, by a thread that wakes up to `late` late, and returns when it
// posted.
std::vector<absl::Time> PostsOf(Pace& pace, int count, absl::Duration late) {
  std::mt19937 random(1);
  std::vector<absl::Time> posts;
  absl::Time now = kBegin;
  for (int i = 0; i < count; ++i) {
    if (!pace.Allows(now)) {
      now = pace.next() + late * (static_cast<double>(random() % 1000) / 1000);
    }
    posts.push_back(now);
    pace.Count(kPost, now);
  }
  return posts;
}

TEST(Pace, AThreadThatWakesLateSendsAtTheRate) {
  Pace pace(kRate);
  constexpr int kPosts = 1000;
  const std::vector<absl::Time> posts = PostsOf(pace, kPosts, Pace::kCredit);
  const double seconds = absl::ToDoubleSeconds(posts.back() - posts.front());
  EXPECT_NEAR((kPosts - 1) * double{kPost} / seconds, kRate, kRate * 0.002);
}

TEST(Pace, NoTimeHasMoreThanTheRateTheCreditAndOnePost) {
  Pace pace(kRate);
  std::vector<absl::Time> posts = PostsOf(pace, 200, 3 * Pace::kCredit);
  for (size_t first = 0; first < posts.size(); ++first) {
    for (size_t last = first; last < posts.size(); ++last) {
      const absl::Duration time = posts[last] - posts[first] + Pace::kCredit;
      EXPECT_LE(static_cast<double>((last - first) * kPost),
                kRate * absl::ToDoubleSeconds(time) + 1);
    }
  }
}

TEST(Pace, WhatALongPauseDidNotSendIsNotMadeUpFor) {
  Pace pace(kRate);
  pace.Count(kPost, kBegin);
  const absl::Time later = kBegin + absl::Hours(1);
  pace.Count(kPost, later);
  EXPECT_EQ(pace.next(), later + absl::Seconds(double{kPost} / kRate));
}

TEST(Pace, WithoutALimitThereIsAlwaysRoom) {
  Pace pace(0);
  EXPECT_FALSE(pace.is_limited());
  pace.Count(uint64_t{1} << 60, kBegin);
  EXPECT_EQ(pace.next(), absl::InfinitePast());
}

TEST(Pace, ARateOfManyBytesANanosecondIsExact) {
  Pace pace(50'000'000'000);
  pace.Count(kPost, kBegin);
  EXPECT_EQ(pace.next(), kBegin + absl::Nanoseconds(kPost / 50.0));
}

}  // namespace
}  // namespace waybill::choice
