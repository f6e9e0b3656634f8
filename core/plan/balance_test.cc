// SPDX-License-Identifier: Apache-2.0

// How well the bytes of replicated sources are shared out.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "core/plan/cover.h"
#include "core/plan/planner.h"
#include "core/tensor/manifest.h"

namespace waybill {
namespace {

constexpr Format kBf16{Dtype::kBf16};

// Ranks that each hold some tensors of `columns` columns, whole.
class Ranks {
 public:
  explicit Ranks(uint32_t count) : manifests_(count) {}

  void Add(uint32_t rank, absl::string_view name, int64_t rows, int64_t columns) {
    Manifest& m = manifests_[rank];
    const std::vector<int64_t> shape = {rows, columns};
    const uint32_t tensor = m.AddTensor(name, shape, Dtype::kBf16);
    const uint32_t region = m.AddRegion(name, static_cast<uint64_t>(rows * columns) * 2);
    m.AddShard(tensor, kBf16, Box::Whole(shape), {region, 0, {columns, 1}});
  }
  Manifest& operator[](uint32_t rank) { return manifests_[rank]; }
  std::vector<const Manifest*> pointers() const {
    std::vector<const Manifest*> result;
    for (const Manifest& m : manifests_) result.push_back(&m);
    return result;
  }

 private:
  std::vector<Manifest> manifests_;
};

TEST(Balance, ReplicasShareTheLoadWithinAPercentOfTheBound) {
  std::mt19937 random(3);
  for (const uint32_t replicas : {2u, 3u, 8u}) {
    Ranks senders(replicas), receivers(1);
    for (int t = 0; t < 40; ++t) {
      const auto rows = static_cast<int64_t>(16 + random() % 4000);
      const std::string name = "t" + std::to_string(t);
      for (uint32_t r = 0; r < replicas; ++r) senders.Add(r, name, rows, 1024);
      receivers.Add(0, name, rows, 1024);
    }
    // The receiver's link is not what binds here.
    for (uint32_t r = 0; r < replicas; ++r) {
      senders[r].nics().push_back({.name = "nic", .bytes_per_second = 1'000'000});
    }
    receivers[0].nics().push_back({.name = "nic", .bytes_per_second = 1'000'000'000});
    const auto plan = MakePlan(senders.pointers(), receivers.pointers());
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_LE(plan->balance().ratio(), 1.01);
    EXPECT_LE(plan->balance().sender_imbalance(), 1.01);
  }
}

// Senders 0 and 1 share a; 1 and 2 share b; c is 2's alone. The optimum is not a greedy one.
TEST(Balance, OverlappingReplicaSetsReachTheBound) {
  Ranks senders(3), receivers(1);
  for (const uint32_t r : {0u, 1u}) senders.Add(r, "a", 3000, 1024);
  for (const uint32_t r : {1u, 2u}) senders.Add(r, "b", 3000, 1024);
  senders.Add(2, "c", 3000, 1024);
  for (const char* name : {"a", "b", "c"}) receivers.Add(0, name, 3000, 1024);
  for (uint32_t r = 0; r < 3; ++r) {
    senders[r].nics().push_back({.name = "nic", .bytes_per_second = 1'000'000});
  }
  receivers[0].nics().push_back({.name = "nic", .bytes_per_second = 1'000'000'000});
  const auto plan = MakePlan(senders.pointers(), receivers.pointers());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_LE(plan->balance().ratio(), 1.01);
}

TEST(Balance, AFasterLinkCarriesMore) {
  Ranks senders(2), receivers(1);
  for (const uint32_t r : {0u, 1u}) {
    senders.Add(r, "a", 4000, 1024);
    senders[r].nics().push_back(
        {.name = "nic", .bytes_per_second = r == 0 ? 3'000'000u : 1'000'000u});
  }
  receivers.Add(0, "a", 4000, 1024);
  receivers[0].nics().push_back({.name = "nic", .bytes_per_second = 1'000'000'000});
  const auto plan = MakePlan(senders.pointers(), receivers.pointers());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->sender_bytes(0), 3 * plan->sender_bytes(1));
}

TEST(Balance, PrefersTheReceiversOwnHost) {
  Ranks senders(2), receivers(2);
  for (const uint32_t r : {0u, 1u}) {
    senders.Add(r, "a", 4000, 1024);
    receivers.Add(r, "a", 4000, 1024);
    senders[r].set_host(r == 0 ? "x" : "y");
    receivers[r].set_host(r == 0 ? "y" : "x");
  }
  const auto plan = MakePlan(senders.pointers(), receivers.pointers());
  ASSERT_TRUE(plan.ok()) << plan.status();
  const PlanTables tables = MakeTables(*plan);
  ASSERT_EQ(tables.senders[0].size(), 1u);
  EXPECT_EQ(tables.senders[0].receiver(0), 1u);
  EXPECT_EQ(tables.senders[1].receiver(0), 0u);
}

// Two replicas of two shards each, one replica in rack "x" and one in rack "y", and receivers that
// want everything. Without racks, a copy comes from either replica.
class RacksTest : public testing::Test {
 protected:
  static constexpr int kTensors = 12;

  // `racks` has the rack of each receiver; "": unknown.
  void Plan(const std::vector<std::string>& racks) {
    Ranks senders(4), receivers(static_cast<uint32_t>(racks.size()));
    for (int t = 0; t < kTensors; ++t) {
      const std::string name = "t" + std::to_string(t);
      for (uint32_t r = 0; r < 4; ++r) {
        if (r % 2 == static_cast<uint32_t>(t % 2)) senders.Add(r, name, 1024, 512);
      }
      for (uint32_t w = 0; w < racks.size(); ++w) receivers.Add(w, name, 1024, 512);
    }
    without_ = *MakePlan(senders.pointers(), receivers.pointers());
    for (uint32_t r = 0; r < 4; ++r) senders[r].set_rack(RackOfSender(r));
    for (uint32_t w = 0; w < racks.size(); ++w) receivers[w].set_rack(racks[w]);
    plan_ = *MakePlan(senders.pointers(), receivers.pointers());
    tables_ = MakeTables(plan_);
    again_ = MakeTables(*MakePlan(senders.pointers(), receivers.pointers()));
    racks_ = racks;
  }

  static const char* RackOfSender(uint32_t rank) { return rank < 2 ? "x" : "y"; }

  // Returns the number of copies of tensors that a receiver receives from a rack.
  uint64_t CopiesFrom(const std::string& rack, uint32_t receiver) const {
    uint64_t bytes = 0;
    for (uint32_t r = 0; r < 4; ++r) {
      if (rack != RackOfSender(r)) continue;
      for (uint32_t i = 0; i < tables_.senders[r].size(); ++i) {
        const RouteView route = tables_.senders[r][i];
        if (route.receiver == receiver) bytes += route.shape.size_bytes();
      }
    }
    EXPECT_EQ(bytes % (1024 * 512 * 2), 0u);
    return bytes / (1024 * 512 * 2);
  }

  void ExpectLoadsAsWithoutRacks() const {
    for (uint32_t r = 0; r < 4; ++r) EXPECT_EQ(plan_.sender_bytes(r), without_.sender_bytes(r));
    EXPECT_EQ(plan_.balance().ratio(), without_.balance().ratio());
    for (uint32_t r = 0; r < 4; ++r) EXPECT_EQ(tables_.senders[r], again_.senders[r]);
  }

  waybill::Plan without_, plan_;
  PlanTables tables_, again_;
  std::vector<std::string> racks_;
};

TEST_F(RacksTest, EachReceiverIsServedFromItsOwnRack) {
  Plan({"x", "y", "y", "x", "x", "y"});
  for (uint32_t w = 0; w < racks_.size(); ++w) {
    EXPECT_EQ(CopiesFrom(racks_[w], w), uint64_t{kTensors}) << w;
  }
  ExpectLoadsAsWithoutRacks();
}

// Each rack sends half of all copies, whoever wants them.
TEST_F(RacksTest, ARackSendsItsShareToItsOwnReceiversFirst) {
  Plan({"x", "x", "x", "y"});
  uint64_t from_x = 0;
  for (uint32_t w = 0; w < 3; ++w) from_x += CopiesFrom("x", w);
  EXPECT_EQ(from_x, uint64_t{2 * kTensors});
  EXPECT_EQ(CopiesFrom("y", 3), uint64_t{kTensors});
  ExpectLoadsAsWithoutRacks();
}

TEST_F(RacksTest, ReceiversElsewhereGetWhatTheRacksOfOthersLeave) {
  Plan({"", "z", "x", "x", "y", "x"});
  uint64_t from_x = 0;
  for (const uint32_t w : {2u, 3u, 5u}) from_x += CopiesFrom("x", w);
  EXPECT_EQ(from_x, uint64_t{3 * kTensors});
  EXPECT_EQ(CopiesFrom("y", 4), uint64_t{kTensors});
  for (const uint32_t w : {0u, 1u}) EXPECT_EQ(CopiesFrom("y", w), uint64_t{kTensors}) << w;
  ExpectLoadsAsWithoutRacks();
}

TEST_F(RacksTest, RacksWithoutSendersChangeNothing) {
  Plan({"z", "", "w"});
  const PlanTables before = MakeTables(without_);
  for (uint32_t r = 0; r < 4; ++r) EXPECT_EQ(tables_.senders[r], before.senders[r]);
}

TEST(Balance, PrefersTheReceiversOwnHostToItsRack) {
  Ranks senders(3), receivers(3);
  for (const uint32_t r : {0u, 1u, 2u}) {
    senders.Add(r, "a", 4000, 1024);
    receivers.Add(r, "a", 4000, 1024);
    senders[r].set_host("host " + std::to_string(r));
    senders[r].set_rack(r < 2 ? "x" : "y");
  }
  // The second receiver is on a sender's host, and the first could use up that sender's quota.
  receivers[0].set_rack("y");
  receivers[1].set_host("host 2");
  receivers[1].set_rack("y");
  receivers[2].set_rack("x");
  const auto plan = MakePlan(senders.pointers(), receivers.pointers());
  ASSERT_TRUE(plan.ok()) << plan.status();
  const PlanTables tables = MakeTables(*plan);
  ASSERT_EQ(tables.senders[2].size(), 1u);
  EXPECT_EQ(tables.senders[2].receiver(0), 1u);
}

// A plan for receivers that want all that each of the senders holds. Every rank has a host of its
// own, and all NICs are alike.
Plan PlanReplicas(uint32_t sender_count, uint32_t count, const PlanOptions& options,
                  int tensors = 6) {
  Ranks senders(sender_count), receivers(count);
  for (int t = 0; t < tensors; ++t) {
    const std::string name = "t" + std::to_string(t);
    for (uint32_t r = 0; r < sender_count; ++r) senders.Add(r, name, 3000, 512);
    for (uint32_t w = 0; w < count; ++w) receivers.Add(w, name, 3000, 512);
  }
  const auto place = [](Manifest& manifest, const std::string& host) {
    manifest.set_host(host);
    manifest.nics().push_back({.name = "nic", .bytes_per_second = 1'000'000});
  };
  for (uint32_t r = 0; r < sender_count; ++r) place(senders[r], "t" + std::to_string(r));
  for (uint32_t w = 0; w < count; ++w) place(receivers[w], "w" + std::to_string(w));
  return *MakePlan(senders.pointers(), receivers.pointers(), options);
}

TEST(Relays, AreTakenWhereTheSendersLinksAreBusiest) {
  const PlanOptions automatic = {.relays = Relays::kWherePredictedFaster};
  const Plan few = PlanReplicas(2, 8, automatic);
  EXPECT_TRUE(few.relays());
  EXPECT_EQ(few.sender_bytes(0) + few.sender_bytes(1), few.receiver_bytes(0));
  // What a receiver relays is at most what it receives, and all relay about as much.
  for (uint32_t w = 0; w < 8; ++w) {
    EXPECT_LE(few.relayed_bytes(w), few.receiver_bytes(w));
    EXPECT_GE(few.relayed_bytes(w), few.receiver_bytes(w) * 3 / 4);
  }
  EXPECT_LE(few.balance().ratio(), 1.01);
  // As many senders as receivers are no bottleneck.
  EXPECT_FALSE(PlanReplicas(8, 8, automatic).relays());
  EXPECT_FALSE(PlanReplicas(2, 8, {.relays = Relays::kNever}).relays());
  EXPECT_TRUE(PlanReplicas(8, 8, {.relays = Relays::kAlways}).relays());
}

TEST(Relays, StayInNeighbourhoodsOfAtMost512Receivers) {
  constexpr uint32_t kSenders = 4, kReceivers = 1030, kNeighbours = 344;
  const Plan plan =
      PlanReplicas(kSenders, kReceivers, {.relays = Relays::kWherePredictedFaster}, /*tensors=*/1);
  ASSERT_TRUE(plan.relays());
  uint64_t sent_bytes = 0;
  for (uint32_t t = 0; t < kSenders; ++t) sent_bytes += plan.sender_bytes(t);
  EXPECT_EQ(sent_bytes, 3 * plan.receiver_bytes(0));
  uint64_t relayed_bytes = 0;
  for (uint32_t w = 0; w < kReceivers; ++w) relayed_bytes += plan.relayed_bytes(w);
  EXPECT_EQ(relayed_bytes, (kReceivers - 3) * plan.receiver_bytes(0));
  const PlanTables tables = MakeTables(plan);
  for (uint32_t w = 0; w < kReceivers; ++w) {
    const RouteTable& relayed = tables.senders[kSenders + w];
    for (uint32_t r = 0; r < relayed.size(); ++r) {
      ASSERT_EQ(relayed.receiver(r) / kNeighbours, w / kNeighbours);
    }
  }
}

TEST(Relays, OfTensorsOfOneClassGoToEachReceiverInOneBundle) {
  const Plan plan = PlanReplicas(1, 4, {.relays = Relays::kAlways}, 722);
  // One bundle to each receiver, and one to those before it and to those behind it.
  EXPECT_EQ(plan.bundles().size(), 4u + 6);
  const uint64_t tensor = 3000 * 512 * 2;
  for (uint32_t w = 0; w < 4; ++w) {
    EXPECT_EQ(plan.relayed_bytes(w), (w < 2 ? 181 : 180) * 3 * tensor);
  }
}

TEST(Relays, OfWhatDoesNotComeAreFoundByTheProof) {
  const Plan plan = PlanReplicas(1, 4, {.relays = Relays::kAlways});
  const Bundles& whole = plan.bundles();
  ASSERT_TRUE(CheckCover(whole).ok());
  // The same bundles, but for the first that is relayed to one receiver, which another receiver
  // sends.
  const auto sent_by = [&](uint32_t receiver) {
    Bundles bundles(whole.shared_ranks());
    bool is_first = true;
    for (uint32_t i = 0; i < whole.size(); ++i) {
      RouteView route = whole.first_routes()[i];
      const Copies& copies = whole.bundle(i).copies;
      const bool is_to_one = copies.last_destination - copies.first_destination == 1;
      if (whole.bundle(i).relayed && is_to_one && std::exchange(is_first, false)) {
        route.sender = whole.holder_count() + receiver;
      }
      bundles.Add(whole.bundle(i), route);
    }
    return std::string(CheckCover(bundles).message());
  };
  std::multiset<std::string> found;
  for (uint32_t receiver = 0; receiver < 4; ++receiver) {
    const std::string message = sent_by(receiver);
    for (const char* what : {"relays to itself", "which no trainer brings it"}) {
      if (absl::StrContains(message, what)) found.insert(what);
    }
    if (message.empty()) found.insert("right");
  }
  EXPECT_EQ(found,
            (std::multiset<std::string>{"relays to itself", "right", "which no trainer brings it",
                                        "which no trainer brings it"}));
}

TEST(Relays, AreNotTakenOnOneHostNorWhereSpeedsAreUnknown) {
  for (const bool one_host : {false, true}) {
    Ranks senders(1), receivers(4);
    senders.Add(0, "a", 3000, 512);
    for (uint32_t w = 0; w < 4; ++w) receivers.Add(w, "a", 3000, 512);
    for (uint32_t w = 0; w < 4; ++w) receivers[w].set_host(one_host ? "x" : "w");
    senders[0].set_host("x");
    const Nic nic = {.name = "nic", .bytes_per_second = 1'000'000};
    for (uint32_t w = 0; one_host && w < 4; ++w) receivers[w].nics().push_back(nic);
    if (one_host) senders[0].nics().push_back(nic);
    const auto plan = MakePlan(senders.pointers(), receivers.pointers(),
                               {.relays = Relays::kWherePredictedFaster});
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_FALSE(plan->relays()) << one_host;
  }
}

TEST(Balance, SmallTensorsAreNotCut) {
  Ranks senders(2), receivers(1);
  for (const uint32_t r : {0u, 1u}) senders.Add(r, "norm", 1, 1024);
  receivers.Add(0, "norm", 1, 1024);
  const auto plan = MakePlan(senders.pointers(), receivers.pointers());
  ASSERT_TRUE(plan.ok()) << plan.status();
  const PlanTables tables = MakeTables(*plan);
  EXPECT_EQ(tables.receivers[0].size(), 1u);
}

}  // namespace
}  // namespace waybill
