#include <gtest/gtest.h>

#include <vector>

#include "core/fabric/loopback/loopback.h"
#include "core/memory/arena.h"
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

TEST_F(MemoryTest, AnArenaHoldsEveryRegionOnPagesOfItsOwn) {
  Manifest manifest;
  manifest.AddRegion("a", 10);
  manifest.AddRegion("b", 5000);
  manifest.AddRegion("c", 1);
  const auto arena = AllocateArena(fabric_.get(), manifest, "weights");
  ASSERT_TRUE(arena.ok()) << arena.status();
  EXPECT_EQ(arena->layout.offsets, (std::vector<uint64_t>{0, 4096, 12288}));
  EXPECT_EQ(arena->region.memory.size_bytes, 16384u);
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

}  // namespace
}  // namespace waybill
