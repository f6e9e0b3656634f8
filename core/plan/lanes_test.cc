// SPDX-License-Identifier: Apache-2.0

#include "core/plan/lanes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace waybill {
namespace {

Manifest With(const std::string& host, const std::vector<Nic>& nics) {
  Manifest manifest;
  manifest.set_host(host);
  manifest.nics() = nics;
  return manifest;
}

TEST(Lanes, RanksWithoutNicsHaveOneOnOneHostAndSeveralBetweenHosts) {
  EXPECT_EQ(PlanLanes(With("a", {}), With("a", {})).size(), 1u);
  EXPECT_EQ(PlanLanes(With("a", {}), With("b", {})).size(), 4u);
  EXPECT_EQ(PlanLanes(With("", {}), With("", {})).size(), 4u);
  EXPECT_EQ(PlanLanes(With("a", {}), With("b", {}), {.lanes_without_nics = 2})[1], LanePath{});
}

TEST(Lanes, RailsAreJoinedFirstThenNumaNodes) {
  const Manifest sender = With("a", {{"t0", 0, 0, 100}, {"t1", 1, 1, 100}, {"t2", 2, 0, 100}});
  const Manifest receiver = With("b", {{"w7", 7, 0, 100}, {"w1", 1, 0, 50}, {"w8", 8, 5, 100}});
  const std::vector<LanePath> lanes = PlanLanes(sender, receiver);
  // t1 and w1 share a rail; t0 and w7 a node; t2 and w8 are left.
  EXPECT_EQ(lanes, (std::vector<LanePath>{{"t0", "w7", 100}, {"t1", "w1", 50}, {"t2", "w8", 100}}));
}

TEST(Lanes, WhereOneSideHasMoreTheOtherIsShared) {
  const Manifest four =
      With("a", {{"n0", 0, 0, 100}, {"n1", 1, 0, 100}, {"n2", 2, 1, 100}, {"n3", 3, 1, 100}});
  const Manifest two = With("b", {{"m0", 0, 0, 300}, {"m1", 1, 1, 60}});
  EXPECT_EQ(PlanLanes(four, two),
            (std::vector<LanePath>{
                {"n0", "m0", 100}, {"n1", "m1", 30}, {"n2", "m1", 30}, {"n3", "m0", 100}}));
  EXPECT_EQ(PlanLanes(two, four).size(), 4u);
}

TEST(Lanes, ARankWithoutNicsJoinsWithoutAName) {
  EXPECT_EQ(PlanLanes(With("a", {{"n0", 0, 0, 100}, {"n1", 1, 0, 100}}), With("b", {})),
            (std::vector<LanePath>{{"n0", "", 0}, {"n1", "", 0}}));
}

TEST(Lanes, SeveralLanesOfAPathShareItsSpeed) {
  EXPECT_EQ(PlanLanes(With("a", {{"n", 0, 0, 100}}), With("b", {{"m", 0, 0, 100}}),
                      {.lanes_per_path = 2}),
            (std::vector<LanePath>{{"n", "m", 50}, {"n", "m", 50}}));
}

TEST(Lanes, EveryNicOfEitherSideHasALane) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    const auto some = [&](const char* prefix) {
      std::vector<Nic> nics(1 + random() % 6);
      for (size_t i = 0; i < nics.size(); ++i) {
        nics[i] = {prefix + std::to_string(i), static_cast<uint32_t>(random() % 4),
                   static_cast<uint32_t>(random() % 2), 1 + random() % 100};
      }
      return nics;
    };
    const Manifest sender = With("a", some("t")), receiver = With("b", some("w"));
    const std::vector<LanePath> lanes = PlanLanes(sender, receiver);
    EXPECT_EQ(lanes.size(), std::max(sender.nics().size(), receiver.nics().size()));
    std::set<std::string> used;
    for (const LanePath& lane : lanes) used.insert({lane.sender_nic, lane.receiver_nic});
    EXPECT_EQ(used.size(), sender.nics().size() + receiver.nics().size());
  }
}

TEST(Lanes, ChunksAreSharedOutByBytesOverSpeed) {
  const std::vector<LanePath> lanes = {{"", "", 300}, {"", "", 100}};
  std::mt19937 random(2);
  std::vector<Chunk> chunks(4000);
  uint64_t total = 0, longest = 0;
  for (Chunk& chunk : chunks) {
    chunk.size_bytes = 1 + random() % 1000;
    total += chunk.size_bytes;
    longest = std::max(longest, chunk.size_bytes);
  }
  const std::vector<uint32_t> lane_of = ShareOut(chunks, lanes);
  uint64_t bytes[2] = {};
  for (size_t c = 0; c < chunks.size(); ++c) bytes[lane_of[c]] += chunks[c].size_bytes;
  EXPECT_EQ(bytes[0] + bytes[1], total);
  // List scheduling: no lane ends later than the mean and one chunk.
  EXPECT_LE(static_cast<double>(bytes[0]) / 300,
            static_cast<double>(total) / 400 + static_cast<double>(longest) / 100);
  EXPECT_LE(static_cast<double>(bytes[1]) / 100,
            static_cast<double>(total) / 400 + static_cast<double>(longest) / 100);
  EXPECT_EQ(lane_of, ShareOut(chunks, lanes));
}

TEST(Lanes, WithoutSpeedsBytesAreShared) {
  const std::vector<LanePath> lanes(4);
  std::vector<Chunk> chunks(8);
  for (Chunk& chunk : chunks) chunk.size_bytes = 1 << 20;
  EXPECT_EQ(ShareOut(chunks, lanes), (std::vector<uint32_t>{0, 1, 2, 3, 0, 1, 2, 3}));
}

}  // namespace
}  // namespace waybill
