// A lane that is warm allocates nothing, however much it carries.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <optional>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/fabric/tcp/driven_fabric.h"

namespace {

std::atomic<bool> counting = false;
std::atomic<uint64_t> allocations = 0;

void* Counted(std::size_t size) {
  if (counting.load(std::memory_order_relaxed)) ++allocations;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  std::abort();
}

}  // namespace

void* operator new(std::size_t size) { return Counted(size); }
void* operator new[](std::size_t size) { return Counted(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace waybill::tcp {
namespace {

TEST(Allocation, TheCounterCounts) {
  counting = true;
  allocations = 0;
  void* volatile memory = ::operator new(8);  // Volatile: not to be left out.
  ::operator delete(memory);
  counting = false;
  EXPECT_GE(allocations, 1u);
}

TEST(Allocation, AWarmLaneAllocatesNothing) {
  constexpr uint64_t kChunk = 300'000;
  constexpr uint64_t kChunks = 100;
  DrivenFabric a;
  DrivenFabric b;
  DrivenLane lane(a, b);
  const Region from = *a->Allocate(kChunk, "source");
  const RemoteRegionId to = lane.Reach(*b->Allocate(kChunk, "destination"));
  std::vector<FabricEvent> events;
  events.reserve(64);
  const auto carry = [&] {
    uint64_t posted = 0;
    uint64_t complete = 0;
    uint64_t arrived = 0;
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while ((complete < kChunks || arrived < kChunks) && absl::Now() < deadline) {
      const Write writes[] = {{from.id, 0, to, 0, 100}, {from.id, 100, to, 100, kChunk - 100}};
      while (posted < kChunks && a->Post(lane.at_a, writes, 1, posted).ok()) ++posted;
      for (Fabric* fabric : {&*a, &*b}) {
        events.clear();
        fabric->Poll(events);
        for (const FabricEvent& e : events) {
          complete += e.kind == FabricEvent::Kind::kComplete ? 1 : 0;
          arrived += e.kind == FabricEvent::Kind::kImmediate ? 1 : 0;
        }
      }
    }
    return complete == kChunks && arrived == kChunks;
  };
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(carry());
  allocations = 0;
  counting = true;
  const bool carried = carry();
  counting = false;
  EXPECT_TRUE(carried);
  EXPECT_EQ(allocations, 0u);
}

}  // namespace
}  // namespace waybill::tcp
