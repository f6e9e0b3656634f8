// SPDX-License-Identifier: Apache-2.0

#include "core/engine/image.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
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
      Image::Create(Manifest(), regions, VersionsKept::kNewest, GetParam(), [&] { alarm.Ring(); });
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
      Image::Create(Manifest(), regions, VersionsKept::kNewest, GetParam(), [&] { alarm.Ring(); });
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
  const auto image =
      Image::Create(Manifest(), regions, VersionsKept::kTwo, GetParam(), [&] { alarm.Ring(); });
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

// A contiguous and a transposed matrix of floats, and five integers.
class ApproximateImageTest : public testing::TestWithParam<uint32_t> {
 protected:
  static constexpr int64_t kRows = 3, kColumns = 1 << 20, kSide = 300;

  ApproximateImageTest() : matrix_(kRows * kColumns), transposed_(kSide * kSide), counter_(5) {
    Manifest manifest;
    AddShard(manifest, "matrix", matrix_, {kRows, kColumns}, {kColumns, 1}, Dtype::kF32);
    AddShard(manifest, "transposed", transposed_, {kSide, kSide}, {1, kSide}, Dtype::kF32);
    AddShard(manifest, "counter", counter_, {5}, {1}, Dtype::kI32);
    image_ = Image::Create(manifest, regions_, VersionsKept::kTwo, GetParam(), [this] {
               alarm_.Ring();
             }).value();
  }

  template <typename T>
  void AddShard(Manifest& manifest, const char* name, std::vector<T>& data,
                const std::vector<int64_t>& shape, const std::vector<int64_t>& strides,
                Dtype dtype) {
    const uint32_t region = manifest.AddRegion(name, data.size() * sizeof(T));
    const uint32_t tensor = manifest.AddTensor(name, shape, dtype);
    manifest.AddShard(tensor, {dtype}, Box::Whole(shape),
                      {.region_index = region, .offset_bytes = 0, .strides = strides});
    regions_.push_back({.kind = MemoryKind::kHost,
                        .data = reinterpret_cast<std::byte*>(data.data()),
                        .size_bytes = data.size() * sizeof(T)});
  }

  void Copy(uint64_t version, const Selection& selection) {
    image_->BeginCopy(version, selection);
    alarm_.Await();
    while (!image_->TakeEnd()) alarm_.Await();
  }

  // Element i of all grows by i % 1000 / 1000 of itself.
  void Train() {
    for (auto* const data : {&matrix_, &transposed_}) {
      for (size_t i = 0; i < data->size(); ++i) {
        (*data)[i] += (*data)[i] * static_cast<float>(i % 1000) / 1000;
      }
    }
    for (int32_t& count : counter_) ++count;
  }

  template <typename T>
  std::vector<T> Copied(uint32_t region) const {
    const MemorySpan& copy = image_->regions()[region];
    std::vector<T> data(copy.size_bytes / sizeof(T));
    std::memcpy(data.data(), copy.data, copy.size_bytes);
    return data;
  }

  std::vector<float> matrix_, transposed_;
  std::vector<int32_t> counter_;
  std::vector<MemorySpan> regions_;
  Alarm alarm_;
  std::unique_ptr<Image> image_;
};

TEST_P(ApproximateImageTest, OfTensorsThatAreNotSelectedHasTheVersionBefore) {
  std::fill(matrix_.begin(), matrix_.end(), 1);
  Copy(1, {.tensors = {"counter", "else"}});
  EXPECT_EQ(image_->composition(), 0u);  // There was none before.
  EXPECT_EQ(Copied<float>(0), matrix_);
  EXPECT_EQ(image_->unknown_tensors(), std::vector<std::string>{"else"});
  const std::vector<float> before = matrix_;
  Train();
  Copy(2, {.tensors = {"counter"}});
  EXPECT_EQ(image_->composition(), (Selection{.tensors = {"counter"}}.Compose(1, 0)));
  EXPECT_TRUE(image_->unknown_tensors().empty());
  EXPECT_EQ(Copied<float>(0), before);
  EXPECT_EQ(Copied<int32_t>(2), counter_);
  EXPECT_EQ(image_->unselected_bytes(), 4 * (matrix_.size() + transposed_.size()));
  EXPECT_EQ(image_->version_before(), 1u);
  Copy(3, {});
  EXPECT_EQ(image_->composition(), 0u);
  EXPECT_EQ(Copied<float>(0), matrix_);
}

TEST_P(ApproximateImageTest, TakesTheLargestChangesOfEachBlockAndTheOthersLater) {
  std::fill(matrix_.begin(), matrix_.end(), 1);
  std::fill(transposed_.begin(), transposed_.end(), 1);
  Copy(1, {});
  Train();
  constexpr size_t kBlock = 65'536;
  const Selection hundredth{.at_most_ppm = 10'000};
  Copy(2, hundredth);
  EXPECT_EQ(Copied<int32_t>(2), counter_);  // Integers are all taken.
  uint64_t left = 0;
  for (const uint32_t region : {0U, 1U}) {
    const std::vector<float>& newest = region == 0 ? matrix_ : transposed_;
    const std::vector<float> copied = Copied<float>(region);
    for (size_t begin = 0; begin < newest.size(); begin += kBlock) {
      const size_t end = std::min(begin + kBlock, newest.size());
      std::vector<float> taken, others;
      for (size_t i = begin; i < end; ++i) {
        if (copied[i] == newest[i]) {
          if (newest[i] != 1) taken.push_back(newest[i]);
        } else {
          EXPECT_EQ(copied[i], 1.0F) << i;
          others.push_back(newest[i]);
        }
      }
      EXPECT_EQ(taken.size(), end / 100 - begin / 100) << region << " from " << begin;
      EXPECT_GE(*std::min_element(taken.begin(), taken.end()),
                *std::max_element(others.begin(), others.end()));
      left += others.size();
    }
  }
  EXPECT_EQ(image_->left_out_elements(), left);
  const uint64_t second = image_->composition();
  Copy(3, {.at_most_ppm = 999'999});  // The tensors are the same, and what was left is a change.
  EXPECT_EQ(image_->composition(), (Selection{.at_most_ppm = 999'999}.Compose(2, second)));
  EXPECT_EQ(Copied<float>(0), matrix_);
  EXPECT_EQ(Copied<float>(1), transposed_);
}

TEST_P(ApproximateImageTest, AfterACopyThatWasGivenUpIsOfEverything) {
  Copy(1, {});
  image_->BeginCopy(2, {.at_most_ppm = 1});
  image_->Cancel();
  Train();
  Copy(3, {.at_most_ppm = 1});
  EXPECT_EQ(image_->composition(), 0u);
  EXPECT_EQ(Copied<float>(0), matrix_);
}

INSTANTIATE_TEST_SUITE_P(Threads, ApproximateImageTest, testing::Values(0, 1, 3));
INSTANTIATE_TEST_SUITE_P(Threads, ImageTest, testing::Values(0, 1, 3));

TEST(Image, ThatDoesNotFitIsRefusedWithWhatItCostsToDoWithout) {
  std::byte byte{};
  const MemorySpan huge = {
      .kind = MemoryKind::kHost, .data = &byte, .size_bytes = uint64_t{1} << 46};
  const absl::Status status =
      Image::Create(Manifest(), {&huge, 1}, VersionsKept::kNewest, /*threads=*/0, [] {}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("70368744177664 bytes of host memory"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("must not change meanwhile"));
}

}  // namespace
}  // namespace waybill
