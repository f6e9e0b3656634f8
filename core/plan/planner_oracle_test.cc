// SPDX-License-Identifier: Apache-2.0

// Plans of random manifests against the slow truth: every element is walked and asked where it is
// from.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/plan/plan_check.h"
#include "core/plan/plan_codec.h"
#include "core/plan/planner.h"
#include "core/tensor/manifest.h"
#include "core/tensor/manifest_check.h"

namespace waybill {
namespace {

constexpr Format kI32{Dtype::kI32};

using Random = std::mt19937;

int64_t Below(Random& random, int64_t limit) {
  return static_cast<int64_t>(random() % static_cast<uint64_t>(limit));
}

// `shape` cut into a random grid of boxes.
std::vector<Box> RandomGrid(Random& random, const std::vector<int64_t>& shape) {
  std::vector<Box> boxes = {Box::Whole(shape)};
  for (int d = 0; d < static_cast<int>(shape.size()); ++d) {
    const int64_t cut = Below(random, shape[static_cast<size_t>(d)] + 1);
    std::vector<Box> next;
    for (const Box& box : boxes) {
      Box low = box, high = box;
      low.Set(d, 0, cut);
      high.Set(d, cut, box.end(d));
      for (const Box& half : {low, high}) {
        if (!half.empty()) next.push_back(half);
      }
    }
    boxes = next;
  }
  return boxes;
}

// One rank under construction: each shard gets a dense place of its own in some axis order.
class RankBuilder {
 public:
  void Add(Random& random, uint32_t tensor, absl::Span<const int64_t> shape, const Box& box) {
    const std::string name = "t" + std::to_string(tensor);
    auto found = std::find(names_.begin(), names_.end(), name);
    if (found == names_.end()) {
      manifest_.AddTensor(name, shape, Dtype::kI32);
      names_.push_back(name);
      found = names_.end() - 1;
    }
    std::vector<int> order(shape.size());
    for (size_t d = 0; d < order.size(); ++d) order[d] = static_cast<int>(d);
    if (random() % 3 == 0) std::shuffle(order.begin(), order.end(), random);
    std::vector<int64_t> strides(shape.size());
    int64_t stride = 1;
    for (size_t i = order.size(); i-- > 0;) {
      strides[static_cast<size_t>(order[i])] = stride;
      stride *= box.extent(order[i]);
    }
    shards_.push_back({static_cast<uint32_t>(found - names_.begin()), box, strides, bytes_});
    bytes_ += static_cast<uint64_t>(box.element_count()) * 4;
  }

  Manifest Finish() {
    manifest_.AddRegion("memory", bytes_);
    for (const Shard& s : shards_) {
      manifest_.AddShard(s.tensor, kI32, s.box, {0, s.offset, s.strides});
    }
    return manifest_;
  }

