// SPDX-License-Identifier: Apache-2.0

// Updates that quantise on the way: the bytes shown are those of quantising the whole matrix in one
// place, however the trainers cut it.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "core/fabric/local/local_fabric.h"
#include "testing/cluster/fault_cluster.h"
#include "testing/cluster/quantised_cases.h"

namespace waybill {
namespace {

class QuantisedTest : public testing::TestWithParam<std::tuple<Network, QuantisedCase>> {};

TEST_P(QuantisedTest, WhatIsShownIsWhatOnePlaceWouldHaveGiven) {
  const auto& [network, c] = GetParam();
  FaultCluster cluster(network, OptionsFor(c.model));
  ASSERT_EQ(cluster->Connect().message(), "");
  for (uint64_t version = 1; version <= 4; ++version) {
    ASSERT_EQ(cluster.PublishAndCheck(version), "");
  }
}

INSTANTIATE_TEST_SUITE_P(All, QuantisedTest,
                         testing::Combine(testing::Values(Network::kPosted, Network::kDirect,
                                                          Network::kMapped, Network::kLocal),
                                          testing::ValuesIn(QuantisedCases())),
                         [](const auto& info) {
                           return NameOf(std::get<0>(info.param)) + "_" +
                                  std::get<1>(info.param).name;
                         });

TEST(Quantised, AnyCutOfRowsAndColumnsAmongTwoTo32OwnersOfABlock) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
    const std::vector<int64_t> shape = {20 + below(30), 20 + below(30)};
    const auto owners = static_cast<size_t>(2 + below(31));
    std::vector<Box> boxes = {Box::Whole(shape)};
    while (boxes.size() < owners) {  // Cuts any of them in two.
      const auto i = static_cast<size_t>(below(static_cast<int64_t>(boxes.size())));
      const auto d = static_cast<int>(below(2));
      if (boxes[i].extent(d) < 2) continue;
      const int64_t cut = boxes[i].begin(d) + 1 + below(boxes[i].extent(d) - 1);
      Box rest = boxes[i];
      rest.Set(d, cut, rest.end(d));
      boxes[i].Set(d, boxes[i].begin(d), cut);
      boxes.push_back(rest);
    }
    const Quantisation kinds[] = {kBlocks, kTensor, kRow, {}};  // The last is one large block.
    QuantisedModelOptions model = With(kinds[seed % 4], {}, shape);
    for (const Box& box : boxes) model.trainers.push_back({box});
    model.by_columns = seed % 3 == 0;
    FaultCluster cluster(Network::kPosted, OptionsFor(model));
    ASSERT_EQ(cluster->Connect().message(), "") << "seed " << seed;
    for (uint64_t version = 1; version <= 2; ++version) {
      ASSERT_EQ(cluster.PublishAndCheck(version), "") << "seed " << seed;
    }
  }
}

TEST(Quantised, ThreadsAndDigestsOffGiveTheSameBytes) {
  for (const Digests digests : {Digests::kOn, Digests::kOff}) {
    ClusterOptions options = OptionsFor(With({}, Rows({100, 333, 500}, 200), {500, 200}));
    options.trainer.stage_threads = 3;
    options.trainer.chunk_bytes = 4096;
    options.verify_threads = 2;
    options.digests = digests;
    Cluster cluster(options, [](const std::string&) { return *MakeLocalFabric(); });
    ASSERT_EQ(cluster.Connect().message(), "");
    for (uint64_t version = 1; version <= 5; ++version) {
      cluster.FillTrainers(version);
      ASSERT_EQ(cluster.Publish(version).message(), "");
      for (uint32_t w = 0; w < 2; ++w) {
        EXPECT_TRUE(cluster.Shows(w, version));
        if (options.digests == Digests::kOff) continue;
        EXPECT_EQ(*cluster.worker(w).Verify(), version);
      }
    }
  }
}

// Two owners of the middle row of blocks, three blocks wide: a header of 16 bytes and three floats.
TEST(Quantised, MaximaCostAMessageEachWayAndTheirBytes) {
  FaultCluster cluster(Network::kPosted, OptionsFor(With(kBlocks, Rows({21, 48}, 40))));
  ASSERT_EQ(cluster->Connect().message(), "");
  for (uint64_t version = 1; version <= 3; ++version) {
    ASSERT_EQ(cluster.PublishAndCheck(version), "");
    uint64_t bytes = 0;
    for (uint32_t t = 0; t < 2; ++t) {
      const TransferCounts counts = cluster->trainer_events(t).back().counts;
      EXPECT_EQ(counts.maxima_messages, 1u);
      EXPECT_EQ(counts.maxima_bytes, 16u + 3 * 4);
      bytes += counts.bytes;
    }
    // A byte an element, and each worker's scales: 24 rows are two rows of blocks, of three.
    EXPECT_EQ(bytes, 48u * 40 + 2 * 2 * 3 * 4);
    EXPECT_EQ(bytes, cluster->plan().total_bytes());
  }
}

TEST(Quantised, AnAbortedUpdatesMaximaNeverMixWithTheNextOnes) {
  for (const Network network : {Network::kPosted, Network::kMapped}) {
    for (int paused_for = 1; paused_for <= 3; ++paused_for) {
      FaultCluster cluster(network, OptionsFor(With(kBlocks, Rows({3, 9, 48}, 40))));
      ASSERT_EQ(cluster->Connect().message(), "");
      ASSERT_EQ(cluster.PublishAndCheck(1), "");
      uint64_t version = 1;
      // Updates that trainer 1 sleeps through: the others send it maxima, and are given up.
      for (int i = 0; i < paused_for; ++i) {
        ++version;
        cluster->FillTrainers(version);
        ASSERT_EQ(cluster->Prepare(version).message(), "");
        ASSERT_EQ(cluster->Start(0).message(), "");
        ASSERT_EQ(cluster->Start(2).message(), "");
        for (int step = 0; step < 200; ++step) cluster->Step();
        EXPECT_TRUE(cluster->worker_events(0).size() == 1);  // READY, and nothing arrived.
        cluster->Abort(/*begun=*/true);
        ASSERT_TRUE(cluster->UntilStopped());
      }
      ASSERT_EQ(cluster.PublishAndCheck(version + 1), "");
      ASSERT_EQ(cluster.PublishAndCheck(version + 2), "");
    }
  }
}

