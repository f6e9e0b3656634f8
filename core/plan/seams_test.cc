// SPDX-License-Identifier: Apache-2.0

// Plans that quantise, against the slow truth: maxima of random elements, traded by the plan's
// messages, must be those of the whole blocks wherever a route uses them.

#include "core/plan/seams.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/plan/plan_check.h"
#include "core/plan/plan_codec.h"
#include "core/plan/planner.h"
#include "core/tensor/box_index.h"
#include "core/tensor/manifest.h"

namespace waybill {
namespace {

using Random = std::mt19937;

int64_t Below(Random& random, int64_t limit) {
  return static_cast<int64_t>(random() % static_cast<uint64_t>(limit));
}

std::vector<Box> RandomGrid(Random& random, const std::vector<int64_t>& shape, int cuts) {
  std::vector<Box> boxes = {Box::Whole(shape)};
  for (int d = 0; d < static_cast<int>(shape.size()); ++d) {
    for (int c = 0; c < cuts; ++c) {
      const int64_t cut = Below(random, shape[static_cast<size_t>(d)] + 1);
      std::vector<Box> next;
      for (const Box& box : boxes) {
        Box low = box, high = box;
        low.Set(d, box.begin(d), std::clamp(cut, box.begin(d), box.end(d)));
        high.Set(d, low.end(d), box.end(d));
        for (const Box& half : {low, high}) {
          if (!half.empty()) next.push_back(half);
        }
      }
      boxes = next;
    }
  }
  return boxes;
}

class Rank {
 public:
  explicit Rank(const std::vector<int64_t>& shape) : shape_(shape) {}

  void Add(const Format& format, const Box& box) {
    std::vector<int64_t> extents, strides(shape_.size());
    for (int d = 0; d < box.dimensions(); ++d) extents.push_back(box.extent(d));
    RowMajorStrides(extents, absl::MakeSpan(strides));
    shards_.push_back({format, box, strides, bytes_});
    bytes_ += (static_cast<uint64_t>(box.element_count()) * ElementBytes(format) + 7) / 8 * 8;
  }

  // With several tensors, which it holds alike.
  Manifest Finish(uint32_t tensors = 1) const {
    Manifest m;
    m.AddRegion("memory", std::max<uint64_t>(bytes_, 8) * tensors);
    for (uint32_t t = 0; t < tensors; ++t) {
      m.AddTensor(t == 0 ? "w" : absl::StrCat("w", t), shape_, Dtype::kBf16);
      for (const Shard& s : shards_) {
        m.AddShard(t, s.format, s.box, {0, s.offset + t * bytes_, s.strides});
      }
    }
    return m;
  }

 private:
  struct Shard {
    Format format;
    Box box;
    std::vector<int64_t> strides;
    uint64_t offset;
  };
  std::vector<int64_t> shape_;
  std::vector<Shard> shards_;
  uint64_t bytes_ = 0;
};

absl::StatusOr<Plan> PlanFor(const std::vector<Manifest>& senders,
                             const std::vector<Manifest>& receivers, PlanOptions options = {}) {
  std::vector<const Manifest*> t, w;
  for (const Manifest& m : senders) t.push_back(&m);
  for (const Manifest& m : receivers) w.push_back(&m);
  return MakePlan(t, w, options);
}

// The elements of each tensor.
using Elements = std::vector<std::vector<int>>;

// Everybody's maxima, by sender, table and block.
class Exchanger {
 public:
  Exchanger(const std::vector<Exchange>& exchanges, const std::vector<Manifest>& senders,
            const Elements& elements, const std::vector<int64_t>& shape)
      : exchanges_(exchanges), senders_(senders), elements_(elements), shape_(shape) {
    for (uint32_t t = 0; t < exchanges.size(); ++t) {
      auto& tables = maxima_.emplace_back();
      for (uint32_t i = 0; i < exchanges[t].tables.size(); ++i) {
        const ScaleTable& table = exchanges[t].tables[i];
        auto& maxima = tables.emplace_back();
        ForEachIndex(table.blocks, [&](absl::Span<const int64_t> at) {
          maxima.push_back(
              MaximumOf(Intersect(ElementsOfBlock(table.block, at), table.box), TensorOf(t, i)));
        });
      }
    }
  }

