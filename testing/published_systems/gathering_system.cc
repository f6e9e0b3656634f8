// SPDX-License-Identifier: Apache-2.0

#include "testing/published_systems/gathering_system.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/rank_id.h"
#include "core/simulate/network.h"
#include "core/simulate/processors.h"
#include "core/simulate/virtual_time.h"

namespace waybill {
namespace {

using simulate::Hardware;

constexpr uint64_t kMillion = 1'000'000;

// Bytes are those of the models' shapes in block FP8, with embeddings, heads and routers in BF16.
constexpr PublishedCase kCases[] = {
    {.name = "kimi-k2-256-128",
     .model = "Kimi-K2, BF16 to FP8",
     .measured_seconds = 1.233,
     .trainers = 256,
     .stages = 2,
     .expert_groups = 8,
     .workers = 128,
     .expert_ranks = 32,
     .layers = 60,
     .experts = 384,
     .whole_tensors = 427,  // 14 a layer: 7 of attention, 2 norms, 2 of the router, 3 shared.
     .quantised_tensors = 243,
     .expert_tensors = 60,
     .whole_bytes = 14'250 * kMillion,
     .expert_bytes = 1'014'687 * kMillion,
     .to_device = true},
    {.name = "qwen3-235b-128-32",
     .model = "Qwen3-235B-A22B, BF16 to FP8",
     .measured_seconds = 1.70,
     .trainers = 128,
     .stages = 1,
     .expert_groups = 8,
     .workers = 32,
     .expert_ranks = 8,
     .layers = 94,
     .experts = 128,
     .whole_tensors = 849,  // 9 a layer: q, k, v, o, 4 norms, the router.
     .quantised_tensors = 376,
     .expert_tensors = 188,
     .whole_bytes = 9'295 * kMillion,
     .expert_bytes = 227'096 * kMillion,
     .to_device = false},
};

// Each tensor is gathered in two calls: 974 for 487 tensors.
constexpr double kFullTensors = 2;
// Of the 647 quantise calls, 243 are of whole tensors; the others share 720 writes of experts.
constexpr double kQuantisesOfExpertWrite = (647.0 - 243) / 720;

// One trainer's gathered tensor, and whom it writes to.
struct Task {
  uint64_t held_bytes = 0;  // The trainer's own part, in BF16.
  double quantises = 0;
  std::vector<std::pair<uint32_t, uint64_t>> writes;  // Workers, and bytes.
};

// The tensors of one trainer, in order: those that are whole everywhere, then the experts.
struct Table {
  std::vector<Task> groups[2];
};

// Deals out the writes of each tensor in turn to the trainers that hold it once it is gathered.
std::vector<Table> MakeTables(const PublishedCase& of) {
  std::vector<Table> tables(of.trainers);
  const uint32_t stage_trainers = of.trainers / of.stages;
  for (uint32_t s = 0; s < of.stages; ++s) {
    const uint32_t first = s * stage_trainers;
    uint64_t turn = 0;
    for (uint32_t i = 0; i < of.whole_tensors; ++i) {
      const uint64_t bytes = of.whole_bytes / of.stages / of.whole_tensors;
      for (uint32_t t = 0; t < stage_trainers; ++t) {
        tables[first + t].groups[0].push_back(
            {.held_bytes = 2 * bytes / stage_trainers,
             .quantises = static_cast<double>(of.quantised_tensors) / of.whole_tensors,
             .writes = {}});
      }
      for (uint32_t w = 0; w < of.workers; ++w) {
        tables[first + turn++ % stage_trainers].groups[0].back().writes.emplace_back(w, bytes);
      }
    }
    // Trainers of an expert group hold the same experts, once they are gathered.
    const uint32_t group_trainers = stage_trainers / of.expert_groups;
    const uint32_t group_experts = of.experts / of.expert_groups;
    const uint64_t bytes = of.expert_bytes / of.stages / of.expert_tensors / of.experts;
    for (uint32_t i = 0; i < of.expert_tensors; ++i) {
      for (uint32_t t = 0; t < stage_trainers; ++t) {
        tables[first + t].groups[1].push_back(
            {.held_bytes = 2 * bytes * of.experts / stage_trainers, .writes = {}});
      }
      for (uint32_t g = 0; g < of.expert_groups; ++g) {
        uint32_t next = i;
        for (uint32_t e = 0; e < group_experts; ++e) {
          const uint32_t expert = g * group_experts + e;
          const uint32_t rank = expert * of.expert_ranks / of.experts;
          for (uint32_t r = 0; r < of.replicas(); ++r) {
            const uint32_t t = first + next++ % group_trainers * of.expert_groups + g;
            Task& task = tables[t].groups[1].back();
            task.writes.emplace_back(r * of.expert_ranks + rank, bytes);
            task.quantises += kQuantisesOfExpertWrite;
          }
        }
      }
    }
  }
  return tables;
}

// Runs the tables on the virtual clock.
class PublishedRun {
 public:
  PublishedRun(const PublishedCase& of, const Hardware& hardware, const PublishedCalls& calls)
      : of_(of),
        calls_(calls),
        cores_(&time_, 0),
        fabrics_(&time_, hardware),
        tables_(MakeTables(of)) {
    for (uint32_t t = 0; t < of.trainers; ++t) {
      threads_.push_back(
          std::make_unique<simulate::Threads>(&cores_, 1, fabrics_.slowdown(Role::kTrainer, t)));
    }
  }

