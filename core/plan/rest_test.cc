// SPDX-License-Identifier: Apache-2.0

#include "core/plan/rest.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "core/plan/plan_check.h"
#include "core/plan/planner.h"
#include "core/tensor/manifest.h"

namespace waybill {
namespace {

constexpr Format kBf16{Dtype::kBf16};

// A rank that holds a box of a matrix of 64 x 64, dense, with something before it in memory.
Manifest Holding(const Box& box) {
  Manifest m;
  m.AddRegion("memory", 128 + static_cast<uint64_t>(box.element_count()) * 2);
  m.AddTensor("other", {2}, Dtype::kBf16);
  m.AddShard(m.AddTensor("w", {64, 64}, Dtype::kBf16), kBf16, box, {0, 128, {box.extent(1), 1}});
  return m;
}

// Two senders hold each half of the rows; two receivers hold half of the columns each.
class RestTest : public testing::Test {
 protected:
  RestTest() {
    for (int t = 0; t < 4; ++t)
      senders_.push_back(Holding(Box({t / 2 * 32, 0}, {t / 2 * 32 + 32, 64})));
    for (int w = 0; w < 2; ++w) receivers_.push_back(Holding(Box({0, w * 32}, {64, w * 32 + 32})));
    plan_ = *MakePlan(Pointers(senders_), Pointers(receivers_), {.smallest_piece_bytes = 64});
  }
  static std::vector<const Manifest*> Pointers(const std::vector<Manifest>& manifests) {
    std::vector<const Manifest*> pointers;
    for (const Manifest& manifest : manifests) pointers.push_back(&manifest);
    return pointers;
  }
  absl::StatusOr<Plan> Rest(const std::set<RankPair>& lacking) {
    return PlanRest(plan_, lacking, Pointers(senders_), Pointers(receivers_));
  }

  using Element = std::tuple<int64_t, int64_t>;  // Of the matrix.
  static void AddElements(const Box& box, std::set<Element>& elements) {
    for (int64_t row = box.begin(0); row < box.end(0); ++row) {
      for (int64_t column = box.begin(1); column < box.end(1); ++column) {
        elements.insert({row, column});
      }
    }
  }

  std::vector<Manifest> senders_, receivers_;
  Plan plan_;
};

TEST_F(RestTest, WhatIsLackingComesFromTheReplicaAndNothingElseDoes) {
  const std::set<RankPair> lacking = {{1, 0}, {1, 1}};
  std::set<Element> wanted;
  uint64_t bytes = 0;
  for (const RouteTable& table : MakeTables(plan_).receivers) {
    for (uint32_t r = 0; r < table.size(); ++r) {
      if (table.sender(r) != 1) continue;
      AddElements(table.box(r), wanted);
      bytes += table.written_bytes(r);
    }
  }
  ASSERT_GT(bytes, 0u);
  senders_[1] = Manifest();
  const absl::StatusOr<Plan> rest = Rest(lacking);
  ASSERT_TRUE(rest.ok()) << rest.status();
  EXPECT_EQ(rest->total_bytes(), bytes);
  EXPECT_EQ(rest->sender_bytes(0), bytes);
  std::set<Element> brought;
  for (const RouteTable& table : MakeTables(*rest).receivers) {
    for (uint32_t r = 0; r < table.size(); ++r) AddElements(table.box(r), brought);
  }
  EXPECT_EQ(brought, wanted);
}

TEST_F(RestTest, RoutesNameTheRanksOwnShardsAndPlaces) {
  const absl::StatusOr<Plan> rest = Rest({{1, 0}, {2, 1}});
  ASSERT_TRUE(rest.ok()) << rest.status();
  const PlanTables tables = MakeTables(*rest);
  for (uint32_t t = 0; t < 4; ++t) {
    EXPECT_EQ(CheckRankPlan({tables.senders[t], tables.exchanges[t]}, senders_[t], Role::kTrainer)
                  .message(),
              "");
  }
  for (uint32_t w = 0; w < 2; ++w) {
    EXPECT_EQ(CheckRankPlan({tables.receivers[w], {}}, receivers_[w], Role::kWorker).message(), "");
    for (uint32_t r = 0; r < tables.receivers[w].size(); ++r) {
      // The element's place in the receiver's memory, from its manifest.
      const Box box = tables.receivers[w].box(r);
      EXPECT_EQ(tables.receivers[w].destination_offset(r),
                128u + static_cast<uint64_t>(box.begin(0) * 32 + box.begin(1) - w * 32) * 2);
    }
  }
}

TEST_F(RestTest, WhatNobodyHoldsAnyMoreIsNamed) {
  senders_[0] = senders_[1] = Manifest();
  const absl::StatusOr<Plan> rest = Rest({{1, 0}, {1, 1}});
  EXPECT_EQ(rest.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(rest.status().message()).find("of which the trainers do not hold"),
            std::string::npos);
}

TEST_F(RestTest, ReceiversThatAreNotThoseOfThePlanAreRefused) {
  receivers_.pop_back();
  const absl::StatusOr<Plan> rest = Rest({{1, 0}});
  EXPECT_EQ(rest.status().message(), "plan what is lacking: 1 workers, the plan has 2");
}

TEST_F(RestTest, TheSameRestIsPlannedTheSameWay) {
  EXPECT_EQ(Rest({{1, 0}})->hash(), Rest({{1, 0}})->hash());
  EXPECT_NE(Rest({{1, 0}})->hash(), Rest({{1, 1}})->hash());
}

}  // namespace
}  // namespace waybill
