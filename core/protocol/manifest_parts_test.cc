// SPDX-License-Identifier: Apache-2.0

#include "core/protocol/manifest_parts.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/base/deflate.h"

namespace waybill {
namespace {

// Rows [0, 4) of a tensor, with `gap_bytes` of memory that nothing fills behind them.
Manifest Rows(uint64_t gap_bytes) {
  Manifest m;
  m.AddRegion("memory", 32 + gap_bytes);
  m.AddShard(m.AddTensor("w", {8, 4}, Dtype::kBf16), {Dtype::kBf16}, Box({0, 0}, {4, 4}),
             {0, 0, {4, 1}});
  return m;
}

class ManifestPartsTest : public testing::Test {
 protected:
  void Add(ConnectionId rank, Role role, const EncodedManifest& manifest, const char* host = "",
           const char* rack = "") {
    ManifestHead head = *DecodeHead(manifest.head);
    head.host = host;
    head.rack = rack;
    parts_.Add(rank, role, std::move(head));
  }

  // Sends what a rank is asked for, and does all work.
  void Answer(const std::vector<ManifestParts::Ask>& asks, const EncodedManifest& manifest) {
    for (const auto& [rank, id] : asks) {
      parts_.OnPart(rank, id,
                    Deflate(id.kind == PartKind::kTensors ? manifest.tensors : manifest.holdings));
      ++sent_;
    }
    DoWork();
  }
  void DoWork() {
    for (auto work = parts_.TakeWork(); !work.empty(); work = parts_.TakeWork()) {
      for (const ManifestParts::Work& each : work) each()();
    }
  }

  ManifestParts parts_;
  absl::Time now_ = absl::UnixEpoch();
  int sent_ = 0;
  const EncodedManifest rows_ = EncodeInParts(Rows(0));
};

TEST_F(ManifestPartsTest, EachPartTravelsOnceHoweverManyRanksHaveIt) {
  for (ConnectionId rank = 1; rank <= 8; ++rank) Add(rank, Role::kWorker, rows_, "a");
  Answer(parts_.TakeAsks(now_), rows_);
  Add(9, Role::kWorker, rows_, "b", "rack 1");
  Answer(parts_.TakeAsks(now_), rows_);
  EXPECT_EQ(sent_, 2);
  const auto settled = parts_.TakeSettled();
  ASSERT_EQ(settled.size(), 9u);
  Manifest expected = Rows(0);
  expected.set_host("b");
  expected.set_rack("rack 1");
  EXPECT_EQ(*settled[8].manifest, expected);
  EXPECT_TRUE(settled[8].manifest->SharesHoldingsWith(*settled[0].manifest));
  EXPECT_TRUE(parts_.TakeSettled().empty());
}

TEST_F(ManifestPartsTest, RanksOfOneModelShareItsTensors) {
  Manifest other = Rows(0);
  other.AddPadding(1, {1}, {0, 0, {1}});
  Add(1, Role::kTrainer, rows_);
  Answer(parts_.TakeAsks(now_), rows_);
  Add(2, Role::kTrainer, EncodeInParts(other));
  const auto asks = parts_.TakeAsks(now_);
  ASSERT_EQ(asks.size(), 1u);
  EXPECT_EQ(asks[0].part.kind, PartKind::kHoldings);
}

TEST_F(ManifestPartsTest, AnotherRankIsAskedIfTheFirstGoesAway) {
  Add(1, Role::kTrainer, rows_);
  Add(2, Role::kTrainer, rows_);
  for (const auto& ask : parts_.TakeAsks(now_)) EXPECT_EQ(ask.rank, 1u);
  EXPECT_TRUE(parts_.TakeAsks(now_).empty());
  parts_.Remove(1);
  const auto again = parts_.TakeAsks(now_);
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(again[0].rank, 2u);
  Answer(again, rows_);
  ASSERT_EQ(parts_.TakeSettled().size(), 1u);
}

TEST_F(ManifestPartsTest, ARankThatHangsKeepsNoOtherFromJoining) {
  Add(1, Role::kTrainer, rows_);
  EXPECT_EQ(parts_.TakeAsks(now_).size(), 2u);
  EXPECT_EQ(parts_.next_deadline(), absl::InfiniteFuture());  // Nobody else has it.
  Add(2, Role::kTrainer, rows_);
  Add(3, Role::kTrainer, rows_);
  EXPECT_TRUE(parts_.TakeAsks(now_).empty());
  now_ = parts_.next_deadline();
  const auto asks = parts_.TakeAsks(now_);
  ASSERT_EQ(asks.size(), 2u);
  EXPECT_EQ(asks[0].rank, 2u);
  parts_.Remove(1);
  EXPECT_TRUE(parts_.TakeAsks(now_).empty());  // Rank 2 is still asked.
  Answer(asks, rows_);
  EXPECT_EQ(parts_.TakeSettled().size(), 2u);
  EXPECT_EQ(parts_.next_deadline(), absl::InfiniteFuture());
}

TEST_F(ManifestPartsTest, APartOfAnotherHashIsRefusedWithWhoSentIt) {
  Add(1, Role::kTrainer, rows_);
  Add(2, Role::kTrainer, rows_);
  EncodedManifest wrong = rows_;
  wrong.holdings += "x";
  Answer(parts_.TakeAsks(now_), wrong);
  const auto refused = parts_.TakeSettled();
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].rank, 1u);
  EXPECT_EQ(refused[0].manifest.status().code(), absl::StatusCode::kInvalidArgument);
  parts_.Remove(1);
  Answer(parts_.TakeAsks(now_), rows_);
  const auto settled = parts_.TakeSettled();
  ASSERT_EQ(settled.size(), 1u);
  EXPECT_TRUE(settled[0].manifest.ok());
}

