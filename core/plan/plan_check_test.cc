// SPDX-License-Identifier: Apache-2.0

#include "core/plan/plan_check.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/plan/plan_codec.h"
#include "core/plan/planner.h"
#include "core/tensor/manifest.h"

namespace waybill {
namespace {

constexpr Format kBf16{Dtype::kBf16};
constexpr Quantisation kBlocks = {.block_rows = 4, .block_columns = 4};

// A route whose parts may be changed one by one.
struct Draft {
  explicit Draft(const RouteView& route)
      : view(route), axes(route.shape.axes.begin(), route.shape.axes.end()) {}

  RouteView view;
  std::vector<Axis> axes;

  void AddTo(RouteTable& table) const {
    RouteView route = view;
    route.shape.axes = axes;
    table.Add(route);
  }
};

// One tensor [8, 8] in rows [0, 6) and [6, 8) at two senders, the first with memory that is no
// weight around it; a receiver serves it quantised, another one its columns [2, 8) as they are.
struct Job {
  std::vector<Manifest> senders, receivers;
  PlanTables tables;
  std::vector<Exchange> exchanges;

  Job() {
    for (const auto& [from, to] : {std::pair{0, 6}, {6, 8}}) {
      Manifest& m = senders.emplace_back();
      m.AddRegion("all", 1024);
      m.AddRegion("other", 1024);
      m.AddShard(m.AddTensor("w", {8, 8}, Dtype::kBf16), kBf16,
                 Box(std::vector<int64_t>{from, 0}, std::vector<int64_t>{to, 8}),
                 {0, 64, std::vector<int64_t>{8, 1}});
    }
    Manifest& quantised = receivers.emplace_back();
    const uint32_t q = quantised.AddTensor("w", {8, 8}, Dtype::kBf16);
    quantised.AddRegion("elements", 64);
    quantised.AddRegion("scales", 16);
    quantised.AddShard(q, Format::Quantised(kBlocks), Box::Whole({8, 8}),
                       {0, 0, std::vector<int64_t>{8, 1}});
    quantised.AddShard(q, Format::Scales(kBlocks), Box::Whole({2, 2}),
                       {1, 0, std::vector<int64_t>{2, 1}});
    Manifest& plain = receivers.emplace_back();
    plain.AddRegion("columns", 2 * 8 * 6);
    plain.AddShard(plain.AddTensor("w", {8, 8}, Dtype::kBf16), kBf16,
                   Box(std::vector<int64_t>{0, 2}, std::vector<int64_t>{8, 8}),
                   {0, 0, std::vector<int64_t>{6, 1}});
    std::vector<const Manifest*> t, w;
    for (const Manifest& m : senders) t.push_back(&m);
    for (const Manifest& m : receivers) w.push_back(&m);
    auto made = MakePlan(t, w);
    EXPECT_TRUE(made.ok()) << made.status();
    tables = MakeTables(*made);
    exchanges = tables.exchanges;
  }
};

// Returns bundles of one route each.
BundledRoutes OneByOne(const RouteTable& routes) {
  BundledRoutes out = {.peers = BundledRoutes::Peers::kSenders, .peer_count = 2, .first = routes};
  out.tensor_counts.assign(routes.size(), 1);
  out.recipient_counts = out.receiver_counts = out.tensor_counts;
  for (uint32_t i = 0; i < routes.size(); ++i) {
    const RouteView route = routes[i];
    out.source_shards.push_back(route.source_shard);
    out.source_regions.push_back(route.source_region);
    out.scale_tables.push_back(route.scale_table);
    out.source_offsets_bytes.push_back(route.source_offset_bytes);
    out.receivers.push_back(route.receiver);
    out.destination_shards.push_back(route.destination_shard);
    out.destination_regions.push_back(route.destination_region);
    out.destination_offsets_bytes.push_back(route.destination_offset_bytes);
  }
  return out;
}

// As it arrives. Changes that the decoder refuses are refused here.
absl::Status Check(const RouteTable& routes, const Exchange& exchange, const Manifest& manifest,
                   Role role) {
  const auto decoded = DecodeRankPlan(EncodeRankPlan(OneByOne(routes), exchange));
  return decoded.ok() ? CheckRankPlan({routes, exchange}, manifest, role) : decoded.status();
}

TEST(CheckRankPlan, TakesWhatThePlannerMakes) {
  const Job job;
  for (uint32_t t = 0; t < 2; ++t) {
    EXPECT_EQ(
        Check(job.tables.senders[t], job.exchanges[t], job.senders[t], Role::kTrainer).message(),
        "");
  }
  for (uint32_t w = 0; w < 2; ++w) {
    EXPECT_EQ(Check(job.tables.receivers[w], {}, job.receivers[w], Role::kWorker).message(), "");
  }
}

// The kinds of routes of sender 0, each by the first that is of it.
enum class Which { kPlain, kQuantising, kOfScales };

struct RouteCase {
  const char* name;
  Which which;
  std::function<void(Draft&)> spoil;
};

const RouteCase kSenderCases[] = {
    {"no_such_shard", Which::kPlain, [](Draft& d) { d.view.source_shard = 1; }},
    {"another_region", Which::kPlain, [](Draft& d) { d.view.source_region = 1; }},
    {"no_such_region", Which::kPlain, [](Draft& d) { d.view.source_region = 9; }},
    {"before_the_box", Which::kPlain, [](Draft& d) { d.view.source_offset_bytes -= 2; }},
    {"behind_the_region", Which::kPlain, [](Draft& d) { d.view.source_offset_bytes = 1 << 20; }},
    {"near_2_to_the_64", Which::kPlain,
     [](Draft& d) { d.view.source_offset_bytes = ~uint64_t{0}; }},
    {"a_stride_out_of_the_shard", Which::kPlain, [](Draft& d) { d.axes[0].source_stride = 500; }},
    {"a_negative_stride", Which::kPlain, [](Draft& d) { d.axes[0].source_stride = -16; }},
    {"strides_that_overflow", Which::kPlain,
     [](Draft& d) { d.axes[0].source_stride = int64_t{1} << 61; }},
    {"more_elements_than_its_box", Which::kPlain, [](Draft& d) { d.axes[0].extent = 7; }},
    {"elements_that_overflow", Which::kPlain,
     [](Draft& d) { d.axes[0] = {int64_t{1} << 62, 0, 0}; }},
    {"no_elements", Which::kPlain, [](Draft& d) { d.axes[0].extent = 0; }},
    {"a_box_of_others", Which::kPlain, [](Draft& d) { d.view.box.Set(0, 1, 7); }},
    {"a_negative_box", Which::kPlain,
     [](Draft& d) { d.view.box.Set(0, std::numeric_limits<int64_t>::min(), 6); }},
    {"wider_elements", Which::kPlain,
     [](Draft& d) {
       d.view.shape.source_element_bytes = d.view.shape.destination_element_bytes = 4;
       d.axes.back().source_stride = d.axes.back().destination_stride = 4;
     }},
    {"a_transform_of_other_sizes", Which::kPlain,
     [](Draft& d) { d.view.shape.transform = Transform::kF32ToBf16; }},
    {"runs_that_are_none", Which::kPlain, [](Draft& d) { d.axes.back().destination_stride = 4; }},
    {"another_trainers", Which::kPlain, [](Draft& d) { d.view.sender = 1; }},
    {"a_worker_again", Which::kQuantising, [](Draft& d) { d.view.receiver = 1; }},
    {"no_such_table", Which::kQuantising, [](Draft& d) { d.view.scale_table = 1; }},
    {"quantised_without_a_table", Which::kQuantising,
     [](Draft& d) { d.view.scale_table = kNoScaleTable; }},
    {"axes_that_are_not_the_box", Which::kQuantising,
     [](Draft& d) { std::swap(d.axes[0].extent, d.axes[1].extent); }},
    {"scales_behind_the_table", Which::kOfScales,
     [](Draft& d) { d.view.source_offset_bytes += 4; }},
    {"scales_from_memory", Which::kOfScales, [](Draft& d) { d.view.source_region = 0; }},
    {"scales_that_are_not_there", Which::kOfScales,
     [](Draft& d) { d.view.box.Set(0, d.view.box.begin(0) + 5, d.view.box.end(0) + 5); }},
};

class SenderRouteTest : public testing::TestWithParam<RouteCase> {};

TEST_P(SenderRouteTest, IsRefused) {
  const Job job;
  const RouteTable& routes = job.tables.senders[0];
  RouteTable spoilt;
  bool found = false;
  for (uint32_t r = 0; r < routes.size(); ++r) {
    Draft draft(routes[r]);
    const Which which = draft.view.shape.transform == Transform::kQuantise ? Which::kQuantising
                        : draft.view.scale_table != kNoScaleTable          ? Which::kOfScales
                                                                           : Which::kPlain;
    if (which == GetParam().which && !found) {
      found = true;
      GetParam().spoil(draft);
    }
    draft.AddTo(spoilt);
  }
  ASSERT_TRUE(found);
  EXPECT_EQ(Check(spoilt, job.exchanges[0], job.senders[0], Role::kTrainer).code(),
            absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Cases, SenderRouteTest, testing::ValuesIn(kSenderCases),
                         [](const auto& info) { return std::string(info.param.name); });

const RouteCase kReceiverCases[] = {
    {"no_such_shard", Which::kPlain, [](Draft& d) { d.view.destination_shard = 1; }},
    {"no_such_region", Which::kPlain, [](Draft& d) { d.view.destination_region = 1; }},
    {"before_the_box", Which::kPlain, [](Draft& d) { d.view.destination_offset_bytes += 2; }},
    {"behind_the_region", Which::kPlain,
     [](Draft& d) { d.view.destination_offset_bytes = 1 << 20; }},
    {"a_stride_out_of_the_shard", Which::kPlain,
     [](Draft& d) { d.axes[0].destination_stride = 500; }},
    {"a_negative_stride", Which::kPlain, [](Draft& d) { d.axes[0].destination_stride = -12; }},
    {"a_box_that_it_does_not_hold", Which::kPlain, [](Draft& d) { d.view.box.Set(1, 0, 6); }},
    {"another_workers", Which::kPlain, [](Draft& d) { d.view.receiver = 0; }},
};

class ReceiverRouteTest : public testing::TestWithParam<RouteCase> {};

TEST_P(ReceiverRouteTest, IsRefused) {
  const Job job;
  const RouteTable& routes = job.tables.receivers[1];
  RouteTable spoilt;
  for (uint32_t r = 0; r < routes.size(); ++r) {
    Draft draft(routes[r]);
    if (r == 1) GetParam().spoil(draft);
    draft.AddTo(spoilt);
  }
  ASSERT_EQ(spoilt.size(), 2u);
  EXPECT_EQ(Check(spoilt, {}, job.receivers[1], Role::kWorker).code(),
            absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Cases, ReceiverRouteTest, testing::ValuesIn(kReceiverCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(CheckRankPlan, AReceiverIsWrittenOnce) {
  const Job job;
  RouteTable routes = job.tables.receivers[1];
  Draft again(routes[0]);
  again.AddTo(routes);
  EXPECT_EQ(Check(routes, {}, job.receivers[1], Role::kWorker).message(),
            "route 2 of the plan: with it more than the 96 bytes of all shards are written");
}

struct ExchangeCase {
  const char* name;
  std::function<void(Exchange&)> spoil;
};

const ExchangeCase kExchangeCases[] = {
    {"no_such_shard", [](Exchange& e) { e.tables[0].shard = 1; }},
    {"another_region", [](Exchange& e) { e.tables[0].source_region = 1; }},
    {"another_offset", [](Exchange& e) { e.tables[0].source_offset_bytes = 0; }},
    {"another_type", [](Exchange& e) { e.tables[0].source_dtype = Dtype::kF32; }},
    {"other_strides", [](Exchange& e) { e.tables[0].source_strides[0] = 1 << 20; }},
    {"smaller_blocks", [](Exchange& e) { e.tables[0].block = {1, 1}; }},
    {"more_blocks", [](Exchange& e) { e.tables[0].blocks.Set(0, 0, int64_t{1} << 40); }},
    {"more_cells", [](Exchange& e) { e.tables[0].cells.Set(0, 0, int64_t{1} << 40); }},
    {"blocks_that_overflow",
     [](Exchange& e) {
       e.tables[0].blocks.Set(0, 0, int64_t{1} << 40);
       e.tables[0].blocks.Set(1, 0, int64_t{1} << 40);
     }},
    {"tables_without_end",
     [](Exchange& e) {
       for (int i = 0; i < 20; ++i) e.tables.push_back(e.tables[0]);
     }},
    {"a_message_behind_the_mailbox",
     [](Exchange& e) { e.incoming[0].mailbox_offset_bytes = e.mailbox_bytes - 8; }},
    {"a_mailbox_that_overflows",
     [](Exchange& e) {
       e.mailbox_bytes = uint64_t{1} << 63;
       e.incoming[0].mailbox_offset_bytes = uint64_t{1} << 62;
     }},
    {"maxima_combined_into_more",
     [](Exchange& e) {
       e.outgoing[0].into = e.outgoing[0].runs;
       e.outgoing[0].into.push_back(e.outgoing[0].runs[0]);
     }},
    {"a_message_that_is_combined_elsewhere",
     [](Exchange& e) { e.incoming[0].into = e.incoming[0].runs; }},
};

class ExchangeTest : public testing::TestWithParam<ExchangeCase> {};

TEST_P(ExchangeTest, IsRefused) {
  const Job job;
  Exchange exchange = job.exchanges[0];
  ASSERT_FALSE(exchange.incoming.empty());
  ASSERT_FALSE(exchange.outgoing.empty());
  GetParam().spoil(exchange);
  EXPECT_EQ(Check(job.tables.senders[0], exchange, job.senders[0], Role::kTrainer).code(),
            absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Cases, ExchangeTest, testing::ValuesIn(kExchangeCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(CheckDestinations, HoldsRoutesToTheRegionsOfTheReceiver) {
  const Job job;
  const RouteTable& routes = job.tables.receivers[1];
  EXPECT_EQ(CheckDestinations(routes, 0, 2, {96}).message(), "");
  EXPECT_EQ(CheckDestinations(routes, 0, 2, {~uint64_t{0}}).message(), "");
  EXPECT_EQ(CheckDestinations(routes, 0, 2, {95}).message(),
            "route 1 of the plan: bytes [72, 96) of region 0 of worker 1, which has 95 bytes");
  EXPECT_EQ(CheckDestinations(routes, 0, 1, {72}).message(), "");
  EXPECT_EQ(CheckDestinations(routes, 0, 2, {}).message(),
            "route 0 of the plan: region 0 of worker 1, which has 0");
}

TEST(DecodeRankPlan, RefusesMoreMaximaThanAnyMessageHas) {
  const Job job;
  Exchange exchange = job.exchanges[0];
  constexpr uint32_t kMany = 1 << 25;
  exchange.tables[0].blocks = Box::Whole({kMany, 1});
  exchange.outgoing[0].runs.assign(2, {0, 0, kMany});
  EXPECT_TRUE(DecodeRankPlan(EncodeRankPlan({}, exchange)).ok());
  exchange.outgoing[0].runs.push_back({0, 0, 1});
  EXPECT_EQ(DecodeRankPlan(EncodeRankPlan({}, exchange)).status().message(),
            "plan of a rank: a message of more than 67108864 maxima");
}

// A few bytes can describe any number of chunks.
TEST(DecodeRankPlan, RefusesMoreBytesThanAnyUpdateHas) {
  RouteTable routes;
  const int64_t extent = int64_t{1} << 45;
  const std::vector<Axis> axes = {{extent, 2, 2}};
  const RouteView route{.box = Box(std::vector<int64_t>{0}, std::vector<int64_t>{extent}),
                        .shape = {.transform = Transform::kNone,
                                  .source_element_bytes = 2,
                                  .destination_element_bytes = 2,
                                  .axes = axes}};
  routes.Add(route);
  EXPECT_TRUE(DecodeRankPlan(EncodeRankPlan(OneByOne(routes), {})).ok());
  routes.Add(route);
  EXPECT_EQ(DecodeRankPlan(EncodeRankPlan(OneByOne(routes), {})).status().message(),
            "routing table: more than 70368744177664 bytes in an update");
}

}  // namespace
}  // namespace waybill
