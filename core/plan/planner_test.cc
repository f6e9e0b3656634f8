// SPDX-License-Identifier: Apache-2.0

#include "core/plan/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/plan/cover.h"
#include "core/plan/plan_codec.h"
#include "core/tensor/manifest.h"

namespace waybill {
namespace {

constexpr Format kBf16{Dtype::kBf16};

Box Make(std::vector<int64_t> begin, std::vector<int64_t> end) { return Box(begin, end); }

// A rank that holds `box` of one tensor, dense, rows first.
Manifest Holding(absl::string_view name, std::vector<int64_t> shape, const Box& box,
                 Format format = kBf16) {
  Manifest m;
  std::vector<int64_t> strides(shape.size()), extents;
  for (int d = 0; d < box.dimensions(); ++d) extents.push_back(box.extent(d));
  RowMajorStrides(extents, absl::MakeSpan(strides));
  m.AddRegion("memory", static_cast<uint64_t>(box.element_count()) * ElementBytes(format));
  m.AddShard(m.AddTensor(name, shape, format.dtype), format, box, {0, 0, strides});
  return m;
}

absl::StatusOr<Plan> PlanFor(const std::vector<Manifest>& senders,
                             const std::vector<Manifest>& receivers) {
  std::vector<const Manifest*> t, w;
  for (const Manifest& m : senders) t.push_back(&m);
  for (const Manifest& m : receivers) w.push_back(&m);
  return MakePlan(t, w);
}

const std::vector<int64_t> kShape = {8, 4};

Manifest Three(absl::string_view first, absl::string_view second, absl::string_view third) {
  Manifest m = Holding(first, kShape, Box::Whole(kShape));
  for (const absl::string_view name : {second, third}) {
    m.AddRegion(name, m.region_bytes(0));
    m.AddShard(m.AddTensor(name, kShape, kBf16.dtype), kBf16, Box::Whole(kShape),
               {m.region_count() - 1, 0, {kShape[1], 1}});
  }
  return m;
}

TEST(Planner, RowsThatMeetAreOneRouteEach) {
  const auto plan = PlanFor(
      {Holding("w", kShape, Make({0, 0}, {3, 4})), Holding("w", kShape, Make({3, 0}, {8, 4}))},
      {Holding("w", kShape, Make({0, 0}, {4, 4})), Holding("w", kShape, Make({4, 0}, {8, 4}))});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const PlanTables tables = MakeTables(*plan);
  EXPECT_EQ(tables.senders[0].size(), 1u);
  EXPECT_EQ(tables.senders[1].size(), 2u);
  // Sender 1 starts at receiver 1; its entries in receiver 0's ledger follow sender 0's.
  EXPECT_EQ(tables.senders[1].receiver(0), 1u);
  EXPECT_EQ(tables.senders[1].receiver(1), 0u);
  EXPECT_EQ(plan->first_ledger_entry(1, 0), 1u);
  // Whole rows are one contiguous axis.
  EXPECT_EQ(tables.senders[1][0].shape.axes.size(), 1u);
  EXPECT_EQ(tables.senders[1][0].shape.destination_run_bytes(), 4u * 4 * 2);
  EXPECT_EQ(plan->total_bytes(), 2 * 4u * 4 * 2);
}

TEST(Planner, AnEnginesOwnOrderIsRefusedNamingWhoHasIt) {
  const Manifest plain = Holding("w", kShape, Make({0, 0}, {8, 4}));
  Manifest shuffled = Holding("v", {4}, Make({0}, {4}));
  shuffled.AddShard(shuffled.AddTensor("w", kShape, Dtype::kBf16), kBf16, Make({0, 0}, {8, 4}),
                    {shuffled.AddRegion("packed", 64), 0, std::vector<int64_t>{4, 1}, "marlin"});
  constexpr absl::string_view kMessage =
      ": tensor \"w\" [0, 8) x [0, 4) lies in the engine's own order \"marlin\"";
  const auto to = PlanFor({plain}, {plain, shuffled});
  EXPECT_EQ(to.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(to.status().message().substr(0, 8 + kMessage.size()),
            absl::StrCat("worker 1", kMessage));
  const auto from = PlanFor({shuffled}, {plain});
  EXPECT_EQ(from.status().message().substr(0, 9 + kMessage.size()),
            absl::StrCat("trainer 0", kMessage));
}

TEST(Planner, ColumnsAreStridedOnTheSideThatHasThemAll) {
  const auto plan = PlanFor({Holding("w", kShape, Make({0, 0}, {8, 4}))},
                            {Holding("w", kShape, Make({0, 2}, {8, 4}))});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const PlanTables tables = MakeTables(*plan);
  const RouteView route = tables.senders[0][0];
  ASSERT_EQ(route.shape.axes.size(), 2u);
  EXPECT_EQ(route.shape.axes[0], (Axis{8, 8, 4}));
  EXPECT_EQ(route.shape.axes[1], (Axis{2, 2, 2}));
  EXPECT_EQ(route.source_offset_bytes, 4u);
  EXPECT_EQ(route.shape.destination_run_bytes(), 8u * 4);  // One run where it lands.
}

TEST(Planner, ATransposedBoxIsOneRunWhereItLands) {
  Manifest receiver;
  receiver.AddRegion("memory", 64);
  receiver.AddShard(receiver.AddTensor("w", kShape, Dtype::kBf16), kBf16, Box::Whole(kShape),
                    {0, 0, {1, 8}});
  const auto plan = PlanFor({Holding("w", kShape, Box::Whole(kShape))}, {receiver});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const PlanTables tables = MakeTables(*plan);
  const RouteShape shape = tables.senders[0][0].shape;
  EXPECT_TRUE(shape.transposed());
  EXPECT_EQ(shape.destination_run_bytes(), 64u);
}

TEST(Planner, AReceiverFindsATiedHeadByItsAlias) {
  Manifest sender = Holding("embed", kShape, Box::Whole(kShape));
  sender.AddAlias("head", 0);
  const auto plan = PlanFor({sender}, {Holding("head", kShape, Box::Whole(kShape))});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const PlanTables tables = MakeTables(*plan);
  EXPECT_EQ(tables.senders[0].size(), 1u);
}

Manifest Tied(Manifest holding, const char* alias) {
  holding.AddAlias(alias, 0);
  return holding;
}

TEST(Planner, ATensorThatAReceiverKnowsByTwoNamesIsReceivedOnce) {
  const Manifest embed = Holding("embed", kShape, Box::Whole(kShape));
  const Manifest head = Holding("head", kShape, Box::Whole(kShape));
  for (const Manifest& sender : {Tied(embed, "head"), Tied(head, "embed"), embed, head}) {
    for (const Manifest& receiver : {Tied(embed, "head"), Tied(head, "embed")}) {
      const auto plan = PlanFor({sender}, {receiver});
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_EQ(MakeTables(*plan).senders[0].size(), 1u);
    }
  }
}

TEST(Planner, BytesAreScalesAsTheyAre) {
  const auto plan = PlanFor({Holding("w", kShape, Box::Whole(kShape), {Dtype::kE8m0})},
                            {Holding("w", kShape, Box::Whole(kShape), {Dtype::kU8})});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const PlanTables tables = MakeTables(*plan);
  EXPECT_EQ(tables.senders[0][0].shape.transform, Transform::kNone);
  EXPECT_EQ(tables.senders[0][0].shape.source_element_bytes, 1u);
}

TEST(Planner, TheSameManifestsGiveTheSameHashAndOtherOnesAnother) {
  const std::vector<Manifest> senders = {Holding("w", kShape, Box::Whole(kShape))};
  const std::vector<Manifest> receiver = {Holding("w", kShape, Box::Whole(kShape))};
  EXPECT_EQ(PlanFor(senders, receiver)->hash(), PlanFor(senders, receiver)->hash());
  EXPECT_NE(PlanFor(senders, receiver)->hash(),
            PlanFor(senders, {Holding("w", kShape, Make({0, 0}, {7, 4}))})->hash());
}

struct BadCase {
  const char* name;
  std::vector<Manifest> senders;
  Manifest receiver;
  const char* message;
};

class PlannerRefusesTest : public testing::TestWithParam<BadCase> {};

TEST_P(PlannerRefusesTest, AndNamesWhat) {
  const auto plan = PlanFor(GetParam().senders, {GetParam().receiver});
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(plan.status().message(), GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, PlannerRefusesTest,
    testing::Values(
        BadCase{"a_tensor_nobody_holds",
                {Holding("w", kShape, Box::Whole(kShape))},
                Holding("v", kShape, Box::Whole(kShape)),
                "tensor \"v\": worker 0 wants [0, 8) x [0, 4), no trainer holds a tensor of that "
                "name; of 1 names of the worker 1 are unknown, and the nearest is \"w\""},
        BadCase{
            "a_name_that_a_wrapper_has_changed",
            {Three("layers.0.up", "layers.1.up", "layers.1.down")},
            Three("layers.0.up", "_orig_mod.layers.1.down", "module.layers.1.up"),
            "tensor \"_orig_mod.layers.1.down\": worker 0 wants [0, 8) x [0, 4), no trainer holds "
            "a tensor of that name; of 3 names of the worker 2 are unknown, and the nearest is "
            "\"layers.1.down\""},
        BadCase{"a_tensor_held_in_part",
                {Holding("w", kShape, Make({0, 0}, {3, 4})),
                 Holding("w", kShape, Make({5, 0}, {8, 4}))},
                Holding("w", kShape, Box::Whole(kShape)),
                "tensor \"w\": worker 0 wants [0, 8) x [0, 4), of which the trainers do not hold "
                "[3, 5) x [0, 4); they hold trainer 0 [0, 3) x [0, 4), trainer 1 [5, 8) x [0, 4)"},
        BadCase{"two_shapes_among_the_trainers",
                {Holding("w", kShape, Make({0, 0}, {3, 4})),
                 Holding("w", {9, 4}, Make({3, 0}, {9, 4}))},
                Holding("w", kShape, Box::Whole(kShape)),
                "tensor \"w\": trainer 1 has shape [9, 4], trainer 0 has [8, 4]"},
        BadCase{"another_shape_at_the_worker",
                {Holding("w", kShape, Box::Whole(kShape))},
                Holding("w", {9, 4}, Make({0, 0}, {9, 4})),
                "tensor \"w\": worker 0 has shape [9, 4], the trainers have [8, 4]"},
        BadCase{
            "a_wrong_dtype",
            {Holding("w", kShape, Box::Whole(kShape), {Dtype::kF16})},
            Holding("w", kShape, Box::Whole(kShape)),
            "tensor \"w\": worker 0: trainer 0 holds F16, wanted is BF16: no conversion from "
            "F16 to BF16; there are: the same format, U8 for 8-bit floats, F32 to and from F16 and "
            "BF16, BF16 to F16, each of them quantised; for others the trainer adds a tensor of "
            "the wanted type, which it fills before each publish"},
        BadCase{"two_tensors_in_one_memory",
                {Three("embed", "norm", "head")},
                Tied(Holding("embed", kShape, Box::Whole(kShape)), "head"),
                "tensor \"embed\": worker 0 holds it and \"head\" in the same memory, the trainers "
                "hold two tensors of these names: leave one of them out, or tie them in the "
                "trainers"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Planner, MoreRanksThanItNumbersAreRefused) {
  const Manifest one = Holding("w", kShape, Box::Whole(kShape));
  const std::vector<const Manifest*> many(kMostRanks + 1, &one);
  const std::vector<const Manifest*> few = {&one};
  EXPECT_EQ(MakePlan(many, few).status().message(),
            "a plan from 65537 trainers to 1 workers; there may be at most 65536 of each");
  EXPECT_EQ(MakePlan(few, many).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Planner, ElementsWithoutNeighboursAreRunsOfOne) {
  Manifest receiver;
  receiver.AddRegion("memory", 128);
  receiver.AddShard(receiver.AddTensor("w", kShape, Dtype::kBf16), kBf16, Box::Whole(kShape),
                    {0, 0, {8, 2}});
  const auto plan = PlanFor({Holding("w", kShape, Box::Whole(kShape))}, {receiver});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const PlanTables tables = MakeTables(*plan);
  EXPECT_EQ(tables.senders[0][0].shape.axes.back(), (Axis{1, 2, 2}));
  EXPECT_EQ(tables.senders[0][0].shape.destination_run_bytes(), 2u);
}

TEST(Cover, FindsWhatIsWrittenTwiceOrNever) {
  const Manifest receiver = Holding("w", kShape, Box::Whole(kShape));
  const Plan plan = *PlanFor(
      {Holding("w", kShape, Make({0, 0}, {3, 4})), Holding("w", kShape, Make({3, 0}, {8, 4}))},
      {receiver});
  const Bundles& whole = plan.bundles();
  ASSERT_TRUE(CheckCover(whole).ok());

  Bundles twice = whole;
  twice.Add(whole.bundle(0), whole.first_routes()[0]);
  EXPECT_EQ(CheckCover(twice).message(),
            "tensor \"w\": worker 0 wants [0, 8) x [0, 4): [0, 3) x [0, 4) and [0, 3) x [0, 4) are "
            "both written");

  Bundles missing(whole.shared_ranks());
  missing.Add(whole.bundle(1), whole.first_routes()[1]);
  EXPECT_EQ(CheckCover(missing).message(),
            "tensor \"w\": worker 0 wants [0, 8) x [0, 4): 20 of 32 elements are written");
}

// Three tensors that are alike, each wanted by three receivers that are alike: one bundle.
TEST(Cover, FindsCopiesThatAreWrittenTwiceOrNever) {
  Manifest rank;
  rank.AddRegion("memory", 3 * 64);
  for (uint64_t i = 0; i < 3; ++i) {
    rank.AddShard(rank.AddTensor(absl::StrCat("w", i), kShape, Dtype::kBf16), kBf16,
                  Box::Whole(kShape), {0, i * 64, {4, 1}});
  }
  const Plan plan = *PlanFor({rank}, {rank, rank, rank});
  const Bundles& whole = plan.bundles();
  ASSERT_EQ(whole.size(), 1u);
  const auto with = [&](const std::vector<Copies>& all) {
    Bundles bundles(whole.shared_ranks());
    for (const Copies& copies : all) {
      Bundle bundle = whole.bundle(0);
      bundle.copies = copies;
      bundles.Add(bundle, whole.first_routes()[0]);
    }
    return std::string(CheckCover(bundles).message());
  };
  const std::string wants = "tensor \"w0\": worker 0 wants [0, 8) x [0, 4): ";
  const std::string twice = wants + "[0, 8) x [0, 4) and [0, 8) x [0, 4) are both written";
  EXPECT_EQ(with({{0, 3, 0, 3}}), "");
  EXPECT_EQ(with({{0, 1, 0, 3}, {1, 3, 0, 2}, {1, 3, 2, 3}}), "");
  EXPECT_EQ(with({{0, 2, 0, 3}, {1, 3, 0, 3}}), twice);
  EXPECT_EQ(with({{0, 3, 0, 2}, {0, 3, 1, 3}}), twice);
  EXPECT_EQ(with({{0, 2, 0, 3}}), wants + "192 of 288 elements are written");
  EXPECT_EQ(with({{0, 3, 0, 2}}), wants + "192 of 288 elements are written");
  EXPECT_EQ(with({{0, 3, 0, 4}}), wants + "a route goes to nobody");
  EXPECT_EQ(with({}), wants + "0 of 288 elements are written");
}

TEST(Cover, FindsWhatIsWrittenTwiceAmongMany) {
  constexpr int64_t kRows = 40;
  const Manifest rank = Holding("w", {kRows, 4}, Box::Whole({kRows, 4}));
  const Plan plan = *PlanFor({rank}, {rank});
  const Bundles& whole = plan.bundles();
  const auto with = [&](const std::vector<Box>& boxes) {
    Bundles bundles(whole.shared_ranks());
    for (const Box& box : boxes) {
      RouteView route = whole.first_routes()[0];
      route.box = box;
      bundles.Add(whole.bundle(0), route);
    }
    return std::string(CheckCover(bundles).message());
  };
  std::vector<Box> boxes;  // Each box is a row or half a row.
  for (int64_t row = 0; row < kRows; ++row) {
    const std::vector<int64_t> cuts =
        row % 3 == 0 ? std::vector<int64_t>{0, 2, 4} : std::vector<int64_t>{0, 4};
    for (size_t i = 1; i < cuts.size(); ++i) {
      boxes.push_back(Make({row, cuts[i - 1]}, {row + 1, cuts[i]}));
    }
  }
  std::mt19937 random(1);
  for (int i = 0; i < 100; ++i) {
    std::shuffle(boxes.begin(), boxes.end(), random);
    ASSERT_EQ(with(boxes), "");
    std::vector<Box> wrong = boxes;
    wrong[0] = wrong[1];
    ASSERT_TRUE(absl::StrContains(with(wrong), "are both written")) << with(wrong);
  }
}

// Two replicas of each half of the rows, and a receiver for each half: what senders 2 and 3 and
// receiver 1 get has nothing to do with sender 0.
TEST(Planner, WithoutOneSenderTheTablesOfOthersThanItsReplicasAreTheSame) {
  const std::vector<Box> halves = {Make({0, 0}, {4, 4}), Make({4, 0}, {8, 4})};
  std::vector<Manifest> senders, receivers;
  for (const Box& half : halves) {
    for (int replica = 0; replica < 2; ++replica) senders.push_back(Holding("w", kShape, half));
    receivers.push_back(Holding("w", kShape, half));
  }
  const auto whole = PlanFor(senders, receivers);
  senders[0] = Manifest();
  const auto without = PlanFor(senders, receivers);
  ASSERT_TRUE(whole.ok() && without.ok());
  for (const uint32_t sender : {2u, 3u}) {
    EXPECT_EQ(without->SenderRoutes(sender), whole->SenderRoutes(sender));
    EXPECT_EQ(EncodeBundledRoutes(without->SenderBundles(sender)),
              EncodeBundledRoutes(whole->SenderBundles(sender)));
  }
  EXPECT_EQ(without->ReceiverRoutes(1), whole->ReceiverRoutes(1));
  EXPECT_EQ(EncodeBundledRoutes(without->ReceiverBundles(1)),
            EncodeBundledRoutes(whole->ReceiverBundles(1)));
  EXPECT_NE(without->SenderRoutes(1), whole->SenderRoutes(1));
  EXPECT_NE(without->ReceiverRoutes(0), whole->ReceiverRoutes(0));
}

TEST(Cover, FindsShardsThatNoWantNames) {
  const Manifest rank = Holding("w", kShape, Box::Whole(kShape));
  const Plan plan = *PlanFor({rank}, {rank, rank});
  auto fewer = std::make_shared<PlannedRanks>(plan.bundles().ranks());
  fewer->wants[0].last_destination = 1;
  EXPECT_EQ(CheckCover(Bundles(fewer)).message(),
            "workers 0 and 1 hold the same, but are planned differently");
  auto twice = std::make_shared<PlannedRanks>(plan.bundles().ranks());
  twice->destinations[1] = twice->destinations[0];
  EXPECT_EQ(CheckCover(Bundles(twice)).message(),
            "workers 0 and 1 hold the same, but are planned differently");
  twice->destinations.assign(4, {1, 0});
  twice->destinations[0] = twice->destinations[1] = {0, 0};
  twice->wants[0].last_destination = 4;
  EXPECT_EQ(CheckCover(Bundles(twice)).message(),
            "tensor \"w\": worker 0 wants [0, 8) x [0, 4) twice");
  auto none = std::make_shared<PlannedRanks>(plan.bundles().ranks());
  none->wants.clear();
  EXPECT_EQ(CheckCover(Bundles(none)).message(),
            "tensor \"w\": worker 0 wants [0, 8) x [0, 4), which is not planned");
}

TEST(PlanCodec, WhatIsDecodedIsWhatWasEncoded) {
  const Plan plan = *PlanFor(
      {Holding("w", kShape, Make({0, 0}, {3, 4})), Holding("w", kShape, Make({3, 0}, {8, 4}))},
      {Holding("w", kShape, Make({0, 2}, {8, 4}))});
  const std::string bytes = EncodeRankPlan(plan.ReceiverBundles(0), {});
  EXPECT_EQ(*DecodeRankPlan(bytes), (RankPlan{plan.ReceiverRoutes(0), {}}));
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(DecodeRankPlan(bytes.substr(0, size)).ok()) << size;
  }
  EXPECT_FALSE(DecodeRankPlan(bytes + "x").ok());
}

// A few bytes must not become gigabytes.
TEST(PlanCodec, BundlesOfMoreRoutesThanAnyPlanHasAreRefused) {
  const Plan plan = *PlanFor({Holding("w", kShape, Make({0, 0}, {8, 4}))},
                             {Holding("w", kShape, Make({0, 0}, {8, 4}))});
  BundledRoutes bundled = plan.SenderBundles(0);
  ASSERT_TRUE(DecodeBundledRoutes(EncodeBundledRoutes(bundled)).ok());
  const auto repeat = [](auto& column) { column.assign(5000, column[0]); };
  bundled.tensor_counts = bundled.receiver_counts = {5000};
  repeat(bundled.source_shards), repeat(bundled.source_regions), repeat(bundled.scale_tables);
  repeat(bundled.source_offsets_bytes), repeat(bundled.receivers);
  repeat(bundled.destination_shards), repeat(bundled.destination_regions);
  repeat(bundled.destination_offsets_bytes);
  EXPECT_THAT(std::string(DecodeBundledRoutes(EncodeBundledRoutes(bundled)).status().message()),
              testing::StartsWith("routing table: 25000000 routes in "));
}

}  // namespace
}  // namespace waybill
