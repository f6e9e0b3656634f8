// SPDX-License-Identifier: Apache-2.0

// Predictions against arithmetic that needs no simulation: bytes over rates.

#include "core/simulate/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/plan/planner.h"
#include "core/simulate/changed_part.h"
#include "core/tensor/manifest.h"

namespace waybill::simulate {
namespace {

using testing::HasSubstr;

constexpr uint64_t kGigabyte = 1'000'000'000;

// Every trainer sends so many bytes to every worker, from its tensors.
Traffic Everybody(uint32_t trainers, uint32_t workers, uint64_t pair_bytes) {
  Traffic traffic;
  traffic.trainer_held_bytes.assign(trainers, workers * pair_bytes);
  traffic.worker_held_bytes.assign(workers, trainers * pair_bytes);
  for (uint32_t t = 0; t < trainers; ++t) {
    for (uint32_t w = 0; w < workers; ++w) {
      traffic.pairs.push_back({.trainer = t,
                               .worker = w,
                               .bytes = pair_bytes,
                               .routes = 10,
                               .writes = pair_bytes >> 20,
                               .copied_read = pair_bytes});
    }
  }
  return traffic;
}

// One trainer sends each worker its part of so many bytes, which the worker relays to the others.
Traffic Relayed(uint32_t workers, uint64_t bytes) {
  Traffic traffic = Everybody(1, workers, bytes / workers);
  for (uint32_t from = 0; from < workers; ++from) {
    for (uint32_t to = 0; to < workers; ++to) {
      if (from == to) continue;
      traffic.relays.push_back(traffic.pairs[to]);
      traffic.relays.back().trainer = from;
    }
  }
  return traffic;
}

// What is staged of each pair.
Traffic Staged(Traffic traffic) {
  for (PairTraffic& pair : traffic.pairs) {
    pair.staged_bytes = pair.bytes;
    pair.packed_read = pair.bytes;
  }
  return traffic;
}

// Hosts with one rank each, whose memory is theirs, without a wait for the controller.
Hardware Plain() {
  Hardware hardware;
  for (Machine* machine : {&hardware.trainers, &hardware.workers}) {
    machine->ranks_per_host = machine->nics_per_host = 1;
    machine->nic = 50e9;
    machine->pcie = 200e9;
  }
  hardware.network = {
      .efficiency = 1, .latency = 1e-6, .message = 1e-9, .post = 1e-9, .incast_efficiency = 1};
  hardware.control = {.message = 1e-6, .handle = 1e-9, .record = 1e-6, .prepare = 0, .show = 0};
  return hardware;
}

double Seconds(const Traffic& traffic, const Hardware& hardware,
               const SimulateOptions& options = {}) {
  const auto result = Simulate(traffic, hardware, options);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? result->seconds : 0;
}

struct RateCase {
  std::string name;
  Traffic traffic;
  Hardware hardware;
  double seconds;  // Bytes over the rate of what limits.
};

Hardware With(const std::function<void(Hardware&)>& change) {
  Hardware hardware = Plain();
  change(hardware);
  return hardware;
}

const RateCase kRateCases[] = {
    {"one_pair_takes_bytes_over_rate", Everybody(1, 1, 5 * kGigabyte), Plain(), 0.1},
    {"many_trainers_share_the_worker_s_nic", Everybody(8, 1, kGigabyte), Plain(), 0.16},
    {"a_trainer_s_nic_is_shared_by_its_workers", Everybody(1, 8, kGigabyte), Plain(), 0.16},
    {"all_to_all_is_limited_by_the_busier_side", Everybody(8, 4, kGigabyte), Plain(), 0.16},
    {"what_is_relayed_leaves_the_trainer_once", Relayed(8, 5 * kGigabyte), Plain(), 0.1},
    {"slow_copies_limit_what_is_relayed", Relayed(5, 5 * kGigabyte),
     With([](Hardware& h) { h.workers.rates.copy = 10e9; }), 0.4},
    {"nvlink_carries_what_a_worker_receives_and_relays_at_once", Relayed(5, 5 * kGigabyte),
     With([](Hardware& h) {
       h.one_host = true;
       h.trainers.nvlink = h.workers.nvlink = 50e9;
     }),
     0.1},
    {"headers_take_their_part_of_the_rate", Everybody(1, 1, 5 * kGigabyte),
     With([](Hardware& h) { h.network.efficiency = 0.5; }), 0.2},
    {"several_nics_of_a_rank_carry_together", Everybody(1, 1, 10 * kGigabyte),
     With([](Hardware& h) { h.trainers.nics_per_host = h.workers.nics_per_host = 2; }), 0.1},
    {"pcie_limits_what_the_nics_could_carry", Everybody(1, 1, 5 * kGigabyte),
     With([](Hardware& h) { h.workers.pcie = 25e9; }), 0.2},
    {"uplinks_limit_a_rack", Everybody(4, 4, kGigabyte), With([](Hardware& h) {
       h.network.hosts_per_rack = 4;
       h.network.oversubscription = 2;
     }),
     0.16},
    {"a_straggler_s_nic_holds_all_up", Everybody(2, 2, 2 * kGigabyte),
     With([](Hardware& h) { h.stragglers = {{{Role::kTrainer, 1}, 3}}; }), 0.24},
    {"incast_costs_its_part_of_the_rate", Everybody(40, 1, kGigabyte),
     With([](Hardware& h) { h.network.incast_efficiency = 0.5; }), 1.6},
    {"slow_staging_limits_a_fast_network", Staged(Everybody(1, 1, 5 * kGigabyte)),
     With([](Hardware& h) { h.trainers.rates.copy = 10e9; }), 0.5},
    {"slow_digests_limit_a_fast_network", Everybody(1, 1, 5 * kGigabyte),
     With([](Hardware& h) { h.workers.rates.digest = 10e9; }), 0.5},
    {"short_writes_are_limited_by_their_number", Everybody(1, 1, 5 * kGigabyte),
     With([](Hardware& h) { h.network.message = 100e-6; }), 4768 * 100e-6},
    {"tcp_is_limited_by_its_threads", Everybody(1, 1, kGigabyte), With([](Hardware& h) {
       h.trainers.nics_per_host = h.workers.nics_per_host = 0;
       h.network.tcp_send = 2e9;
       h.network.tcp_receive = 1e9;
     }),
     1},
    {"short_writes_over_tcp_take_both_threads_their_number", Everybody(1, 1, 5 * kGigabyte),
     With([](Hardware& h) {
       h.one_host = h.by_tcp = true;
       h.trainers.cores = 1;
       h.network.tcp_send = h.network.tcp_receive = 1e15;
       h.trainers.rates.digest = h.workers.rates.digest = 1e15;
       h.network.post = 100e-6;
     }),
     2 * 4768 * 100e-6},
    {"two_ranks_of_a_host_share_its_core", Everybody(1, 1, kGigabyte), With([](Hardware& h) {
       h.one_host = h.by_tcp = true;
       h.trainers.cores = 1;
       h.network.tcp_send = h.network.tcp_receive = 1e9;
       h.trainers.rates.digest = h.workers.rates.digest = 1e15;
     }),
     2},
    {"mapped_memory_is_verified_while_it_is_stored_to", Everybody(1, 1, 10 * kGigabyte),
     With([](Hardware& h) {
       h.one_host = true;
       h.trainers.nics_per_host = h.workers.nics_per_host = 0;
       h.trainers.memory = h.workers.memory = MemoryPlace::kHost;
       h.trainers.rates.copy = 10e9;
       h.workers.rates.digest = 20e9;
     }),
     1.0},
};

class RateTest : public testing::TestWithParam<RateCase> {};
INSTANTIATE_TEST_SUITE_P(Rates, RateTest, testing::ValuesIn(kRateCases),
                         [](const auto& info) { return info.param.name; });

TEST_P(RateTest, TakesTheBytesOverTheRate) {
  const RateCase& c = GetParam();
  const double seconds = Seconds(c.traffic, c.hardware);
  EXPECT_GE(seconds, 0.999 * c.seconds);
  EXPECT_LE(seconds, 1.04 * c.seconds);
}

TEST(Simulate, IsTheSameEachTime) {
  const Traffic traffic = Everybody(4, 3, kGigabyte / 4);
  EXPECT_EQ(Seconds(traffic, Plain()), Seconds(traffic, Plain()));
}

TEST(Simulate, CoarserPiecesChangeLittle) {
  const Traffic traffic = Everybody(4, 4, kGigabyte);
  const double fine = Seconds(traffic, Plain(), {.most_pieces = 1'000'000});
  const double coarse = Seconds(traffic, Plain(), {.most_pieces = 200});
  EXPECT_NEAR(coarse / fine, 1, 0.06);
}

TEST(Simulate, TheControllerAddsItsMessagesAndItsDisk) {
  Hardware slow = Plain();
  slow.control.message = 10e-3;
  slow.control.record = 50e-3;
  const Traffic traffic = Everybody(1, 1, 1 << 20);
  // Publish and PREPARE, READY and START, ARRIVED and COMMIT.
  EXPECT_NEAR(Seconds(traffic, slow) - Seconds(traffic, Plain()), 6 * 10e-3 + 50e-3, 2e-3);
}

TEST(Simulate, NoPredictionIsBelowTheBoundOfTheBusiestNic) {
  Traffic traffic = Everybody(3, 2, kGigabyte);
  traffic.pairs[0].bytes += 3 * kGigabyte;
  const auto result = Simulate(traffic, Plain());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_NEAR(result->egress.seconds, 0.1, 1e-6);
  EXPECT_EQ(result->egress.port, "egress of trainer 0, NIC 0");
  EXPECT_NEAR(result->ingress.seconds, 0.12, 1e-6);
  EXPECT_GE(result->seconds, result->bound_seconds());
  EXPECT_DOUBLE_EQ(result->trainer_imbalance, 5.0 * 3 / 9);
}

TEST(Simulate, EveryByteCrossesOneNicOfEachSide) {
  const Traffic traffic = Everybody(3, 5, kGigabyte / 7);
  const auto result = Simulate(traffic, Plain());
  ASSERT_TRUE(result.ok()) << result.status();
  uint64_t egress = 0, ingress = 0;
  for (const PortLoad& port : result->ports) {
    if (port.kind == PortLoad::Kind::kEgress) egress += port.bytes;
    if (port.kind == PortLoad::Kind::kIngress) ingress += port.bytes;
  }
  const uint64_t ends = 15 * (10 * sizeof(LedgerEntry) + 64);  // A ledger and an immediate each.
  EXPECT_EQ(egress, traffic.total_bytes() + ends);
  EXPECT_EQ(ingress, traffic.total_bytes() + ends);
}

// The sums of what ports of a kind have carried, for ranks of a role.
uint64_t Carried(const Result& result, PortLoad::Kind kind, Role role) {
  uint64_t bytes = 0;
  for (const PortLoad& port : result.ports) {
    if (port.kind == kind && port.role == role) bytes += port.bytes;
  }
  return bytes;
}

TEST(Simulate, WhatIsRelayedCountsForBothWorkers) {
  constexpr uint64_t kBytes = 4 * kGigabyte;
  const Traffic traffic = Relayed(4, kBytes);
  const auto result = Simulate(traffic, Plain());
  ASSERT_TRUE(result.ok()) << result.status();
  const uint64_t ends = 4 * (10 * sizeof(LedgerEntry) + 64);  // Of what the trainer sends.
  using Kind = PortLoad::Kind;
  EXPECT_EQ(Carried(*result, Kind::kEgress, Role::kTrainer), kBytes + ends);
  EXPECT_EQ(Carried(*result, Kind::kEgress, Role::kWorker), 3 * kBytes);
  EXPECT_EQ(Carried(*result, Kind::kIngress, Role::kWorker), 4 * kBytes + ends);
  uint64_t writes = 0;
  for (const auto* list : {&traffic.pairs, &traffic.relays}) {
    for (const PairTraffic& pair : *list) writes += pair.writes;
  }
  EXPECT_EQ(result->writes, writes);
  for (const RankResult& rank : result->ranks) {
    const bool worker = rank.id.role == Role::kWorker;
    EXPECT_EQ(rank.moved_bytes, kBytes);
    EXPECT_EQ(rank.relayed_bytes, worker ? 3 * kBytes / 4 : 0);
    // A worker has a ledger for what arrives, and one for what it relays to three others.
    EXPECT_EQ(rank.ledger_bytes, (worker ? 4 + 3 : 4) * 10 * sizeof(LedgerEntry));
  }
}

TEST(Simulate, AWorkerMayGetEverythingFromAnother) {
  Traffic traffic = Everybody(1, 2, kGigabyte);
  traffic.relays.push_back(traffic.pairs[1]);
  traffic.pairs.pop_back();
  const auto result = Simulate(traffic, Plain());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(Carried(*result, PortLoad::Kind::kEgress, Role::kWorker), kGigabyte);
  EXPECT_EQ(result->ranks[2].moved_bytes, kGigabyte);
}

TEST(Simulate, APathByAWorkerThatRelaysHasItsName) {
  Traffic traffic = Relayed(3, 3 * kGigabyte);
  traffic.relays[2].writes = 1'000'000;
  const auto result =
      Simulate(traffic, With([](Hardware& h) { h.stragglers = {{{Role::kWorker, 1}, 3}}; }));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->warnings,
              testing::Contains(HasSubstr("from worker 1 to worker 0 they are of 1000")));
  EXPECT_THAT(result->slowest_path, HasSubstr("the last bytes come from worker"));
  std::set<std::string> names;
  for (const PortLoad& port : result->ports) {
    EXPECT_TRUE(names.insert(port.name).second) << port.name;
  }
}

TEST(Simulate, WarnsOfWhatSlowsTheUpdateDown) {
  Traffic traffic = Everybody(4, 4, kGigabyte);
  traffic.pairs[5].writes = 1'000'000;
  traffic.maxima_messages = 12;
  traffic.maxima = 345;
  Hardware hardware = Plain();
  hardware.network.hosts_per_rack = 4;
  hardware.network.oversubscription = 4;
  const auto result = Simulate(traffic, hardware);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->warnings,
              testing::ElementsAre(HasSubstr("crowded links: 2 shared links"),
                                   HasSubstr("from trainer 1 to worker 1 they are of 1000"),
                                   HasSubstr("345 maxima of split blocks travel in 12 messages")));
  EXPECT_THAT(result->slowest_path, HasSubstr("rack 0 is busiest"));
}

