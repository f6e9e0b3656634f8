// SPDX-License-Identifier: Apache-2.0

// The published cases: that their sizes are those of the models, and how far off predictions are.

#include "testing/published_systems/gathering_system.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

namespace waybill {
namespace {

TEST(Published, KimiHasTheSizesOfItsConfig) {
  const PublishedCase* kimi = FindPublishedCase("kimi-k2-256-128");
  ASSERT_NE(kimi, nullptr);
  constexpr uint64_t kHidden = 7168, kExperts = 384, kInner = 2048, kHeads = 64;
  const uint64_t expert = 3 * kHidden * kInner;
  const uint64_t attention = kHidden * 1536 + 1536 * kHeads * 192 + kHidden * 576 +
                             512 * kHeads * 256 + kHeads * 128 * kHidden;
  const uint64_t quantised = 61 * attention + 60 * expert + 3 * kHidden * 18432;
  const uint64_t plain = 60 * kExperts * kHidden + 2 * 163840 * kHidden;
  EXPECT_NEAR(kimi->expert_bytes, 60 * kExperts * expert, 1e9);
  EXPECT_NEAR(kimi->whole_bytes, quantised + 2 * plain, 50e6);
}

TEST(Published, QwenHasTheSizesOfItsConfigAndThePublishedBytes) {
  const PublishedCase* qwen = FindPublishedCase("qwen3-235b-128-32");
  ASSERT_NE(qwen, nullptr);
  constexpr uint64_t kHidden = 4096;
  const uint64_t quantised = 94 * (2 * kHidden * 8192 + 2 * kHidden * 512);
  const uint64_t plain = 94 * 128 * kHidden + 2 * 151936 * kHidden;
  EXPECT_NEAR(qwen->expert_bytes, 94 * 128 * 3 * kHidden * 1536, 1e9);
  EXPECT_NEAR(qwen->whole_bytes, quantised + 2 * plain, 50e6);
  // Published: 37.688 GB on each worker.
  EXPECT_NEAR(qwen->whole_bytes + qwen->expert_bytes / 8, 37.688e9, 0.01 * 37.688e9);
}

TEST(Published, ATrainerWritesAsOftenAsPublished) {
  const PublishedCase* kimi = FindPublishedCase("kimi-k2-256-128");
  const PublishedPrediction prediction = PredictPublished(*kimi, PublishedHardware());
  EXPECT_NEAR(prediction.writes, 1144, 12);
  // Published: 184 + 518 + 18 + 88 + 26 ms.
  EXPECT_NEAR(prediction.gather_seconds, 0.834, 0.01);
}

class PublishedTest : public testing::TestWithParam<PublishedCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, PublishedTest, testing::ValuesIn(PublishedCases()),
                         [](const auto& info) {
                           std::string name(info.param.name);
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

TEST_P(PublishedTest, ThePublishedRulesArePredictedWithin15Percent) {
  const PublishedPrediction prediction = PredictPublished(GetParam(), PublishedHardware());
  EXPECT_NEAR(prediction.error(GetParam()), 0, 0.15)
      << prediction.seconds << " s, published " << GetParam().measured_seconds << " s";
  RecordProperty("seconds", std::to_string(prediction.seconds));
  std::printf("%s: predicted %.3f s, published %.3f s, %+.1f %%\n", GetParam().name.data(),
              prediction.seconds, GetParam().measured_seconds, 100 * prediction.error(GetParam()));
}

}  // namespace
}  // namespace waybill
