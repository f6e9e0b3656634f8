// SPDX-License-Identifier: Apache-2.0

// A plan, as a rank gets it from whoever plays the controller.
#include <utility>

#include "core/plan/chunks.h"
#include "core/plan/plan_check.h"
#include "core/plan/plan_codec.h"
#include "core/plan/planner.h"
#include "core/tensor/manifest.h"
#include "testing/fuzz/fuzz_target.h"

namespace waybill::fuzz {
namespace {

// One tensor at two trainers; one worker serves it quantised, another one some of its columns.
struct Job {
  std::vector<Manifest> trainers, workers;
  Plan plan;

  Job() {
    constexpr Quantisation kBlocks = {.block_rows = 4, .block_columns = 4};
    for (const auto& [from, to] : {std::pair<int64_t, int64_t>{0, 6}, {6, 8}}) {
      Manifest& m = trainers.emplace_back();
      m.AddRegion("all", 256);
      m.AddShard(m.AddTensor("w", {8, 8}, Dtype::kBf16), {Dtype::kBf16}, Box({from, 0}, {to, 8}),
                 {0, 64, {8, 1}});
    }
    Manifest& quantised = workers.emplace_back();
    const uint32_t q = quantised.AddTensor("w", {8, 8}, Dtype::kBf16);
    quantised.AddRegion("elements", 64);
    quantised.AddRegion("scales", 16);
    quantised.AddShard(q, Format::Quantised(kBlocks), Box::Whole({8, 8}), {0, 0, {8, 1}});
    quantised.AddShard(q, Format::Scales(kBlocks), Box::Whole({2, 2}), {1, 0, {2, 1}});
    Manifest& plain = workers.emplace_back();
    plain.AddRegion("columns", 96);
    plain.AddShard(plain.AddTensor("w", {8, 8}, Dtype::kBf16), {Dtype::kBf16}, Box({0, 2}, {8, 8}),
                   {0, 0, {6, 1}});
    const Manifest* t[] = {&trainers[0], &trainers[1]};
    const Manifest* w[] = {&workers[0], &workers[1]};
    plan = *MakePlan(t, w);
  }
};

const Job& TheJob() {
  static const Job* const job = new Job;
  return *job;
}

// Walks everything that the plan has an engine read or write of its own memory.
void WalkTrainer(const RankPlan& plan, const Manifest& manifest) {
  for (uint32_t r = 0; r < plan.routes.size(); ++r) {
    const RouteView route = plan.routes[r];
    const bool of_table = route.source_region >= manifest.region_count();
    const uint64_t size =
        of_table ? plan.exchange.tables[route.source_region - manifest.region_count()].size_bytes()
                 : manifest.region_bytes(route.source_region);
    Require(route.source_offset_bytes + route.shape.source_span_bytes() <= size,
            "a trainer reads within its memory");
  }
}

void WalkWorker(const RankPlan& plan, const Manifest& manifest) {
  const ChunkList list = CutIntoChunks(plan.routes, kCutBytes);
  std::vector<ChunkWrite> writes;
  const auto is_direct = [&](uint32_t route) { return IsDirect(plan.routes, route, 1); };
  for (const Chunk& chunk : list.chunks) {
    AppendWrites(plan.routes, list, chunk, is_direct, writes);
    AppendWrites(plan.routes, list, chunk, [](uint32_t) { return false; }, writes);
  }
  for (const ChunkWrite& write : writes) {
    Require(write.destination_offset_bytes + write.size_bytes <=
                manifest.region_bytes(write.destination_region),
            "a worker is written to within its memory");
  }
}

}  // namespace

std::vector<std::string> Seeds() {
  const Plan& plan = TheJob().plan;
  return {EncodeRankPlan(plan.SenderBundles(0), plan.SenderExchange(0)),
          EncodeRankPlan(plan.SenderBundles(1), plan.SenderExchange(1)),
          EncodeRankPlan(plan.ReceiverBundles(0), {}), EncodeRankPlan(plan.ReceiverBundles(1), {})};
}

}  // namespace waybill::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace waybill;
  const auto plan = DecodeRankPlan({reinterpret_cast<const char*>(data), size});
  if (!plan.ok()) return 0;
  const fuzz::Job& job = fuzz::TheJob();
  for (const Manifest& manifest : job.trainers) {
    if (CheckRankPlan(*plan, manifest, Role::kTrainer).ok()) fuzz::WalkTrainer(*plan, manifest);
  }
  for (const Manifest& manifest : job.workers) {
    if (CheckRankPlan(*plan, manifest, Role::kWorker).ok()) fuzz::WalkWorker(*plan, manifest);
  }
  (void)CheckDestinations(plan->routes, 0, plan->routes.size(), {64, 16});
  return 0;
}