// The traffic of four trainers that hold the same 2 GB and four workers that want all of it, on
// hosts with one rank each.
Traffic ReplicasIn(const Hardware& hardware) {
  Manifest whole;
  constexpr int64_t kRows = 40'000, kColumns = 25'000;  // 2 GB.
  whole.AddRegion("r", kRows * kColumns * 2);
  for (uint32_t t = 0; t < 20; ++t) {
    whole.AddShard(whole.AddTensor(absl::StrCat("w", t), {kRows / 20, kColumns}, Dtype::kBf16),
                   {Dtype::kBf16}, Box::Whole({kRows / 20, kColumns}),
                   {0, t * uint64_t{kRows / 20 * kColumns * 2}, {kColumns, 1}});
  }
  std::vector<Manifest> trainers(4, whole), workers(4, whole);
  std::vector<const Manifest*> senders, receivers;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    trainers[rank].set_rack(SharedRackOf(hardware, Role::kTrainer, rank));
    workers[rank].set_rack(SharedRackOf(hardware, Role::kWorker, rank));
    senders.push_back(&trainers[rank]);
    receivers.push_back(&workers[rank]);
  }
  const auto plan = MakePlan(senders, receivers);
  EXPECT_TRUE(plan.ok()) << plan.status();
  const std::vector<uint64_t> held(4, whole.total_bytes());
  return TrafficOf(*plan, held, held);
}