  uint32_t TensorOf(uint32_t sender, uint32_t table) const {
    return senders_[sender].shard_tensor(exchanges_[sender].tables[table].shard);
  }

  Box ElementsOfBlock(Extents2 block, absl::Span<const int64_t> at) const {
    const Box one = OneAt(at);
    return ElementsOf(one, block, shape_);
  }

  int MaximumOf(const Box& box, uint32_t tensor) const {
    int maximum = 0;
    ForEachIndex(box, [&](absl::Span<const int64_t> at) {
      int64_t i = 0;
      for (size_t d = 0; d < shape_.size(); ++d) i = i * shape_[d] + at[d];
      maximum = std::max(maximum, elements_[tensor][static_cast<size_t>(i)]);
    });
    return maximum;
  }

  // Step by step; all messages of a step leave before any arrives. False where both ends of a
  // message do not have it alike.
  bool Run() {
    uint32_t last = 0;
    for (const Exchange& exchange : exchanges_) {
      for (const MaximaMessage& m : exchange.outgoing) last = std::max(last, m.step);
    }
    size_t sent = 0, received = 0;
    for (uint32_t step = 0; step <= last; ++step) {
      std::map<std::pair<uint32_t, uint32_t>, std::pair<uint64_t, std::vector<int>>> mail;
      for (uint32_t t = 0; t < exchanges_.size(); ++t) {
        for (const MaximaMessage& m : exchanges_[t].outgoing) {
          if (m.step != step) continue;
          const std::vector<int> values = Gather(t, m.runs);
          if (m.peer == t) {
            Combine(t, m.into, values);
            continue;
          }
          mail[{t, m.peer}] = {m.mailbox_offset_bytes, values};
          ++sent;
        }
      }
      for (uint32_t t = 0; t < exchanges_.size(); ++t) {
        for (const MaximaMessage& m : exchanges_[t].incoming) {
          if (m.step != step) continue;
          const auto found = mail.find({m.peer, t});
          if (found == mail.end() || found->second.first != m.mailbox_offset_bytes ||
              found->second.second.size() != m.block_count()) {
            return false;
          }
          Combine(t, m.runs, found->second.second);
          ++received;
        }
      }
    }
    return sent == received;
  }

  int At(uint32_t sender, uint32_t table, size_t block) const {
    return maxima_[sender][table][block];
  }

 private:
  std::vector<int> Gather(uint32_t t, const std::vector<BlockRun>& runs) const {
    std::vector<int> values;
    for (const BlockRun& run : runs) {
      for (uint32_t i = 0; i < run.count; ++i) {
        values.push_back(maxima_[t][run.table][run.first + i]);
      }
    }
    return values;
  }
  void Combine(uint32_t t, const std::vector<BlockRun>& runs, const std::vector<int>& values) {
    size_t at = 0;
    for (const BlockRun& run : runs) {
      for (uint32_t i = 0; i < run.count; ++i) {
        int& maximum = maxima_[t][run.table][run.first + i];
        maximum = std::max(maximum, values[at++]);
      }
    }
  }

