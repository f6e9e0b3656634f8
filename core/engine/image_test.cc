// SPDX-License-Identifier: Apache-2.0

#include "core/engine/image.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <vector>

namespace waybill {
namespace {

using ::testing::HasSubstr;

// Wakes whoever waits for a copy.
class Alarm {
 public:
  void Ring() {
    const std::lock_guard lock(mutex_);
    rang_ = true;
    changed_.notify_all();
  }
  void Await() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return rang_; });
    rang_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool rang_ = false;
};

// The bytes stay where they are.
void Fill(std::vector<std::byte>& bytes, size_t seed) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(i * 31 + i / 251 + seed);
  }
}

MemorySpan SpanOf(std::vector<std::byte>& bytes) {
  return {.kind = MemoryKind::kHost, .data = bytes.data(), .size_bytes = bytes.size()};
}

class ImageTest : public testing::TestWithParam<uint32_t> {};

TEST_P(ImageTest, ACopyHasTheBytesThatTheRegionsHadAndKeepsThem) {
  std::vector<std::byte> small(3), large((9 << 20) + 5), none;
  const std::vector<MemorySpan> regions = {SpanOf(small), SpanOf(none), SpanOf(large)};
  Alarm alarm;
  const auto image =
      Image::Create(regions, VersionsKept::kNewest, GetParam(), [&] { alarm.Ring(); });
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ((*image)->TakeEnd(), std::nullopt);
  for (size_t round = 0; round < 3; ++round) {
    Fill(small, round);
    Fill(large, 7 * round);
    (*image)->BeginCopy(round + 1);
    alarm.Await();
    EXPECT_EQ((*image)->TakeEnd(), absl::OkStatus());
    EXPECT_EQ((*image)->TakeEnd(), std::nullopt);
    const std::vector<std::byte> before[] = {small, none, large};
    std::fill(small.begin(), small.end(), std::byte{0xEE});
    std::fill(large.begin(), large.end(), std::byte{0xEE});
    ASSERT_EQ((*image)->regions().size(), 3u);
    for (size_t r = 0; r < 3; ++r) {
      const MemorySpan& copy = (*image)->regions()[r];
      EXPECT_EQ(copy.kind, MemoryKind::kHost);
      EXPECT_EQ(std::vector<std::byte>(copy.data, copy.data + copy.size_bytes), before[r]) << r;
    }
  }
}

TEST_P(ImageTest, ACopyThatIsGivenUpHasNoEndAndTheNextOneIsWhole) {
  std::vector<std::byte> large(32 << 20);
  const std::vector<MemorySpan> regions = {SpanOf(large)};
  Alarm alarm;
  const auto image =
      Image::Create(regions, VersionsKept::kNewest, GetParam(), [&] { alarm.Ring(); });
  ASSERT_TRUE(image.ok()) << image.status();
  (*image)->BeginCopy(1);
  (*image)->Cancel();
  EXPECT_EQ((*image)->TakeEnd(), std::nullopt);
  Fill(large, 7);
  (*image)->BeginCopy(2);
  alarm.Await();
  while (!(*image)->TakeEnd()) alarm.Await();  // The first one may have rung.
  EXPECT_TRUE(std::equal(large.begin(), large.end(), (*image)->regions()[0].data));
}

TEST_P(ImageTest, TheVersionBeforeIsKeptUntilACopyIsGivenUp) {
  std::vector<std::byte> small(3), large((9 << 20) + 5);
  const std::vector<MemorySpan> regions = {SpanOf(small), SpanOf(large)};
  Alarm alarm;
  const auto image = Image::Create(regions, VersionsKept::kTwo, GetParam(), [&] { alarm.Ring(); });
  ASSERT_TRUE(image.ok()) << image.status();
  const auto copy = [&](uint64_t version) {
    (*image)->BeginCopy(version);
    alarm.Await();
    while (!(*image)->TakeEnd()) alarm.Await();
  };
  std::vector<std::byte> before[2];
  for (uint64_t version : {3, 5, 6}) {
    Fill(small, version);
    Fill(large, 7 * version);
    copy(version);
    EXPECT_EQ((*image)->version_before(), version == 3 ? 0u : version == 5 ? 3u : 5u);
    for (size_t r = 0; r < 2; ++r) {
      const auto& now = r == 0 ? small : large;
      EXPECT_TRUE(std::equal(now.begin(), now.end(), (*image)->regions()[r].data)) << version;
      if (version > 3) {
        const std::byte* const kept = (*image)->regions_before()[r].data;
        EXPECT_TRUE(std::equal(before[r].begin(), before[r].end(), kept)) << version;
      }
      before[r] = now;
    }
  }
  (*image)->BeginCopy(7);
  (*image)->Cancel();
  EXPECT_EQ((*image)->version_before(), 0u);
  copy(8);
  EXPECT_EQ((*image)->version_before(), 0u);  // What was copied of version 7 is unknown.
  copy(9);
  EXPECT_EQ((*image)->version_before(), 8u);
}

INSTANTIATE_TEST_SUITE_P(Threads, ImageTest, testing::Values(0, 1, 3));

TEST(Image, ThatDoesNotFitIsRefusedWithWhatItCostsToDoWithout) {
  std::byte byte{};
  const MemorySpan huge = {
      .kind = MemoryKind::kHost, .data = &byte, .size_bytes = uint64_t{1} << 46};
  const absl::Status status =
      Image::Create({&huge, 1}, VersionsKept::kNewest, /*threads=*/0, [] {}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("70368744177664 bytes of host memory"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("must not change meanwhile"));
}

}  // namespace
}  // namespace waybill
