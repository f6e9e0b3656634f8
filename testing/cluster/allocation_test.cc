// SPDX-License-Identifier: Apache-2.0

// A warm update allocates nothing, from Start() to the event that it has arrived.

#include <gtest/gtest.h>

#include <new>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/base/steady_now.h"
#include "core/fabric/local/local_fabric.h"
#include "testing/allocations/allocations.h"
#include "testing/cluster/cluster.h"
#include "testing/cluster/quantised_model.h"

namespace waybill {
namespace {

// The allocations of one update's data path. `trainers`: how many there are.
uint64_t AllocationsOfUpdate(Cluster& cluster, uint32_t trainers, uint64_t version) {
  cluster.FillTrainers(version);
  EXPECT_EQ(cluster.Prepare(version).message(), "");
  const std::vector<StartTarget> targets = {{0, cluster.worker_events(0)[0].buffer_index},
                                            {1, cluster.worker_events(1)[0].buffer_index}};
  for (uint32_t t = 0; t < trainers; ++t) cluster.trainer_events(t).reserve(8);
  for (uint32_t w = 0; w < 2; ++w) cluster.worker_events(w).reserve(8);
  const auto is_over = [&] {
    for (uint32_t t = 0; t < trainers; ++t) {
      if (cluster.trainer_events(t).empty()) return false;
    }
    for (uint32_t w = 0; w < 2; ++w) {
      if (cluster.worker_events(w).size() < 2) return false;
    }
    return true;
  };
  BeginCountingAllocations();
  for (uint32_t t = 0; t < trainers; ++t) {
    (void)cluster.trainer(t).Start(cluster.update(), Digests::kOn, targets);
  }
  const absl::Time deadline = SteadyNow() + absl::Seconds(20);  // Threads take what they take.
  while (!is_over() && SteadyNow() < deadline) cluster.Step();
  const uint64_t allocations = EndCountingAllocations();
  EXPECT_TRUE(is_over());
  EXPECT_EQ(cluster.worker_events(0).back().kind, ReceiverEvent::Kind::kArrived);
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
  const ClusterOptions& options = GetParam().options;
  Cluster cluster(options, [](const std::string&) { return *MakeLocalFabric(); });
  ASSERT_EQ(cluster.Connect().message(), "");
  for (uint64_t version = 1; version <= 3; ++version) {
    (void)AllocationsOfUpdate(cluster, options.trainers, version);
  }
  EXPECT_EQ(AllocationsOfUpdate(cluster, options.trainers, 4), 0u);
}

// Three trainers whose rows meet in one row of blocks. Each writes to both workers.
ClusterOptions Quantised(ClusterOptions options, const Quantisation& quantisation,
                         Dtype dtype = Dtype::kBf16) {
  options.trainers = 3;
  options.model = MakeQuantisedModel(
      {.shape = {96, 80},
       .quantisation = quantisation,
       .dtype = dtype,
       .trainers = {{Box({0, 0}, {35, 80})}, {Box({35, 0}, {45, 80})}, {Box({45, 0}, {96, 80})}},
       .by_columns = true});
  return options;
}

// Blocks that are large enough for kernels to prepare what belongs to each.
ClusterOptions QuantisedByLargeBlocks(ClusterOptions options) {
  options.trainers = 3;
  options.model = MakeQuantisedModel({.shape = {400, 384},
                                      .quantisation = {},
                                      .trainers = {{Box({0, 0}, {140, 384})},
                                                   {Box({140, 0}, {300, 384})},
                                                   {Box({300, 0}, {400, 384})}},
                                      .by_columns = true});
  return options;
}

ClusterOptions Direct(ClusterOptions options) {
  options.direct = true;
  return options;
}

std::vector<WarmCase> WarmCases() {
  const ClusterOptions posted = {.mode = Mode::kInPlace, .user_memory = true};
  ClusterOptions by_threads = posted;
  by_threads.trainer = {.ring_bytes = 64 << 10, .chunk_bytes = 8 << 10, .stage_threads = 2};
  by_threads.verify_threads = 2;
  const Quantisation blocks = {.block_rows = 16, .block_columns = 16};
  const Quantisation tensor = {.epsilon = 1e-10f, .block_rows = 0, .block_columns = 0};
  return {
      {"mapped", {}},
      {"mapped_cast", {.trainer_dtype = Dtype::kF32}},
      {"posted", posted},
      {"posted_by_threads", by_threads},
      {"direct", Direct(posted)},
      {"direct_by_threads", Direct(by_threads)},
      {"quantised_mapped", Quantised({}, blocks)},
      {"quantised_mapped_of_floats", Quantised({}, blocks, Dtype::kF32)},
      {"quantised_posted", Quantised(posted, blocks)},
      {"quantised_posted_by_threads", Quantised(by_threads, blocks)},
      {"quantised_by_large_blocks", QuantisedByLargeBlocks({})},
      {"quantised_by_large_blocks_posted", QuantisedByLargeBlocks(posted)},
      {"quantised_by_one_scale", Quantised({}, tensor)},
      {"quantised_by_rows_of_32", Quantised(posted, *NamedQuantisation("mxfp8"))},
  };
}

INSTANTIATE_TEST_SUITE_P(All, WarmUpdateTest, testing::ValuesIn(WarmCases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace waybill