TEST(Quantised, ADeadCoOwnerIsToldOfAndTheOthersAreQuiescentAfterTheAbort) {
  FaultCluster cluster(Network::kPosted, OptionsFor(With(kBlocks, Rows({3, 9, 48}, 40))));
  ASSERT_EQ(cluster->Connect().message(), "");
  ASSERT_EQ(cluster.PublishAndCheck(1), "");
  cluster->FillTrainers(2);
  ASSERT_EQ(cluster->Prepare(2).message(), "");
  cluster->KillTrainer(1);
  ASSERT_EQ(cluster->Start(0).message(), "");
  ASSERT_EQ(cluster->Start(2).message(), "");
  const auto told = [&](uint32_t t) {
    for (const SenderEvent& event : cluster->trainer_events(t)) {
      if (event.kind != SenderEvent::Kind::kPeerFailed) continue;
      if (event.peer == RankId{Role::kTrainer, 1}) return true;
    }
    return false;
  };
  // Trainer 0 writes the scale, so it collects; trainer 2 has a lane to it only.
  EXPECT_TRUE(cluster.Until([&] { return told(0); }));
  EXPECT_FALSE(told(2));
  cluster->Abort(/*begun=*/true);
  EXPECT_TRUE(cluster.Until(
      [&] { return !cluster->trainer_events(0).empty() && !cluster->trainer_events(2).empty(); }));
  for (const uint32_t t : {0u, 2u}) {
    EXPECT_EQ(cluster->trainer_events(t).back().kind, SenderEvent::Kind::kStopped);
  }
  for (uint32_t w = 0; w < 2; ++w) EXPECT_TRUE(cluster->Shows(w, 1));
}

TEST(Quantised, OwnersThatUsedOtherScalesAreRefusedByTheWorker) {
  ClusterOptions options = OptionsFor(With(kBlocks, Rows({21, 48}, 40)));
  options.spoil_exchanges = [](std::vector<Exchange>& exchanges) {  // Each by its own maxima.
    for (Exchange& exchange : exchanges) {
      exchange.outgoing.clear();
      exchange.incoming.clear();
    }
  };
  FaultCluster cluster(Network::kPosted, options);
  ASSERT_EQ(cluster->Connect().message(), "");
  cluster->FillTrainers(1);
  const absl::Status status = cluster->Publish(1);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(std::string(status.message())
                .find("tensor \"w\" scales [1, 2) x [0, 3) from trainer 1: it quantised by scales "
                      "of digest "),
            std::string::npos)
      << status;
}

TEST(Quantised, NaNsAndInfinitiesAreKeptAndCountedByShard) {
  QuantisedModelOptions model = With(kBlocks, Rows({21, 48}, 40));
  model.nonfinite_from = 2;
  FaultCluster cluster(Network::kPosted, OptionsFor(model));
  ASSERT_EQ(cluster->Connect().message(), "");
  ASSERT_EQ(cluster.PublishAndCheck(1), "");
  EXPECT_TRUE(cluster->trainer(0).FindNonFinite().empty());
  ASSERT_EQ(cluster.PublishAndCheck(2), "");
  const std::vector<NonFinite> found = cluster->trainer(0).FindNonFinite();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].shard, 0u);
  EXPECT_EQ(found[0].elements, 2u);
  EXPECT_TRUE(cluster->trainer(1).FindNonFinite().empty());
}

TEST(Quantised, NonFiniteThatIsRefusedIsNeverShown) {
  QuantisedModelOptions model = With(kBlocks, Rows({21, 48}, 40));
  model.nonfinite_from = 2;
  for (const Network network : {Network::kPosted, Network::kMapped}) {
    FaultCluster cluster(network, OptionsFor(model));
    ASSERT_EQ(cluster->Connect().message(), "");
    ASSERT_EQ(cluster.PublishAndCheck(1), "");
    cluster->FillTrainers(2);
    ASSERT_EQ(cluster->Prepare(2).message(), "");
    const std::vector<StartTarget> targets = {{0, 1}, {1, 1}};
    for (uint32_t t = 0; t < 2; ++t) {
      ASSERT_EQ(cluster->trainer(t)
                    .Start(cluster->update(), Digests::kOn, {targets.data() + t, 1},
                           NonFiniteRule::kRefused)
                    .message(),
                "");
    }
    EXPECT_TRUE(cluster.Until([&] {
      return !cluster->trainer_events(0).empty() && !cluster->trainer_events(1).empty();
    }));
    EXPECT_EQ(cluster->trainer_events(0).back().kind, SenderEvent::Kind::kRefused);
    EXPECT_EQ(cluster->trainer_events(1).back().kind, SenderEvent::Kind::kSent);
    EXPECT_EQ(cluster->worker_events(0).size(), 1u);  // READY, and no more.
    cluster->Abort(/*begun=*/true);
    EXPECT_TRUE(cluster.Until([&] { return !cluster->trainer_events(0).empty(); }));
    for (uint32_t w = 0; w < 2; ++w) EXPECT_TRUE(cluster->Shows(w, 1));
  }
}

}  // namespace
}  // namespace waybill
