// SPDX-License-Identifier: Apache-2.0

// Executes the routes of an update in one process: what an update over `local` would take if the
// job around it took no time.
//
//     bazel run -c opt //testing/bench:bare_update -- --model qwen3-0.6b
//
// One thread for each trainer stores its chunks in the workers' memory with the kernels of
// core/stage. When all have, one thread for each worker computes the digests of what it got, unless
// digests are off. There are no processes, lanes, messages or ledgers. Prints JSON: the seconds of
// each update, with digests and without, and the rates of memcpy and of plain reads, by as many
// threads.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/fabric/shared_pages.h"
#include "core/layout/every_rank.h"
#include "core/layout/synthetic.h"
#include "core/layout/trainer_layout.h"
#include "core/layout/worker_layout.h"
#include "core/plan/chunks.h"
#include "core/plan/planner.h"
#include "core/stage/stage_piece.h"
#include "kernels/copy.h"
#include "kernels/memory_bound.h"

namespace waybill {
namespace {

struct Options {
  std::string model = "qwen3-0.6b";
  uint32_t trainers = 2;
  uint32_t workers = 2;
  uint32_t rounds = 7;
};

// A rank's routes, as the engines cut them.
struct Rank {
  RouteTable routes;
  ChunkList chunks;
};

class BareUpdate {
 public:
  explicit BareUpdate(const Options& options) : options_(options) {}

  absl::Status Prepare() {
    WAYBILL_ASSIGN_OR_RETURN(const SyntheticModel model,
                             MakeSyntheticModel(options_.model, std::nullopt));
    WAYBILL_ASSIGN_OR_RETURN(const ModelConfig config, ParseModelConfig(model.config_json));
    WAYBILL_ASSIGN_OR_RETURN(const auto tensors, FindTensors(model.tensors, config));
    WAYBILL_ASSIGN_OR_RETURN(const auto from,
                             TrainerSharding::Parse("fsdp=" + std::to_string(options_.trainers)));
    WAYBILL_ASSIGN_OR_RETURN(const auto to,
                             WorkerSharding::Parse("tp=" + std::to_string(options_.workers)));
    WAYBILL_ASSIGN_OR_RETURN(const auto parameters, FindParameters(tensors, config, to.engine));
    std::vector<Manifest> trainers, workers;
    for (uint32_t t = 0; t < options_.trainers; ++t) {
      WAYBILL_ASSIGN_OR_RETURN(trainers.emplace_back(),
                               MakeTrainerManifest(tensors, config, from, t));
      weights_.emplace_back(trainers[t].region_bytes(0), std::byte{1});
    }
    for (uint32_t w = 0; w < options_.workers; ++w) {
      WAYBILL_ASSIGN_OR_RETURN(WorkerLayout layout, MakeWorkerLayout(parameters, config, to, w));
      workers.push_back(std::move(layout.manifest));
      WAYBILL_ASSIGN_OR_RETURN(buffers_.emplace_back(),
                               SharedPages::Create(workers[w].region_bytes(0), "buffer"));
    }
    WAYBILL_ASSIGN_OR_RETURN(const Plan plan,
                             MakePlan(PointersTo(trainers), PointersTo(workers), {}));
    for (uint32_t t = 0; t < options_.trainers; ++t) Add(plan.SenderRoutes(t), trainers_);
    for (uint32_t w = 0; w < options_.workers; ++w) Add(plan.ReceiverRoutes(w), workers_);
    update_bytes_ = plan.total_bytes();
    return absl::OkStatus();
  }

  uint64_t update_bytes() const { return update_bytes_; }

  // Returns the seconds of each update.
  std::vector<double> Run(Digests digests) {
    const size_t threads = std::max(trainers_.size(), workers_.size());
    std::barrier together(static_cast<ptrdiff_t>(threads));
    std::vector<double> seconds;
    const auto updates = [&](size_t thread) {
      for (uint32_t round = 0; round < options_.rounds; ++round) {
        together.arrive_and_wait();
        const auto begin = std::chrono::steady_clock::now();
        if (thread < trainers_.size()) Store(trainers_[thread], digests);
        together.arrive_and_wait();
        if (digests == Digests::kOn && thread < workers_.size()) Verify(workers_[thread]);
        together.arrive_and_wait();
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
        if (thread == 0) seconds.push_back(took.count());
      }
    };
    std::vector<std::thread> others;
    for (size_t thread = 1; thread < threads; ++thread) others.emplace_back(updates, thread);
    updates(0);
    for (std::thread& other : others) other.join();
    return seconds;
  }