 private:
  struct Shard {
    uint32_t tensor;
    Box box;
    std::vector<int64_t> strides;
    uint64_t offset;
  };
  Manifest manifest_;
  std::vector<std::string> names_;
  std::vector<Shard> shards_;
  uint64_t bytes_ = 0;
};

// Visits each element of a shard: its number in the whole tensor, and its byte offset.
template <typename Visit>
void ForEachElement(const Manifest& manifest, uint32_t index, Visit visit) {
  const ShardView shard = manifest.shard(index);
  const auto shape = manifest.tensor_shape(shard.tensor_index);
  std::vector<int64_t> at(shard.box.begins().begin(), shard.box.begins().end());
  if (shard.box.empty()) return;
  while (true) {
    int64_t number = 0, place = 0;
    for (size_t d = 0; d < at.size(); ++d) {
      number = number * shape[d] + at[d];
      place += (at[d] - shard.box.begin(static_cast<int>(d))) * shard.place.strides[d];
    }
    visit(static_cast<int32_t>(number),
          shard.place.offset_bytes + static_cast<uint64_t>(place) * 4);
    size_t d = at.size();
    while (d-- > 0) {
      if (++at[d] < shard.box.end(static_cast<int>(d))) break;
      at[d] = shard.box.begin(static_cast<int>(d));
      if (d == 0) return;
    }
    if (at.empty()) return;
  }
}

// The value of an element: unlike any other's.
int32_t ValueOf(absl::string_view tensor, int32_t number) {
  return (tensor[1] - '0' + 1) * 1'000'000 + number;
}

std::vector<uint8_t> Fill(const Manifest& manifest) {
  std::vector<uint8_t> memory(manifest.region_bytes(0));
  for (uint32_t i = 0; i < manifest.shard_count(); ++i) {
    const auto name = manifest.tensor_name(manifest.shard(i).tensor_index);
    ForEachElement(manifest, i, [&](int32_t number, uint64_t offset) {
      const int32_t value = ValueOf(name, number);
      std::memcpy(&memory[offset], &value, 4);
    });
  }
  return memory;
}

// A route, element by element, counting what it writes.
void RunRoute(const RouteView& route, const std::vector<uint8_t>& source,
              std::vector<uint8_t>& destination, std::vector<int>& writes) {
  const auto axes = route.shape.axes;
  std::vector<int64_t> at(axes.size(), 0);
  for (int64_t e = 0; e < route.shape.element_count(); ++e) {
    int64_t rest = e;
    uint64_t from = route.source_offset_bytes, to = route.destination_offset_bytes;
    for (size_t a = axes.size(); a-- > 0;) {
      const int64_t i = rest % axes[a].extent;
      rest /= axes[a].extent;
      from += static_cast<uint64_t>(i * axes[a].source_stride);
      to += static_cast<uint64_t>(i * axes[a].destination_stride);
    }
    ASSERT_LE(from + 4, source.size());
    ASSERT_LE(to + 4, destination.size());
    std::memcpy(&destination[to], &source[from], 4);
    for (int b = 0; b < 4; ++b) ++writes[to + static_cast<uint64_t>(b)];
  }
}

// What every rank holds is drawn: tensors that are cut alike, as layers and experts are, and ranks
// that hold the same, as replicas do.
uint64_t MostCopies(const Bundles& bundles) {
  uint64_t most = 0;
  for (uint32_t i = 0; i < bundles.size(); ++i) {
    most = std::max(most, bundles.bundle(i).copies.count());
  }
  return most;
}

// Checks for two plans with as many ranks that what is encoded alike is one table. Returns how many
// such tables there are.
uint64_t ExpectEqualTablesWhereBytesAre(const Plan& a, const Plan& b) {
  uint64_t equal = 0;
  for (uint32_t t = 0; t < a.sender_count(); ++t) {
    if (EncodeBundledRoutes(a.SenderBundles(t)) != EncodeBundledRoutes(b.SenderBundles(t)))
      continue;
    EXPECT_EQ(a.SenderRoutes(t), b.SenderRoutes(t));
    ++equal;
  }
  for (uint32_t w = 0; w < a.receiver_count(); ++w) {
    if (EncodeBundledRoutes(a.ReceiverBundles(w)) != EncodeBundledRoutes(b.ReceiverBundles(w)))
      continue;
    EXPECT_EQ(a.ReceiverRoutes(w), b.ReceiverRoutes(w));
    ++equal;
  }
  return equal;
}

constexpr double kSlowNic = 400;  // Bytes per second.
constexpr double kFastNic = 1000;

// Declares hosts with one rank each, and NICs of two speeds.
void PutOnNetwork(Random& random, const char* role, std::vector<Manifest>& manifests) {
  for (size_t rank = 0; rank < manifests.size(); ++rank) {
    manifests[rank].set_host(role + std::to_string(rank));
    const double speed = random() % 2 == 0 ? kSlowNic : kFastNic;
    manifests[rank].nics() = {{.name = "n", .bytes_per_second = static_cast<uint64_t>(speed)}};
  }
}

// Declares racks for some ranks, and hosts for some that have none, so that senders and receivers
// have racks and hosts in common.
void PutInRacks(Random& random, std::vector<Manifest>& manifests) {
  for (Manifest& manifest : manifests) {
    if (manifest.host().empty() && random() % 4 == 0) {
      manifest.set_host("host " + std::to_string(random() % 4));
    }
    if (random() % 4 != 0) manifest.set_rack("rack " + std::to_string(random() % 3));
  }
}

// Returns how long the busiest NIC of a plan carries, by its routes. NICs carry as much in either
// direction.
double BusiestSeconds(const PlanTables& tables, const std::vector<Manifest>& senders,
                      const std::vector<Manifest>& receivers) {
  std::vector<uint64_t> sent(tables.senders.size()), received(receivers.size());
  for (size_t t = 0; t < tables.senders.size(); ++t) {
    for (uint32_t i = 0; i < tables.senders[t].size(); ++i) {
      const RouteView route = tables.senders[t][i];
      sent[t] += route.shape.size_bytes();
      received[route.receiver] += route.shape.size_bytes();
    }
  }
  double busiest = 0;
  const auto load = [&](uint64_t bytes, const Manifest& rank) {
    busiest = std::max(
        busiest, static_cast<double>(bytes) / static_cast<double>(rank.nics()[0].bytes_per_second));
  };
  for (size_t t = 0; t < sent.size(); ++t) {
    load(sent[t], t < senders.size() ? senders[t] : receivers[t - senders.size()]);
  }
  for (size_t w = 0; w < received.size(); ++w) load(received[w], receivers[w]);
  return busiest;
}

class PlannerOracle : public testing::TestWithParam<Relays> {};

INSTANTIATE_TEST_SUITE_P(Relays, PlannerOracle,
                         testing::Values(Relays::kNever, Relays::kAlways,
                                         Relays::kWherePredictedFaster),
                         [](const auto& relays) {
                           return relays.param == Relays::kNever    ? "Never"
                                  : relays.param == Relays::kAlways ? "Always"
                                                                    : "WherePredictedFaster";
                         });

TEST_P(PlannerOracle, EveryElementOfEveryReceiverIsWrittenOnceFromItsOwner) {
  uint64_t most_copies = 0, equal_tables = 0, all_tables = 0;
  uint32_t jobs_with_relays = 0, jobs_with_a_choice = 0;
  for (uint32_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const auto distinct_senders = static_cast<uint32_t>(1 + Below(random, 4));
    const auto distinct_receivers = static_cast<uint32_t>(1 + Below(random, 3));
    std::vector<RankBuilder> holders(distinct_senders), takers(distinct_receivers);
    const auto kinds = static_cast<uint32_t>(1 + Below(random, 4));
    uint32_t tensor = 0;
    for (uint32_t kind = 0; kind < kinds; ++kind) {
      std::vector<int64_t> shape;
      for (int64_t d = Below(random, 4); d > 0; --d) shape.push_back(1 + Below(random, 12));
      const uint32_t first_alike = random();
      for (int64_t alike = 1 + Below(random, 3); alike > 0; --alike, ++tensor) {
        Random cuts(first_alike);
        // Some holders cut in one way and some in another, and some hold the same.
        for (int replica = 0; replica < 1 + static_cast<int>(cuts() % 2); ++replica) {
          for (const Box& box : RandomGrid(cuts, shape)) {
            const uint32_t first = cuts() % distinct_senders;
            holders[first].Add(cuts, tensor, shape, box);
            if (cuts() % 2 == 0 && distinct_senders > 1) {
              holders[(first + 1) % distinct_senders].Add(cuts, tensor, shape, box);
            }
          }
        }
        for (RankBuilder& taker : takers) {
          for (const Box& box : RandomGrid(cuts, shape)) {
            if (cuts() % 4 != 0) taker.Add(cuts, tensor, shape, box);
          }
        }
      }
    }
    std::vector<Manifest> sources, destinations;
    std::vector<const Manifest*> source_pointers, destination_pointers;
    for (RankBuilder& b : holders) sources.push_back(b.Finish());
    for (RankBuilder& b : takers) destinations.push_back(b.Finish());
    for (int64_t i = Below(random, 3); i > 0; --i)
      sources.push_back(sources[random() % sources.size()]);
    for (int64_t i = Below(random, 3); i > 0; --i) {
      destinations.push_back(destinations[random() % destinations.size()]);
    }
    const auto senders = static_cast<uint32_t>(sources.size());
    const auto receivers = static_cast<uint32_t>(destinations.size());
    if (GetParam() == Relays::kWherePredictedFaster) {
      PutOnNetwork(random, "trainer ", sources);
      PutOnNetwork(random, "worker ", destinations);
    }
    if (random() % 2 == 0) {
      PutInRacks(random, sources);
      PutInRacks(random, destinations);
    }
    for (const Manifest& m : sources) {
      ASSERT_EQ(CheckManifest(m, Holes::kAllowed).message(), "");
      source_pointers.push_back(&m);
    }
    for (const Manifest& m : destinations) {
      ASSERT_EQ(CheckManifest(m, Holes::kRefused).message(), "");
      destination_pointers.push_back(&m);
    }

    const auto plan = MakePlan(source_pointers, destination_pointers,
                               {.smallest_piece_bytes = 64, .relays = GetParam()});
    ASSERT_TRUE(plan.ok()) << plan.status();
    most_copies = std::max(most_copies, MostCopies(plan->bundles()));
    const Manifest nothing;
    auto fewer = source_pointers;
    fewer[random() % fewer.size()] = &nothing;
    const auto without =
        MakePlan(fewer, destination_pointers, {.smallest_piece_bytes = 64, .relays = GetParam()});
    if (without.ok() && without->sender_count() == plan->sender_count()) {
      equal_tables += ExpectEqualTablesWhereBytesAre(*plan, *without);
      all_tables += plan->sender_count() + plan->receiver_count();
    }
    const PlanTables tables = MakeTables(*plan);

    jobs_with_relays += plan->relays();
    ASSERT_EQ(plan->sender_count(), senders + (plan->relays() ? receivers : 0));
    for (uint32_t t = 0; t < plan->sender_count(); ++t) {
      ASSERT_EQ(CheckRankPlan(
                    *DecodeRankPlan(EncodeRankPlan(plan->SenderBundles(t), tables.exchanges[t])),
                    t < senders ? sources[t] : destinations[t - senders], Role::kTrainer)
                    .message(),
                "");
    }
    for (uint32_t w = 0; w < receivers; ++w) {
      std::vector<uint64_t> bytes(plan->sender_count());
      for (uint32_t i = 0; i < tables.receivers[w].size(); ++i) {
        bytes[tables.receivers[w][i].sender] += tables.receivers[w][i].shape.size_bytes();
      }
      EXPECT_EQ(plan->bundles().BytesTo(w), bytes);
    }
    // The way that is taken has the less busy NIC, and relays are faster by a tenth.
    if (GetParam() == Relays::kWherePredictedFaster) {
      const auto other = MakePlan(source_pointers, destination_pointers,
                                  {.smallest_piece_bytes = 64,
                                   .relays = plan->relays() ? Relays::kNever : Relays::kAlways});
      ASSERT_TRUE(other.ok()) << other.status();
      if (other->relays() != plan->relays()) {
        ++jobs_with_a_choice;
        const double chosen = BusiestSeconds(tables, sources, destinations);
        const double refused = BusiestSeconds(MakeTables(*other), sources, destinations);
        // A plan deals whole elements out: two more of them on a slow NIC are no mistake.
        constexpr double kTwoElements = 2 * 4 / kSlowNic;
        EXPECT_LE(plan->relays() ? chosen - 0.9 * refused : 0.9 * chosen - refused, kTwoElements);
      }
    }
    for (uint32_t w = 0; w < receivers; ++w) {
      ASSERT_EQ(CheckRankPlan(*DecodeRankPlan(EncodeRankPlan(plan->ReceiverBundles(w), {})),
                              destinations[w], Role::kWorker)
                    .message(),
                "");
    }

    std::vector<std::vector<uint8_t>> memory, got;
    std::vector<std::vector<int>> writes;
    for (const Manifest& m : sources) memory.push_back(Fill(m));
    for (const Manifest& m : destinations) {
      got.emplace_back(m.region_bytes(0), 0xEE);
      writes.emplace_back(m.region_bytes(0), 0);
    }
    // What is relayed has come from a sender, and not by another relay.
    for (uint32_t t = 0; t < plan->sender_count(); ++t) {
      for (uint32_t i = 0; i < tables.senders[t].size(); ++i) {
        const RouteView route = tables.senders[t][i];
        RunRoute(route, t < senders ? memory[t] : got[t - senders], got[route.receiver],
                 writes[route.receiver]);
      }
      if (t + 1 == senders) memory.insert(memory.end(), got.begin(), got.end());
    }
    for (uint32_t t = senders; t < plan->sender_count(); ++t) {
      for (uint32_t i = 0; i < tables.senders[t].size(); ++i) {
        const RouteView route = tables.senders[t][i];
        std::vector<uint8_t> again = got[route.receiver];
        std::vector<int> ignored(again.size(), 0);
        RunRoute(route, memory[t], again, ignored);
        EXPECT_EQ(again, got[route.receiver]);
      }
    }
    for (uint32_t w = 0; w < receivers; ++w) {
      EXPECT_EQ(got[w], Fill(destinations[w]));
      EXPECT_EQ(writes[w], std::vector<int>(got[w].size(), 1));
    }
  }
  if (GetParam() == Relays::kWherePredictedFaster) {
    EXPECT_GT(jobs_with_relays, 50u);
    EXPECT_GT(jobs_with_a_choice, jobs_with_relays + 50);
  } else {
    EXPECT_EQ(jobs_with_relays > 100, GetParam() == Relays::kAlways);
  }
  EXPECT_GT(equal_tables, all_tables / 20);
  EXPECT_LT(equal_tables, all_tables);
  // The jobs have classes of tensors and of ranks. What is relayed is dealt out copy by copy.
  EXPECT_GE(most_copies, GetParam() == Relays::kNever ? 6u : 3u);
}

}  // namespace
}  // namespace waybill
