// SPDX-License-Identifier: Apache-2.0

#include "core/engine/replica_sample.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <vector>

#include "kernels/digest.h"

namespace waybill {
namespace {

constexpr int64_t kRows = 300, kColumns = 500;  // 4 units and a rest, in BF16.

// A replica whose rows begin `pitch` elements after one another.
struct Replica {
  explicit Replica(int64_t pitch) : memory(static_cast<size_t>(kRows * pitch) * 2) {
    manifest.AddRegion("weights", memory.size());
    const uint32_t tensor = manifest.AddTensor("w", {kRows, kColumns}, Dtype::kBf16);
    manifest.AddShard(tensor, {Dtype::kBf16}, Box({0, 0}, {kRows, kColumns}), {0, 0, {pitch, 1}});
    regions = {{.data = memory.data(), .size_bytes = memory.size()}};
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t column = 0; column < kColumns; ++column) {
        Set(row * pitch + column, static_cast<uint16_t>(row * kColumns + column));
      }
    }
  }
  void Set(int64_t element, uint16_t bits) {
    std::memcpy(memory.data() + element * 2, &bits, sizeof bits);
  }
  std::map<uint64_t, uint64_t> Take(uint64_t version) {
    std::map<uint64_t, uint64_t> digests;
    const auto sample = ReplicaSample::Create(&manifest, regions);
    EXPECT_EQ(sample.status().message(), "");
    const auto taken = (*sample)->Take(version, regions);
    EXPECT_EQ(taken.status().message(), "");
    for (const auto& [unit, digest] : *taken) digests[unit] = digest;
    return digests;
  }

  Manifest manifest;
  std::vector<std::byte> memory;
  std::vector<MemorySpan> regions;
};

TEST(ReplicaSample, TakesTheDigestsOfTheElementsInRowMajorOrder) {
  Replica replica(kColumns);
  const auto sample = replica.Take(7);
  ASSERT_EQ(sample.size(), 5u);
  for (const ReplicaUnit& unit : ReplicaUnits(replica.manifest).TurnOf(7)) {
    EXPECT_EQ(sample.at(unit.key), kernels::LeafSum(replica.memory.data() + unit.begin_bytes,
                                                    unit.end_bytes - unit.begin_bytes,
                                                    unit.begin_bytes / kernels::kLeafBytes));
  }
}

TEST(ReplicaSample, IsTheSameHoweverFarApartRowsLie) {
  EXPECT_EQ(Replica(kColumns).Take(7), Replica(kColumns + 12).Take(7));
}

TEST(ReplicaSample, OneBitOfOneElementChangesOneDigest) {
  Replica replica(kColumns);
  const auto before = replica.Take(7);
  replica.Set(70'000, static_cast<uint16_t>(70'000 ^ 1));
  size_t changed = 0;
  for (const auto& [unit, digest] : replica.Take(7)) changed += before.at(unit) != digest ? 1 : 0;
  EXPECT_EQ(changed, 1u);
}

TEST(ReplicaSample, LeavesOutWhatLiesColumnByColumn) {
  Replica replica(kColumns);
  Manifest turned;
  turned.AddRegion("weights", replica.memory.size());
  turned.AddShard(turned.AddTensor("w", {kColumns, kRows}, Dtype::kBf16), {Dtype::kBf16},
                  Box({0, 0}, {kColumns, kRows}), {0, 0, {1, kColumns}});
  replica.manifest = turned;
  EXPECT_TRUE(replica.Take(7).empty());
}

}  // namespace
}  // namespace waybill
