// A warm update allocates nothing, from Start() to the event that it has arrived.

#include <gtest/gtest.h>

#include <new>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/fabric/local/local_fabric.h"
#include "testing/allocations/allocations.h"
#include "testing/cluster/cluster.h"

namespace waybill {
namespace {

// The allocations of one update's data path.
uint64_t AllocationsOfUpdate(Cluster& cluster, uint64_t version) {
  cluster.FillTrainers(version);
  EXPECT_EQ(cluster.Prepare(version).message(), "");
  const std::vector<StartTarget> targets = {{0, cluster.worker_events(0)[0].buffer_index, {}},
                                            {1, cluster.worker_events(1)[0].buffer_index, {}}};
  for (uint32_t t = 0; t < 2; ++t) cluster.trainer_events(t).reserve(8);
  for (uint32_t w = 0; w < 2; ++w) cluster.worker_events(w).reserve(8);
  const auto is_over = [&] {
    for (uint32_t t = 0; t < 2; ++t) {
      if (cluster.trainer_events(t).empty()) return false;
    }
    for (uint32_t w = 0; w < 2; ++w) {
      if (cluster.worker_events(w).size() < 2) return false;
    }
    return true;
  };
  BeginCountingAllocations();
  for (uint32_t t = 0; t < 2; ++t) {
    (void)cluster.trainer(t).Start(cluster.update(), Digests::kOn, targets);
  }
  const absl::Time deadline = absl::Now() + absl::Seconds(20);  // Threads take what they take.
  while (!is_over() && absl::Now() < deadline) cluster.Step();
  const uint64_t allocations = EndCountingAllocations();
  EXPECT_TRUE(is_over());
  EXPECT_EQ(cluster.worker_events(0).back().kind, WorkerEvent::Kind::kArrived);
  EXPECT_EQ(cluster.Commit().message(), "");
  EXPECT_TRUE(cluster.Shows(0, version));
  return allocations;
}

TEST(Allocation, TheCounterCounts) {
  BeginCountingAllocations();
  void* volatile memory = ::operator new(8);  // Volatile: not to be left out.
  ::operator delete(memory);
  EXPECT_GE(EndCountingAllocations(), 1u);
}

struct WarmCase {
  std::string name;
  ClusterOptions options;
};

class WarmUpdateTest : public testing::TestWithParam<WarmCase> {};

TEST_P(WarmUpdateTest, AllocatesNothing) {
  Cluster cluster(GetParam().options, [](const std::string&) { return *MakeLocalFabric(); });
  ASSERT_EQ(cluster.Connect().message(), "");
  for (uint64_t version = 1; version <= 3; ++version) {
    (void)AllocationsOfUpdate(cluster, version);
  }
  EXPECT_EQ(AllocationsOfUpdate(cluster, 4), 0u);
}

const WarmCase kWarmCases[] = {
    {"mapped", {}},
    {"mapped_cast", {.trainer_dtype = Dtype::kF32}},
    {"posted", {.mode = Mode::kInPlace, .user_memory = true}},
    {"posted_by_threads",
     {.mode = Mode::kInPlace,
      .user_memory = true,
      .trainer = {.ring_bytes = 64 << 10, .chunk_bytes = 8 << 10, .stage_threads = 2},
      .verify_threads = 2}},
};

INSTANTIATE_TEST_SUITE_P(All, WarmUpdateTest, testing::ValuesIn(kWarmCases),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace waybill
