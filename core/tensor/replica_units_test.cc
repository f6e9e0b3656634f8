// SPDX-License-Identifier: Apache-2.0

#include "core/tensor/replica_units.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace waybill {
namespace {

constexpr int64_t kRows = 1000, kColumns = 1000;  // 30 units and a rest, in BF16.

uint32_t AddTensor(Manifest& m, const char* name, uint64_t offset) {
  const uint32_t tensor = m.AddTensor(name, {kRows, kColumns}, Dtype::kBf16);
  return m.AddShard(tensor, {Dtype::kBf16}, Box({0, 0}, {kRows, kColumns}),
                    {0, offset, {kColumns, 1}});
}

Manifest Two() {
  Manifest m;
  m.AddRegion("weights", 4 * kRows * kColumns);
  AddTensor(m, "a", 0);
  AddTensor(m, "b", 2 * kRows * kColumns);
  return m;
}

std::map<uint64_t, uint64_t> Turns(const ReplicaUnits& units, uint64_t versions) {
  std::map<uint64_t, uint64_t> version_of;  // By key.
  for (uint64_t version = 1; version <= versions; ++version) {
    for (const ReplicaUnit& unit : units.TurnOf(version)) {
      EXPECT_TRUE(version_of.emplace(unit.key, version).second);
    }
  }
  return version_of;
}

TEST(ReplicaUnits, EachHasItsTurnOnceInAsManyVersions) {
  const Manifest m = Two();
  const ReplicaUnits units(m);
  std::map<uint32_t, uint64_t> bytes;  // By shard.
  constexpr uint64_t kTurns = 8;       // Of 62 units.
  for (uint64_t version = 100; version < 100 + kTurns; ++version) {
    for (const ReplicaUnit& unit : units.TurnOf(version)) {
      bytes[unit.shard] += unit.end_bytes - unit.begin_bytes;
      EXPECT_EQ(units.FindShard(unit.key), unit.shard);
    }
  }
  EXPECT_EQ(bytes, (std::map<uint32_t, uint64_t>{{0, m.shard_bytes(0)}, {1, m.shard_bytes(1)}}));
  EXPECT_EQ(Turns(units, kTurns).size(), 62u);
  EXPECT_EQ(units.FindShard(1), m.shard_count());
}

TEST(ReplicaUnits, OfFewShardsAllHaveTheirTurnInEachVersion) {
  Manifest m;
  m.AddRegion("weights", 64);
  const uint32_t tensor = m.AddTensor("scale", {}, Dtype::kF32);
  m.AddShard(tensor, {Dtype::kF32}, Box(), {0, 0, {}});
  const ReplicaUnits units(m);
  EXPECT_EQ(units.TurnOf(1).size(), 1u);
  EXPECT_EQ(units.TurnOf(2).size(), 1u);
}

TEST(ReplicaUnits, HaveTheSameKeysWhereverAShardLies) {
  Manifest other;
  other.AddRegion("elsewhere", 8 * kRows * kColumns);
  AddTensor(other, "b", 0);
  const uint32_t tensor = other.AddTensor("a", {kRows, kColumns}, Dtype::kBf16);
  other.AddShard(tensor, {Dtype::kBf16}, Box({0, 0}, {kRows, kColumns}),
                 {0, 2 * kRows * kColumns, {2 * kColumns, 1}});
  EXPECT_EQ(Turns(ReplicaUnits(Two()), 8), Turns(ReplicaUnits(other), 8));
}

TEST(ReplicaUnits, OfAnotherTensorBoxOrFormatHaveOtherKeys) {
  Manifest m;
  m.AddRegion("weights", 1024);
  const uint32_t a = m.AddTensor("a", {4, 4}, Dtype::kBf16);
  const uint32_t b = m.AddTensor("b", {4, 4}, Dtype::kBf16);
  const uint32_t c = m.AddTensor("a of floats", {4, 4}, Dtype::kF32);
  m.AddShard(a, {Dtype::kBf16}, Box({0, 0}, {2, 4}), {0, 0, {4, 1}});
  m.AddShard(a, {Dtype::kBf16}, Box({2, 0}, {4, 4}), {0, 16, {4, 1}});
  m.AddShard(b, {Dtype::kBf16}, Box({0, 0}, {2, 4}), {0, 32, {4, 1}});
  m.AddShard(c, {Dtype::kF32}, Box({0, 0}, {2, 4}), {0, 64, {4, 1}});
  std::set<uint64_t> keys;
  for (const ReplicaUnit& unit : ReplicaUnits(m).TurnOf(1)) keys.insert(unit.key);
  EXPECT_EQ(keys.size(), 4u);
}

// Whoever holds more has more turns; what both hold and has its turn there, has it here too.
TEST(ReplicaUnits, ATurnAmongMoreUnitsIsATurnAmongFewer) {
  Manifest more = Two();
  for (const char* name : {"c", "d", "e", "f", "g", "h"}) AddTensor(more, name, 0);
  const ReplicaUnits many(more), few(Two());
  for (uint64_t version = 1; version <= 64; ++version) {
    std::set<uint64_t> here;
    for (const ReplicaUnit& unit : few.TurnOf(version)) here.insert(unit.key);
    for (const ReplicaUnit& unit : many.TurnOf(version)) {
      EXPECT_EQ(here.contains(unit.key), unit.shard < 2) << version;
    }
  }
}

}  // namespace
}  // namespace waybill