  double Run() {
    BeginGroup(0);
    while (time_.Step()) {
    }
    return time_.now() + calls_.barrier;
  }

  double TaskSeconds(const Task& task) const {
    const double to_device =
        of_.to_device ? static_cast<double>(task.held_bytes) / calls_.to_device : 0;
    return to_device + kFullTensors * calls_.full_tensor + calls_.fuse +
           task.quantises * calls_.quantise +
           static_cast<double>(task.writes.size()) * calls_.submit;
  }
  const std::vector<Table>& tables() const { return tables_; }

 private:
  void BeginGroup(int group) {
    left_ = of_.trainers;
    for (uint32_t t = 0; t < of_.trainers; ++t) {
      const auto& tasks = tables_[t].groups[group];
      for (size_t i = 0; i < tasks.size(); ++i) {
        threads_[t]->Run(TaskSeconds(tasks[i]), [this, t, i, group, count = tasks.size()] {
          for (const auto& [worker, bytes] : tables_[t].groups[group][i].writes) {
            fabrics_.Send(1, {bytes, 1, fabrics_.Path(Role::kTrainer, t, 0, worker, 0), [] {}});
          }
          if (i + 1 == count) EndGroup(group);
        });
      }
    }
  }
  void EndGroup(int group) {
    if (--left_ == 0 && group == 0) time_.After(calls_.barrier, [this] { BeginGroup(1); });
  }

  const PublishedCase& of_;
  const PublishedCalls calls_;
  simulate::VirtualTime time_;
  simulate::Cores cores_;
  simulate::Fabrics fabrics_;
  const std::vector<Table> tables_;
  std::vector<std::unique_ptr<simulate::Threads>> threads_;
  uint32_t left_ = 0;
};

}  // namespace

absl::Span<const PublishedCase> PublishedCases() { return kCases; }

const PublishedCase* FindPublishedCase(absl::string_view name) {
  for (const PublishedCase& one : kCases) {
    if (one.name == name) return &one;
  }
  return nullptr;
}

Hardware PublishedHardware() { return {}; }

PublishedPrediction PredictPublished(const PublishedCase& of, const Hardware& hardware,
                                     const PublishedCalls& calls) {
  PublishedRun run(of, hardware, calls);
  PublishedPrediction prediction;
  for (const Table& table : run.tables()) {
    double seconds = 0;
    uint64_t writes = 0;
    for (const auto& group : table.groups) {
      for (const Task& task : group) {
        seconds += run.TaskSeconds(task);
        writes += task.writes.size();
      }
    }
    prediction.gather_seconds = std::max(prediction.gather_seconds, seconds);
    prediction.writes = std::max(prediction.writes, writes);
  }
  prediction.seconds = run.Run();
  return prediction;
}

}  // namespace waybill