TEST_F(ManifestPartsTest, OnlyARankThatWasAskedCanSendAPart) {
  Add(1, Role::kTrainer, rows_);
  Add(2, Role::kTrainer, rows_);
  const auto asks = parts_.TakeAsks(now_);
  for (const auto& ask : asks) {
    parts_.OnPart(2, ask.part, "junk");
    parts_.OnPart(7, ask.part, "junk");
  }
  EXPECT_TRUE(parts_.TakeWork().empty());
  Answer(asks, rows_);
  EXPECT_EQ(parts_.TakeSettled().size(), 2u);
}

TEST_F(ManifestPartsTest, ASenderThatGoesAwayWhileItsPartIsReadDoesNoHarm) {
  for (const bool readable : {true, false}) {
    SCOPED_TRACE(readable);
    parts_ = ManifestParts();
    Add(1, Role::kTrainer, rows_);
    Add(2, Role::kTrainer, rows_);
    for (const auto& [rank, id] : parts_.TakeAsks(now_)) {
      const bool tensors = id.kind == PartKind::kTensors;
      parts_.OnPart(rank, id, readable ? Deflate(tensors ? rows_.tensors : rows_.holdings) : "x");
    }
    const auto work = parts_.TakeWork();
    parts_.Remove(1);
    for (const ManifestParts::Work& each : work) each()();
    DoWork();
    Answer(parts_.TakeAsks(now_), rows_);  // Rank 2, if the part could not be read.
    const auto settled = parts_.TakeSettled();
    ASSERT_EQ(settled.size(), 1u);
    EXPECT_EQ(settled[0].rank, 2u);
    EXPECT_TRUE(settled[0].manifest.ok());
  }
}

TEST_F(ManifestPartsTest, WhatATrainerMayHoldAWorkerMayNot) {
  const EncodedManifest gap = EncodeInParts(Rows(32));
  Add(1, Role::kTrainer, gap);
  Add(2, Role::kWorker, gap);
  Add(3, Role::kWorker, gap);
  Answer(parts_.TakeAsks(now_), gap);
  const auto settled = parts_.TakeSettled();
  ASSERT_EQ(settled.size(), 3u);
  EXPECT_TRUE(settled[0].manifest.ok()) << settled[0].manifest.status();
  EXPECT_FALSE(settled[1].manifest.ok());
  EXPECT_FALSE(settled[2].manifest.ok());
}

TEST_F(ManifestPartsTest, WhatNobodyNeedsIsIgnored) {
  parts_.OnPart(7, {PartKind::kTensors, "1"}, "junk");
  parts_.OnPart(7, {static_cast<PartKind>(9), "1"}, "junk");
  EXPECT_TRUE(parts_.TakeWork().empty());
  Add(1, Role::kTrainer, rows_);
  const auto asks = parts_.TakeAsks(now_);
  parts_.Remove(1);
  Answer(asks, rows_);
  EXPECT_TRUE(parts_.TakeSettled().empty());
}

}  // namespace
}  // namespace waybill