  const std::vector<Exchange>& exchanges_;
  const std::vector<Manifest>& senders_;
  const Elements& elements_;
  std::vector<int64_t> shape_;
  std::vector<std::vector<std::vector<int>>> maxima_;
};

// Every block that a sender's route uses has the whole block's maximum.
void CheckRoutes(const PlanTables& tables, uint32_t senders, const std::vector<int64_t>& shape,
                 const Exchanger& exchanger) {
  for (uint32_t t = 0; t < senders; ++t) {
    for (uint32_t r = 0; r < tables.senders[t].size(); ++r) {
      const RouteView route = tables.senders[t][r];
      ASSERT_NE(route.scale_table, kNoScaleTable);
      const ScaleTable& table = tables.exchanges[t].tables[route.scale_table];
      const Box blocks = route.shape.transform == Transform::kQuantise
                             ? CellsMeeting(route.box, table.block)
                             : BlocksOfCells(route.box, table.block, table.cell);
      ASSERT_TRUE(table.blocks.Contains(blocks));
      size_t index = 0;
      ForEachIndex(table.blocks, [&](absl::Span<const int64_t> at) {
        const Box whole = exchanger.ElementsOfBlock(table.block, at);
        const size_t i = index++;
        if (!blocks.Contains(CellsMeeting(whole, table.block))) return;
        EXPECT_EQ(exchanger.At(t, route.scale_table, i),
                  exchanger.MaximumOf(whole, exchanger.TensorOf(t, route.scale_table)))
            << "trainer " << t << ", block " << ToString(whole) << " of " << ShapeToString(shape);
      });
    }
  }
}

// Whoever quantises a part of a split block tells the receiver the block's scale, too.
void CheckScalesComeWithSplitBlocks(const PlanTables& tables, uint32_t senders,
                                    const std::vector<int64_t>& shape,
                                    const std::vector<Manifest>& receivers) {
  for (uint32_t t = 0; t < senders; ++t) {
    const RouteTable& routes = tables.senders[t];
    const auto tells = [&](uint32_t receiver, uint32_t tensor, const Box& cells) {
      for (uint32_t r = 0; r < routes.size(); ++r) {
        if (routes.receiver(r) == receiver && routes.reads_scales(r) &&
            routes.box(r).Contains(cells) &&
            receivers[receiver].shard_tensor(routes[r].destination_shard) == tensor) {
          return true;
        }
      }
      return false;
    };
    for (uint32_t r = 0; r < routes.size(); ++r) {
      const RouteView route = routes[r];
      if (route.shape.transform != Transform::kQuantise) continue;
      const ScaleTable& table = tables.exchanges[t].tables[route.scale_table];
      const uint32_t tensor = receivers[route.receiver].shard_tensor(route.destination_shard);
      ForEachIndex(CellsMeeting(route.box, table.block), [&](absl::Span<const int64_t> at) {
        const Box block = OneAt(at);
        if (table.box.Contains(ElementsOf(block, table.block, shape))) return;
        // Where shards cut the scales of a block, each part is told by a route of its own.
        ForEachIndex(CellsOfBlocks(block, table.block, table.cell, shape),
                     [&](absl::Span<const int64_t> cell) {
                       EXPECT_TRUE(tells(route.receiver, tensor, OneAt(cell)))
                           << "trainer " << t << ", worker " << route.receiver << ", block "
                           << ToString(block);
                     });
      });
    }
  }
}

// Returns how many routes of receivers there are. Each sends what has come to its place as one
// route.
size_t CheckRelays(const PlanTables& tables, uint32_t senders) {
  size_t count = 0;
  for (uint32_t s = senders; s < tables.senders.size(); ++s) {
    const RouteTable& arrivals = tables.receivers[s - senders];
    for (uint32_t r = 0; r < tables.senders[s].size(); ++r, ++count) {
      const RouteView route = tables.senders[s][r];
      EXPECT_EQ(route.shape.transform, Transform::kNone);
      bool came = false;
      for (uint32_t a = 0; a < arrivals.size(); ++a) {
        came = came || (arrivals.sender(a) < senders && !arrivals.witness(a) &&
                        arrivals.box(a) == route.box &&
                        arrivals[a].destination_shard == route.source_shard &&
                        arrivals.destination_offset(a) == route.source_offset_bytes);
      }
      EXPECT_TRUE(came) << "worker " << s - senders << " relays " << ToString(route.box);
    }
  }
  return count;
}

class SeamsTest : public testing::TestWithParam<Relays> {};

INSTANTIATE_TEST_SUITE_P(Relays, SeamsTest, testing::Values(Relays::kNever, Relays::kAlways),
                         [](const auto& relays) {
                           return relays.param == Relays::kNever ? "Never" : "Always";
                         });

TEST_P(SeamsTest, EveryRouteUsesTheMaximaOfWholeBlocksHoweverTheSourcesAreCut) {
  size_t messages = 0, witnesses = 0, relayed = 0;
  for (uint32_t seed = 0; seed < 400; ++seed) {
    Random random(seed);
    std::vector<int64_t> shape = {1 + Below(random, 30), 1 + Below(random, 30)};
    if (seed % 5 == 0) shape.insert(shape.begin(), 1 + Below(random, 3));
    const Quantisation kinds[] = {
        {.block_rows = 8, .block_columns = 8},
        {.block_rows = 8, .block_columns = 4, .scale_rows = 4, .scale_columns = 2},
        {.block_rows = 1, .block_columns = 0},
        {.block_rows = 0, .block_columns = 0}};
    const Quantisation q = kinds[seed % 4];
    const auto sender_count = static_cast<uint32_t>(1 + Below(random, 9));
    std::vector<Rank> senders(sender_count, Rank(shape));
    const auto cut_by = static_cast<int>(1 + Below(random, 3));
    for (const Box& box : RandomGrid(random, shape, cut_by)) {
      const auto first = static_cast<uint32_t>(Below(random, sender_count));
      senders[first].Add({Dtype::kBf16}, box);
      if (random() % 3 == 0 && sender_count > 1) {  // A replica.
        senders[(first + 1) % sender_count].Add({Dtype::kBf16}, box);
      }
    }
    std::vector<Manifest> t, w;
    const auto tensors = static_cast<uint32_t>(1 + Below(random, 3));
    for (const Rank& rank : senders) t.push_back(rank.Finish(tensors));
    if (random() % 3 == 0) t.push_back(t[random() % t.size()]);
    const Extents2 cell = ScaleExtents(q, shape);
    for (int i = 0; i < 2; ++i) {
      Rank receiver(shape);
      for (const Box& box : RandomGrid(random, shape, 1)) {
        if (random() % 2 == 0) receiver.Add(Format::Quantised(q), box);
      }
      receiver.Add(Format::Scales(q), Box::Whole(GridShape(shape, cell)));
      w.push_back(receiver.Finish(tensors));
    }
    if (random() % 2 == 0) w.push_back(w[random() % 2]);
    const auto plan = PlanFor(t, w, {.smallest_piece_bytes = 16, .relays = GetParam()});
    ASSERT_TRUE(plan.ok()) << plan.status();
    const PlanTables tables = MakeTables(*plan);

    Elements elements(tensors);
    for (std::vector<int>& of_one : elements) {
      of_one.resize(static_cast<size_t>(Box::Whole(shape).element_count()));
      for (int& element : of_one) element = static_cast<int>(random() % 100'000);
    }
    Exchanger exchanger(tables.exchanges, t, elements, shape);
    ASSERT_TRUE(exchanger.Run()) << "seed " << seed;
    const auto sender_ranks = static_cast<uint32_t>(t.size());
    CheckRoutes(tables, sender_ranks, shape, exchanger);
    CheckScalesComeWithSplitBlocks(tables, sender_ranks, shape, w);
    relayed += CheckRelays(tables, sender_ranks);
    for (uint32_t s = sender_ranks; s < tables.senders.size(); ++s) {
      EXPECT_EQ(
          CheckRankPlan({tables.senders[s], {}}, w[s - sender_ranks], Role::kTrainer).message(),
          "");
    }
    for (uint32_t i = 0; i < t.size(); ++i) {
      const RankPlan rank_plan = {tables.senders[i], tables.exchanges[i]};
      const auto decoded =
          DecodeRankPlan(EncodeRankPlan(plan->SenderBundles(i), rank_plan.exchange));
      ASSERT_TRUE(decoded.ok()) << decoded.status();
      EXPECT_EQ(*decoded, rank_plan);
      EXPECT_EQ(CheckRankPlan(*decoded, t[i], Role::kTrainer).message(), "");
      messages += rank_plan.exchange.outgoing.size();
      for (uint32_t r = 0; r < rank_plan.routes.size(); ++r) {
        witnesses += rank_plan.routes.witness(r);
      }
    }
    for (uint32_t i = 0; i < w.size(); ++i) {
      const auto decoded = DecodeRankPlan(EncodeRankPlan(plan->ReceiverBundles(i), {}));
      ASSERT_TRUE(decoded.ok()) << decoded.status();
      EXPECT_EQ(decoded->routes, tables.receivers[i]);
      EXPECT_EQ(CheckRankPlan(*decoded, w[i], Role::kWorker).message(), "");
    }
  }
  EXPECT_GT(messages, 1000u);
  EXPECT_GT(witnesses, 1000u);
  EXPECT_EQ(relayed > 500, GetParam() == Relays::kAlways);
}

// Rows of a tensor of 64 columns, cut at `cuts`, one part to a sender; one receiver has it all.
Plan PlanRows(const std::vector<int64_t>& cuts, const Quantisation& q) {
  const std::vector<int64_t> shape = {cuts.back(), 64};
  std::vector<Manifest> senders;
  int64_t from = 0;
  for (const int64_t to : cuts) {
    Rank rank(shape);
    rank.Add({Dtype::kBf16}, Box({from, 0}, {to, 64}));
    senders.push_back(rank.Finish());
    from = to;
  }
  Rank receiver(shape);
  receiver.Add(Format::Quantised(q), Box::Whole(shape));
  receiver.Add(Format::Scales(q), Box::Whole(GridShape(shape, ScaleExtents(q, shape))));
  const auto plan = PlanFor(senders, {receiver.Finish()});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

size_t MessageCount(const Plan& plan) {
  size_t count = 0;
  for (const Exchange& exchange : MakeTables(plan).exchanges) count += exchange.outgoing.size();
  return count;
}

constexpr Quantisation kBlocks = {.block_rows = 32, .block_columns = 32};

TEST(Seams, CutsAtBlocksNeedNoMessage) {
  EXPECT_EQ(MessageCount(PlanRows({32, 96, 128}, kBlocks)), 0u);
  EXPECT_EQ(MessageCount(PlanRows({31, 97}, {.block_rows = 1, .block_columns = 0})), 0u);
}

TEST(Seams, TwoOwnersSwapInOneStepAndSendOnlyTheMaxima) {
  const Plan plan = PlanRows({40, 100}, kBlocks);
  ASSERT_EQ(MessageCount(plan), 2u);
  for (uint32_t t = 0; t < 2; ++t) {
    const Exchange exchange = plan.SenderExchange(t);
    const MaximaMessage& message = exchange.outgoing[0];
    EXPECT_EQ(message.peer, 1 - t);
    EXPECT_EQ(message.step, 0u);
    EXPECT_EQ(message.block_count(), 2u);  // 64 columns in blocks of 32.
    EXPECT_EQ(exchange.mailbox_bytes, 64u);
  }
  // Sender 0 has the block's first row and writes its scale; sender 1 tells what it used.
  const PlanTables tables = MakeTables(plan);
  uint32_t witnesses = 0;
  for (uint32_t r = 0; r < tables.senders[1].size(); ++r) witnesses += tables.senders[1].witness(r);
  EXPECT_EQ(witnesses, 1u);
  for (uint32_t r = 0; r < tables.senders[0].size(); ++r)
    EXPECT_FALSE(tables.senders[0].witness(r));
  // And the bytes are those of the elements and the scales, once.
  EXPECT_EQ(plan.total_bytes(), 100u * 64 + 4 * 2 * 4);
}

TEST(Seams, OfMoreOwnersTheWriterOfTheScaleCollects) {
  for (const int64_t owners : {3, 8, 32}) {
    std::vector<int64_t> cuts;
    for (int64_t i = 1; i <= owners; ++i) cuts.push_back(i);
    const Plan plan = PlanRows(cuts, kBlocks);
    EXPECT_EQ(MessageCount(plan), static_cast<size_t>(2 * (owners - 1)));
    EXPECT_EQ(plan.SenderExchange(0).incoming.size(), static_cast<size_t>(owners - 1));
    EXPECT_EQ(plan.SenderExchange(0).outgoing.back().step, 1u);
  }
}

TEST(Seams, MaximaOfAWholeMatrixGoAlongATree) {
  std::vector<int64_t> cuts;
  for (int64_t i = 1; i <= 31; ++i) cuts.push_back(i * 5);
  const Plan plan = PlanRows(cuts, {.block_rows = 0, .block_columns = 0});
  EXPECT_EQ(MessageCount(plan), 2u * 30);
  uint32_t last = 0;
  for (const Exchange& exchange : MakeTables(plan).exchanges) {
    EXPECT_LE(exchange.incoming.size(), 3u);  // Two children and a parent.
    for (const MaximaMessage& m : exchange.outgoing) last = std::max(last, m.step);
  }
  EXPECT_EQ(last, 7u);  // Four levels up, four down.
}

// Tensors of rows that `shards` senders share, each of them `replicas` times (rank: replica *
// shards + shard), to two receivers that each have it all.
Plan PlanReplicas(int tensors, int64_t rows, int64_t columns, uint32_t shards, uint32_t replicas,
                  const Quantisation& q) {
  const std::vector<int64_t> shape = {rows, columns};
  const std::vector<int64_t> strides = {columns, 1};
  std::vector<Manifest> senders(shards * replicas), receivers(2);
  const auto add = [&](Manifest& m, const std::string& name, const Format& format, const Box& box,
                       const std::vector<int64_t>& strides_of_box) {
    const auto bytes = static_cast<uint64_t>(box.element_count()) * ElementBytes(format);
    const uint32_t region =
        m.AddRegion(absl::StrCat(name, " ", ToString(format)), (bytes + 7) / 8 * 8);
    m.AddShard(m.tensor_count() - 1, format, box, {region, 0, strides_of_box});
  };
  for (int t = 0; t < tensors; ++t) {
    const std::string name = absl::StrCat("t", t);
    for (uint32_t rank = 0; rank < senders.size(); ++rank) {
      const int64_t shard = rank % shards;
      const Box box({rows * shard / shards, 0}, {rows * (shard + 1) / shards, columns});
      senders[rank].AddTensor(name, shape, Dtype::kBf16);
      add(senders[rank], name, {Dtype::kBf16}, box, strides);
    }
    const Box grid = Box::Whole(GridShape(shape, ScaleExtents(q, shape)));
    for (Manifest& receiver : receivers) {
      receiver.AddTensor(name, shape, Dtype::kBf16);
      add(receiver, name, Format::Quantised(q), Box::Whole(shape), strides);
      add(receiver, name, Format::Scales(q), grid, {grid.extent(1), 1});
    }
  }
  const auto plan = PlanFor(senders, receivers);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

// Every message goes between senders of one set of replicas.
size_t MessagesBetweenSets(const Plan& plan, uint32_t shards) {
  size_t count = 0;
  for (uint32_t t = 0; t < plan.sender_count(); ++t) {
    for (const MaximaMessage& m : plan.SenderExchange(t).outgoing)
      count += m.peer / shards != t / shards;
  }
  return count;
}

uint64_t MaximaTraded(const Plan& plan) {
  uint64_t count = 0;
  for (const Exchange& exchange : MakeTables(plan).exchanges) {
    for (const MaximaMessage& m : exchange.outgoing) count += m.block_count();
  }
  return count;
}

TEST(Seams, AllPartsOfABlockComeFromOneSetOfReplicas) {
  for (const uint32_t replicas : {1u, 2u, 4u}) {
    // Four shards of 850 rows: three of the block rows are split, each between two of them. Two
    // messages for each in every set, and each block's maximum twice, whatever the replicas.
    const Plan plan = PlanReplicas(24, 3400, 1024, 4, replicas, {});
    EXPECT_EQ(MessageCount(plan), 6 * replicas);
    EXPECT_EQ(MessagesBetweenSets(plan, 4), 0u);
    EXPECT_EQ(MaximaTraded(plan), 24u * 3 * 8 * 2);
    EXPECT_LE(plan.balance().sender_imbalance(), 1.001);
  }
}

// Shards that are too small to be cut, and blocks that have everything: tensors go to one set each.
TEST(Seams, SetsOfReplicasShareTensorsThatAreNotCut) {
  const Quantisation whole = {.block_rows = 0, .block_columns = 0};
  for (const Quantisation& q : {Quantisation{}, whole}) {
    const Plan plan = PlanReplicas(96, 200, 1024, 4, 2, q);
    EXPECT_EQ(MessagesBetweenSets(plan, 4), 0u);
    // Blocks of 128 rows have parts in three or two shards each; whole ones trade as three pairs in
    // a tree.
    EXPECT_EQ(MaximaTraded(plan), 96u * (q == whole ? 6 : (4 + 2) * 8));
    EXPECT_LE(plan.balance().sender_imbalance(), 1.01);
  }
}

struct RefusedCase {
  const char* name;
  std::vector<Manifest> senders;
  std::vector<Manifest> receivers;
  const char* message;
};

TEST(Seams, WhatCannotBeRightIsRefusedByName) {
  const std::vector<int64_t> shape = {64, 64};
  const auto rank = [&](const std::vector<std::pair<Format, Box>>& shards) {
    Rank rank(shape);
    for (const auto& [format, box] : shards) rank.Add(format, box);
    return rank.Finish();
  };
  const Format bf16{Dtype::kBf16}, q = Format::Quantised(kBlocks), s = Format::Scales(kBlocks);
  const RefusedCase cases[] = {
      {"a_cut_within_a_block_without_its_scale",
       {rank({{bf16, Box({0, 0}, {64, 64})}})},
       {rank({{q, Box({0, 0}, {48, 64})}, {s, Box({0, 0}, {1, 2})}})},
       "tensor \"w\": worker 0 holds [0, 48) x [0, 64) as F8_E4M3 by 32x32 with F32 scales, but "
       "not its scales [1, 2) x [0, 2) of the grid [2, 2]: a part that ends within a block needs "
       "that block's scale too"},
      {"a_block_held_in_part",
       {rank({{bf16, Box({0, 0}, {48, 64})}})},
       {rank({{q, Box({0, 0}, {48, 64})}, {s, Box({0, 0}, {2, 2})}})},
       "tensor \"w\": the scale of block [32, 64) x [0, 32) needs [48, 64) x [0, 32), which the "
       "trainers do not hold; they hold trainer 0 [0, 48) x [0, 64)"},
      {"integers",
       {rank({{Format{Dtype::kI8}, Box({0, 0}, {64, 64})}})},
       {rank({{q, Box({0, 0}, {64, 64})}, {s, Box({0, 0}, {2, 2})}})},
       "tensor \"w\": worker 0: trainer 0 holds I8, wanted is F8_E4M3 by 32x32 with F32 scales: no "
       "conversion from I8 to F8_E4M3 by 32x32 with F32 scales; there are: the same format, U8 for "
       "8-bit floats, F32 to and from F16 and BF16, BF16 to F16, each of them quantised; for "
       "others the trainer "
       "adds a tensor of the wanted type, which it fills before each publish"},
  };
  for (const RefusedCase& c : cases) {
    const auto plan = PlanFor(c.senders, c.receivers);
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument) << c.name;
    EXPECT_EQ(std::string(plan.status().message()), c.message) << c.name;
  }
}

TEST(Seams, ATransposedPlaceIsRefused) {
  Manifest receiver;
  receiver.AddRegion("memory", 64 * 64 + 16);
  receiver.AddTensor("w", {64, 64}, Dtype::kBf16);
  receiver.AddShard(0, Format::Quantised(kBlocks), Box({0, 0}, {64, 64}), {0, 16, {1, 64}});
  receiver.AddShard(0, Format::Scales(kBlocks), Box({0, 0}, {2, 2}), {0, 0, {1, 2}});
  Rank sender({64, 64});
  sender.Add({Dtype::kBf16}, Box({0, 0}, {64, 64}));
  const auto plan = PlanFor({sender.Finish()}, {receiver});
  EXPECT_EQ(
      std::string(plan.status().message()),
      "tensor \"w\": worker 0 and trainer 0: strides [1, 64] of the worker: elements that are "
      "quantised on the way lie in rows, the last dimension's as neighbours");
}

TEST(Seams, OneFieldOfTheFormatIsAnotherPlan) {
  const uint64_t hash = PlanRows({40, 100}, kBlocks).hash();
  Quantisation other = kBlocks;
  other.epsilon = 1e-10f;
  EXPECT_NE(PlanRows({40, 100}, other).hash(), hash);
  other = kBlocks;
  other.division = Division::kDivide;
  EXPECT_NE(PlanRows({40, 100}, other).hash(), hash);
  EXPECT_EQ(PlanRows({40, 100}, kBlocks).hash(), hash);
}

}  // namespace
}  // namespace waybill
