// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

#include "core/fabric/loopback/loopback.h"
#include "core/memory/arena.h"
#include "core/memory/neighbours.h"
#include "core/memory/registration_cache.h"
#include "core/memory/staging_ring.h"

namespace waybill {
namespace {

class MemoryTest : public testing::Test {
 protected:
  LoopbackNetwork network_;
  std::unique_ptr<Fabric> fabric_ = network_.Join("a");
};

TEST_F(MemoryTest, TheRingHasAsManyWholeSlotsAsFit) {
  auto ring = StagingRing::Create(fabric_.get(), 10'000, 4096);
  ASSERT_TRUE(ring.ok()) << ring.status();
  EXPECT_EQ(ring->slot_count(), 2u);
  EXPECT_EQ(ring->bytes().size(), 2 * 4096u);
  EXPECT_EQ(ring->BytesOf(1), ring->bytes().data() + ring->OffsetOf(1));
}

TEST_F(MemoryTest, ARingWithoutASlotIsRefused) {
  EXPECT_EQ(StagingRing::Create(fabric_.get(), 100, 4096).status().message(),
            "staging ring of 100 bytes: one slot has 4096");
}

TEST_F(MemoryTest, AnArenaHoldsRegionsOnAsFewPagesAsTheyNeed) {
  Manifest manifest;
  manifest.AddRegion("a", 10);
  manifest.AddRegion("b", 5000);
  manifest.AddRegion("c", 1);
  const auto arena = AllocateArena(fabric_.get(), manifest, "weights");
  ASSERT_TRUE(arena.ok()) << arena.status();
  EXPECT_EQ(arena->layout.offsets, (std::vector<uint64_t>{0, 4096, 9216}));
  EXPECT_EQ(arena->region.memory.size_bytes, 12288u);
}

TEST_F(MemoryTest, MemoryWithinARegisteredRangeSharesItsRegistration) {
  std::vector<std::byte> memory(1000);
  RegistrationCache cache(fabric_.get());
  const auto span = [&](size_t begin, size_t size) {
    return MemorySpan{MemoryKind::kHost, memory.data() + begin, size};
  };
  const auto whole = cache.Acquire(span(0, 600), "whole");
  const auto part = cache.Acquire(span(100, 500), "part");
  // The same base, but longer: never the same registration.
  const auto longer = cache.Acquire(span(0, 601), "longer");
  ASSERT_TRUE(whole.ok() && part.ok() && longer.ok());
  EXPECT_EQ(part->region, whole->region);
  EXPECT_EQ(part->offset_bytes, 100u);
  EXPECT_NE(longer->region, whole->region);
  EXPECT_EQ(cache.region_count(), 2u);
  EXPECT_TRUE(cache.Release(*whole).ok());
  EXPECT_EQ(cache.region_count(), 2u);
  EXPECT_TRUE(cache.Release(*part).ok());
  EXPECT_EQ(cache.region_count(), 1u);
  EXPECT_FALSE(cache.Release(*part).ok());
}

TEST_F(MemoryTest, ManyRangesWithinAndBesideEachOtherAreFoundAsByASearchOfAll) {
  std::vector<std::byte> memory(2000);
  RegistrationCache cache(fabric_.get());
  std::mt19937 random(5);
  struct Known {
    Registration registration;
    size_t begin, size;
  };
  std::vector<Known> held;
  for (int i = 0; i < 3000; ++i) {
    if (!held.empty() && random() % 3 == 0) {
      std::swap(held[random() % held.size()], held.back());
      ASSERT_TRUE(cache.Release(held.back().registration).ok());
      held.pop_back();
      continue;
    }
    const size_t begin = random() % 1900, size = 1 + random() % 100;
    const auto got = cache.Acquire({MemoryKind::kHost, memory.data() + begin, size}, "piece");
    ASSERT_TRUE(got.ok()) << got.status();
    for (const Known& other : held) {
      if (other.registration.region != got->region) continue;
      // Both are offsets into the same range.
      EXPECT_EQ(begin - got->offset_bytes, other.begin - other.registration.offset_bytes);
    }
    held.push_back({*got, begin, size});
  }
  for (const Known& one : held) EXPECT_TRUE(cache.Release(one.registration).ok());
  EXPECT_EQ(cache.region_count(), 0u);
}

TEST(Neighbours, AreJoinedWhereLittleLiesBetweenThem) {
  std::vector<std::byte> memory(10'000);
  const auto span = [&](size_t begin, size_t size, MemoryKind kind = MemoryKind::kHost) {
    return MemorySpan{kind, memory.data() + begin, size};
  };
  const MemorySpan pieces[] = {
      span(3000, 100),                        // 0: joined to 2, which lies before it.
      span(5000, 100, MemoryKind::kDevice),   // 1: of another kind than 3.
      span(2000, 488),                        // 2: 512 bytes before 0.
      span(5100, 100),                        // 3
      span(2100, 10),                         // 4: within 2.
      span(3613, 7),                          // 5: 513 bytes behind 0.
      span(6000, 100, MemoryKind::kDevice),   // 6: not of the allocation of 7.
      span(6100, 100, MemoryKind::kDevice),   // 7: of that of 8.
      span(6200, 100, MemoryKind::kDevice)};  // 8
  const JoinedMemory joined = JoinNeighbours(
      pieces,
      [&](const MemorySpan& before, const MemorySpan&) { return before.data != pieces[6].data; });
  ASSERT_EQ(joined.ranges.size(), 6u);
  EXPECT_EQ(joined.ranges[0].memory.data, pieces[2].data);
  EXPECT_EQ(joined.ranges[0].memory.size_bytes, 1100u);
  EXPECT_EQ(joined.ranges[0].first, 2u);
  EXPECT_EQ(joined.ranges[0].count, 3u);
  EXPECT_EQ(joined.places[0].offset_bytes, 1000u);
  EXPECT_EQ(joined.places[4].offset_bytes, 100u);
  EXPECT_EQ(joined.places[5].range, 1u);
  EXPECT_EQ(joined.places[8].range, joined.places[7].range);
  EXPECT_NE(joined.places[7].range, joined.places[6].range);
}

}  // namespace
}  // namespace waybill