uint64_t BytesOfUplinks(const Result& result) {
  uint64_t bytes = 0;
  for (const PortLoad& port : result.ports) {
    if (port.kind == PortLoad::Kind::kUplink) bytes += port.bytes;
  }
  return bytes;
}

TEST(Simulate, ReplicasInSharedRacksSendNothingOverUplinks) {
  Hardware hardware = With([](Hardware& h) {
    h.network.hosts_per_rack = 2;
    h.network.oversubscription = 8;
    h.network.shared_racks = true;
  });
  const auto shared = Simulate(ReplicasIn(hardware), hardware);
  ASSERT_TRUE(shared.ok()) << shared.status();
  EXPECT_EQ(BytesOfUplinks(*shared), 0u);
  EXPECT_NEAR(shared->seconds, 2e9 / 50e9, 0.1 * 2e9 / 50e9);  // A NIC at each end.

  // In racks of their own, the workers of a rack get 4 GB over downlinks of 2 NICs over 8.
  hardware.network.shared_racks = false;
  const auto separate = Simulate(ReplicasIn(hardware), hardware);
  ASSERT_TRUE(separate.ok()) << separate.status();
  EXPECT_GE(BytesOfUplinks(*separate), separate->total_bytes);  // Pieces are rounded up.
  EXPECT_NEAR(separate->seconds, 4e9 / (2 * 50e9 / 8), 0.1 * 4e9 / (2 * 50e9 / 8));
}

