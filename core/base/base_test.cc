// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "core/base/narrow.h"
#include "core/base/rank_id.h"
#include "core/base/status.h"

namespace waybill {
namespace {

TEST(Narrow, KeepsWhatFitsAndRefusesTheRest) {
  EXPECT_EQ(*Narrow<uint32_t>(uint64_t{0xFFFF'FFFF}), 0xFFFF'FFFFu);
  EXPECT_EQ(Narrow<uint32_t>(uint64_t{0x1'0000'0000}).status().message(),
            "4294967296 does not fit into [0, 4294967295]");
  EXPECT_FALSE(Narrow<uint32_t>(-1).ok());
  EXPECT_FALSE(Narrow<int64_t>(std::numeric_limits<uint64_t>::max()).ok());
}

TEST(Narrow, ArithmeticTellsOfOverflow) {
  EXPECT_EQ(CheckedMultiply(1u << 31, 2), uint64_t{1} << 32);
  EXPECT_EQ(CheckedMultiply(uint64_t{1} << 63, 2), std::nullopt);
  EXPECT_EQ(CheckedAdd(~uint64_t{0}, 1), std::nullopt);
  EXPECT_EQ(RoundUp(4097, 4096), 8192u);
  EXPECT_EQ(RoundUp(4096, 4096), 4096u);
}

TEST(Status, EachLayerAddsWhatItWasDoing) {
  const absl::Status low = WithScope(absl::UnavailableError("connection reset"), Scope::kPeer);
  const absl::Status high = While("connect lane 3", low);
  EXPECT_EQ(high.message(), "connect lane 3: connection reset");
  EXPECT_EQ(high.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ScopeOf(high), Scope::kPeer);
}

TEST(Status, TheWiderScopeWins) {
  absl::Status status = WithScope(absl::AbortedError("x"), Scope::kUpdate);
  EXPECT_EQ(ScopeOf(WithScope(status, Scope::kCall)), Scope::kUpdate);
  EXPECT_EQ(ScopeOf(WithScope(status, Scope::kPeer)), Scope::kPeer);
  EXPECT_EQ(ScopeOf(absl::AbortedError("x")), Scope::kCall);
  EXPECT_TRUE(WithScope(absl::OkStatus(), Scope::kPeer).ok());
}

TEST(RankId, SaysItsRole) {
  EXPECT_EQ(ToString(RankId{Role::kTrainer, 3}), "trainer 3");
  EXPECT_LT((RankId{Role::kTrainer, 9}), (RankId{Role::kWorker, 0}));
}

}  // namespace
}  // namespace waybill