  // Returns true if the workers got what the trainers had, in all updates with digests.
  bool verified() const { return sums_ == 0; }

  // Returns the rates of memcpy from the first trainer's weights to the first worker's buffer, and
  // of reading that buffer, in bytes per second.
  std::pair<double, double> MeasureMemory() {
    constexpr size_t kRepeats = 5;
    const uint64_t size_bytes = std::min<uint64_t>(buffers_[0].size_bytes(), weights_[0].size());
    return {kernels::MeasureCopyRate(buffers_[0].data(), weights_[0].data(), size_bytes,
                                     trainers_.size(), kRepeats),
            kernels::MeasureReadRate(buffers_[0].data(), size_bytes, workers_.size(), kRepeats)};
  }

 private:
  static void Add(RouteTable routes, std::vector<Rank>& ranks) {
    ChunkList chunks = CutIntoChunks(routes, kChunkBytes);
    ranks.push_back({std::move(routes), std::move(chunks)});
  }

  std::byte* Destination(const RouteTable& routes, uint32_t route) const {
    return buffers_[routes.receiver(route)].data() + routes.destination_offset(route);
  }

  void Store(const Rank& trainer, Digests digests) {
    uint64_t sum = 0;
    for (const Piece& piece : trainer.chunks.pieces) {
      const RouteTable& routes = trainer.routes;
      const std::byte* source =
          weights_[routes.sender(piece.route)].data() + routes.source_offset(piece.route);
      sum += StageInPlace(routes.shape(piece.route), source, piece.begin, piece.end,
                          Destination(routes, piece.route), digests);
    }
    kernels::StreamFence();
    sums_ += sum;
  }

  void Verify(const Rank& worker) {
    uint64_t sum = 0;
    for (const Piece& piece : worker.chunks.pieces) {
      sum += DigestInPlace(worker.routes.shape(piece.route),
                           Destination(worker.routes, piece.route), piece.begin, piece.end);
    }
    sums_ -= sum;
  }

  const Options options_;
  std::vector<std::vector<std::byte>> weights_;  // By trainer.
  std::vector<SharedPages> buffers_;             // By worker.
  std::vector<Rank> trainers_;
  std::vector<Rank> workers_;
  uint64_t update_bytes_ = 0;
  std::atomic<uint64_t> sums_ = 0;  // The digests of what was stored, less those of what arrived.
};

int Run(int argc, char** argv) {
  Options options;
  CLI::App app("Executes the routes of an update in one process");
  app.add_option("--model", options.model, "a synthetic model")->capture_default_str();
  app.add_option("--trainers", options.trainers, "trainers, by rows")->capture_default_str();
  app.add_option("--workers", options.workers, "workers, tensor parallel")->capture_default_str();
  app.add_option("--rounds", options.rounds, "updates of each kind")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  BareUpdate update(options);
  if (const absl::Status status = update.Prepare(); !status.ok()) {
    std::cerr << "bare_update: " << status << "\n";
    return 1;
  }
  const std::vector<double> with_digests = update.Run(Digests::kOn);
  if (!update.verified()) {
    std::cerr << "bare_update: the workers' digests are not those of the trainers\n";
    return 1;
  }
  const std::vector<double> without = update.Run(Digests::kOff);
  const auto [copy_rate, read_rate] = update.MeasureMemory();
  std::cout << nlohmann::json{{"update_bytes", update.update_bytes()},
                              {"seconds", with_digests},
                              {"seconds_without_digests", without},
                              {"copy_bytes_per_second", copy_rate},
                              {"read_bytes_per_second", read_rate}}
                   .dump()
            << std::endl;
  return 0;
}

}  // namespace
}  // namespace waybill

int main(int argc, char** argv) { return waybill::Run(argc, argv); }