TEST(Simulate, RefusesWhatCannotBe) {
  const auto refusal = [](const Traffic& traffic, const Hardware& hardware) {
    return std::string(Simulate(traffic, hardware).status().message());
  };
  const Traffic traffic = Everybody(2, 2, kGigabyte);
  EXPECT_THAT(refusal(traffic, With([](Hardware& h) {
                        h.trainers.ranks_per_host = 8;
                        h.trainers.nics_per_host = 4;
                      })),
              HasSubstr("trainers: a host has 4 NICs for 8 ranks"));
  EXPECT_THAT(refusal(traffic, With([](Hardware& h) { h.workers.rates.digest = 0; })),
              HasSubstr("workers: digest is 0; it must be above 0"));
  EXPECT_THAT(
      refusal(traffic, With([](Hardware& h) { h.stragglers = {{{Role::kTrainer, 2}, 3}}; })),
      HasSubstr("straggler trainer 2 with slowdown 3: the job has 2 trainers"));
  EXPECT_THAT(refusal(traffic, With([](Hardware& h) { h.network.shared_racks = true; })),
              HasSubstr("network: hosts_per_rack is 0; shared racks need at least 1 host"));
  Traffic lonely = traffic;
  lonely.pairs.resize(1);
  EXPECT_THAT(refusal(lonely, Plain()), HasSubstr("worker 1 receives nothing"));
}

