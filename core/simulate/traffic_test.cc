// SPDX-License-Identifier: Apache-2.0

// What a plan's routes add up to, against counts made by hand.

#include "core/simulate/traffic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "core/plan/planner.h"

namespace waybill::simulate {
namespace {

// A rank that holds rows [begin, end) of a 1024 x 1024 tensor.
Manifest Rows(int64_t begin, int64_t end, Dtype dtype) {
  Manifest manifest;
  const int64_t bytes = SizeBytes(dtype);
  manifest.AddRegion("r", static_cast<uint64_t>((end - begin) * 1024 * bytes));
  manifest.AddShard(manifest.AddTensor("w", {1024, 1024}, Dtype::kBf16), {dtype},
                    Box({begin, 0}, {end, 1024}), {0, 0, {1024, 1}});
  return manifest;
}

Traffic TrafficOfRows(Dtype worker_dtype) {
  const Manifest first = Rows(0, 512, Dtype::kBf16), second = Rows(512, 1024, Dtype::kBf16);
  const Manifest upper = Rows(0, 768, worker_dtype), lower = Rows(768, 1024, worker_dtype);
  const auto plan = MakePlan({&first, &second}, {&upper, &lower});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return TrafficOf(*plan, {first.total_bytes(), second.total_bytes()},
                   {upper.total_bytes(), lower.total_bytes()});
}

TEST(Traffic, HasEachPairThatExchangesBytes) {
  const Traffic traffic = TrafficOfRows(Dtype::kBf16);
  constexpr uint64_t kRow = 2048;
  ASSERT_EQ(traffic.pairs.size(), 3u);
  EXPECT_EQ(traffic.Find(0, 0)->bytes, 512 * kRow);
  EXPECT_EQ(traffic.Find(1, 0)->bytes, 256 * kRow);
  EXPECT_EQ(traffic.Find(1, 1)->bytes, 256 * kRow);
  EXPECT_EQ(traffic.Find(0, 1), nullptr);
  EXPECT_THAT(traffic.trainer_bytes(), testing::ElementsAre(512 * kRow, 512 * kRow));
  EXPECT_THAT(traffic.worker_bytes(), testing::ElementsAre(768 * kRow, 256 * kRow));
  EXPECT_EQ(traffic.total_bytes(), 1024 * kRow);
}

TEST(Traffic, WhatIsRelayedIsOfTheWorkersThatRelayIt) {
  const Manifest trainer = Rows(0, 1024, Dtype::kBf16);
  const std::vector<const Manifest*> workers(3, &trainer);
  const auto plan = MakePlan({&trainer}, workers, {.relays = Relays::kAlways});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const Traffic traffic =
      TrafficOf(*plan, {trainer.total_bytes()}, std::vector<uint64_t>(3, trainer.total_bytes()));
  EXPECT_THAT(traffic.trainer_bytes(), testing::ElementsAre(trainer.total_bytes()));
  uint64_t relayed = 0;
  for (const PairTraffic& pair : traffic.relays) {
    EXPECT_LT(pair.trainer, 3u);
    EXPECT_NE(pair.trainer, pair.worker);
    relayed += pair.bytes;
  }
  EXPECT_EQ(relayed, 2 * trainer.total_bytes());
}

TEST(Traffic, WhatDoesNotChangeIsSentFromTheTensors) {
  const PairTraffic pair = *TrafficOfRows(Dtype::kBf16).Find(0, 0);
  EXPECT_EQ(pair.staged_bytes, 0u);
  EXPECT_EQ(pair.copied_read, pair.bytes);
  EXPECT_EQ(pair.packed_read, 0u);
  EXPECT_EQ(pair.writes, 1u);
}

TEST(Traffic, WhatIsCastIsStagedAndCountsWhatItReads) {
  const PairTraffic pair = *TrafficOfRows(Dtype::kF32).Find(0, 0);
  EXPECT_EQ(pair.staged_bytes, pair.bytes);
  EXPECT_EQ(pair.cast_read, pair.bytes / 2);
  EXPECT_EQ(pair.copied_read, 0u);
}

}  // namespace
}  // namespace waybill::simulate
