// SPDX-License-Identifier: Apache-2.0

// Tests the cost of an update in counts that do not vary: writes, stores, bytes and immediates.

#include <gtest/gtest.h>

#include "testing/cluster/fault_cluster.h"

namespace waybill {
namespace {

struct Counts {
  Network network;
  uint64_t bytes, staged_bytes, writes, stores, immediates;  // Counts of trainer 0.
  uint64_t posts, signals;                                   // Calls on its fabric.
};

// Two trainers, two workers, four tensors of 96 x 40 in BF16: trainer 0 holds the rows [0, 48),
// 3840 bytes of each. q and k go to worker 0, half of down to each worker, and turned to both.
// Posted, turned is a write for each of its 40 columns, q and k are neighbours and so one, and each
// worker's ledger entries are one. Sent directly, only turned is staged, and each half of down is a
// write for each row.
const Counts kCounts[] = {
    {Network::kPosted, 5 * 3840, 5 * 3840, 2 * 40 + 2 + 1 + 2, 0, 2, 5, 0},
    {Network::kDirect, 5 * 3840, 2 * 3840, 2 * 40 + 2 * 48 + 1 + 2, 0, 2, 5, 0},
    {Network::kCopied, 5 * 3840, 2 * 3840, 2 * 40 + 2 * 48 + 1 + 2, 0, 2, 5, 0},
    {Network::kTcp, 5 * 3840, 2 * 3840, 2 * 40 + 2 * 48 + 1 + 2, 0, 2, 5, 0},
    {Network::kMapped, 5 * 3840, 0, 0, 3, 2, 0, 2},
    {Network::kLocal, 5 * 3840, 0, 0, 3, 2, 0, 2},
};

class CountsTest : public testing::TestWithParam<Counts> {};

TEST_P(CountsTest, AnUpdateCostsAsMuchAsEver) {
  FaultCluster cluster(GetParam().network, {});
  ASSERT_EQ(cluster->Connect().message(), "");
  for (uint64_t version = 1; version <= 3; ++version) {
    const uint64_t posts = cluster.at_trainer(0).count(FabricCall::kPost);
    const uint64_t signals = cluster.at_trainer(0).count(FabricCall::kSignal);
    ASSERT_EQ(cluster.PublishAndCheck(version), "");
    const TransferCounts counts = cluster->trainer_events(0).back().counts;
    EXPECT_EQ(counts.bytes, GetParam().bytes);
    EXPECT_EQ(counts.staged_bytes, GetParam().staged_bytes);
    EXPECT_EQ(counts.writes, GetParam().writes);
    EXPECT_EQ(counts.stores, GetParam().stores);
    EXPECT_EQ(counts.immediates, GetParam().immediates);
    EXPECT_EQ(cluster.at_trainer(0).count(FabricCall::kPost) - posts, GetParam().posts);
    EXPECT_EQ(cluster.at_trainer(0).count(FabricCall::kSignal) - signals, GetParam().signals);
  }
}

INSTANTIATE_TEST_SUITE_P(All, CountsTest, testing::ValuesIn(kCounts),
                         [](const auto& info) { return NameOf(info.param.network); });

TEST(CountsTest, EveryByteIsVerifiedOnce) {
  FaultCluster cluster(Network::kPosted, {});
  ASSERT_EQ(cluster->Connect().message(), "");
  ASSERT_EQ(cluster.PublishAndCheck(1), "");
  uint64_t sent = 0, verified = 0;
  for (uint32_t i = 0; i < 2; ++i) {
    sent += cluster->trainer_events(i).back().counts.bytes;
    verified += cluster->worker(i).counts().verified_bytes;
  }
  EXPECT_EQ(sent, verified);
}

}  // namespace
}  // namespace waybill
