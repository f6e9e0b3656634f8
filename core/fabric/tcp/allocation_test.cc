// SPDX-License-Identifier: Apache-2.0

// A lane that is warm allocates nothing, however much it carries.

#include <gtest/gtest.h>

#include <new>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "core/base/steady_now.h"
#include "core/fabric/tcp/driven_fabric.h"
#include "testing/allocations/allocations.h"

namespace waybill::tcp {
namespace {

TEST(Allocation, TheCounterCounts) {
  BeginCountingAllocations();
  void* volatile memory = ::operator new(8);  // Volatile: not to be left out.
  ::operator delete(memory);
  EXPECT_GE(EndCountingAllocations(), 1u);
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
    const absl::Time deadline = SteadyNow() + absl::Seconds(30);
    while ((complete < kChunks || arrived < kChunks) && SteadyNow() < deadline) {
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
  BeginCountingAllocations();
  const bool carried = carry();
  const uint64_t allocations = EndCountingAllocations();
  EXPECT_TRUE(carried);
  EXPECT_EQ(allocations, 0u);
}

}  // namespace
}  // namespace waybill::tcp