// Kimi-K2's size: 4 TB between all pairs of 256 and 128 ranks.
TEST(Simulate, HundredsOfRanksAndTerabytesTakeSeconds) {
  const auto result = Simulate(Everybody(256, 128, 125'000'000), Plain());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_NEAR(result->seconds, 0.64, 0.03);
  // A count that does not vary, in place of the time.
  EXPECT_LT(result->events, 3'000'000);
}

// The sizes that core/change has been measured to have, in per cent of the whole.
TEST(EncodedBytes, AreThoseThatWereMeasured) {
  EXPECT_EQ(EncodedBytes(1e9, 0), 0);
  EXPECT_NEAR(EncodedBytes(1e9, 0.01) / 1e7, 0.643, 0.01);
  EXPECT_NEAR(EncodedBytes(1e9, 0.1) / 1e7, 4.235, 0.1);
  EXPECT_NEAR(EncodedBytes(1e9, 0.5) / 1e7, 12.51, 0.1);
}

// One rank each, over a link of 1 Gbit/s.
Hardware Slow() {
  return With([](Hardware& h) {
    h.by_tcp = true;
    h.network.tcp_send = h.network.tcp_receive = 125e6;
    for (Machine* machine : {&h.trainers, &h.workers}) {
      machine->memory = MemoryPlace::kHost;
      machine->rates = kHostRates;
    }
  });
}

TEST(SimulateImages, ATrainerWaitsForOneCopyOfItsWeightsAndTheUpdateTakesThatMuchLonger) {
  Hardware hardware = Slow();
  hardware.trainers.threads = 2;
  const double plain = Seconds(Everybody(1, 1, kGigabyte), hardware);
  const auto result = Simulate(Everybody(1, 1, kGigabyte), hardware, {.images = true});
  ASSERT_TRUE(result.ok()) << result.status();
  const double copy = 1e9 / 8e9 / 2;
  EXPECT_NEAR(result->publish_seconds, copy, 1e-3);
  EXPECT_NEAR(result->seconds, plain + copy, 0.01);
}

TEST(SimulateImages, WithoutImagesATrainerWaitsUntilEverythingIsSent) {
  const auto result = Simulate(Everybody(1, 1, kGigabyte), Slow());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->publish_seconds, result->sent_seconds);
  EXPECT_GE(result->publish_seconds, 8);
}

// A copy, reading and digesting on one side, copying and digesting on the other; the pipeline
// hides the shorter of the two.
TEST(SimulateChanged, ProcessorsBoundWhatTheNetworkDoesNot) {
  const auto result = Simulate(Everybody(1, 1, kGigabyte), Slow(), {.changed = 0.01});
  ASSERT_TRUE(result.ok()) << result.status();
  const double copy = 1e9 / 8e9;
  const double encode = 1e9 / 4e9 + 5e8 * 0.01 * 15e-9 + 1e9 / 15e9;
  EXPECT_NEAR(result->publish_seconds, copy, 1e-3);
  EXPECT_NEAR(result->seconds, copy + encode, 0.03);
  EXPECT_NEAR(static_cast<double>(result->ranks[0].moved_bytes), EncodedBytes(1e9, 0.01), 1);
}

TEST(SimulateChanged, WhatIsQuantisedOnTheWayTravelsWhole) {
  Traffic traffic = Everybody(1, 1, kGigabyte);
  for (PairTraffic& pair : traffic.pairs) {
    pair.staged_bytes = pair.bytes;
    pair.copied_read = 0;
    pair.quantised_read = 2 * pair.bytes;
  }
  const auto result = Simulate(traffic, Slow(), {.changed = 0.01});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->ranks[0].moved_bytes, kGigabyte);
  EXPECT_GE(result->seconds, 8);
}

TEST(SimulateChanged, NothingIsEncodedOnAGpu) {
  const auto status = Simulate(Everybody(1, 1, kGigabyte), Plain(), {.changed = 0.01}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("`memory: host`"));
}

}  // namespace
}  // namespace waybill::simulate
