#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/layout/checkpoint.h"
#include "core/layout/serving.h"
#include "core/layout/synthetic.h"
#include "core/layout/trainer_layout.h"
#include "core/layout/worker_layout.h"
#include "core/plan/chunks.h"
#include "core/plan/planner.h"
#include "tools/waybill/commands.h"

namespace waybill {
namespace {

struct Options {
  std::string model = "qwen3-0.6b";
  std::optional<int64_t> layers;
  std::string checkpoint;
  std::string trainers = "fsdp=2";
  std::string workers = "tp=2";
  std::string dtype;
  std::string format;
  bool json = false;
};

struct Model {
  ModelConfig config;
  std::vector<CheckpointTensor> tensors;  // Without data.
};

absl::StatusOr<Model> FindModel(const Options& options) {
  Model model;
  if (!options.checkpoint.empty()) {
    WAYBILL_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(options.checkpoint));
    model.config = checkpoint.config();
    for (CheckpointTensor tensor : checkpoint.tensors()) {
      tensor.data = {};
      model.tensors.push_back(std::move(tensor));
    }
    return model;
  }
  WAYBILL_ASSIGN_OR_RETURN(SyntheticModel synthetic,
                           MakeSyntheticModel(options.model, options.layers));
  WAYBILL_ASSIGN_OR_RETURN(model.config, ParseModelConfig(synthetic.config_json));
  model.tensors = std::move(synthetic.tensors);
  return model;
}

struct Manifests {
  std::vector<Manifest> trainers;
  std::vector<Manifest> workers;
};

absl::StatusOr<Manifests> MakeManifests(const Model& model, const Options& options) {
  WAYBILL_ASSIGN_OR_RETURN(const TrainerSharding trainers,
                           TrainerSharding::Parse(options.trainers));
  WAYBILL_ASSIGN_OR_RETURN(const WorkerSharding workers, WorkerSharding::Parse(options.workers));
  WAYBILL_ASSIGN_OR_RETURN(const Serving serving,
                           ParseServing(options.format, options.dtype, model.config));
  Manifests manifests;
  for (uint32_t t = 0; t < trainers.world(); ++t) {
    WAYBILL_ASSIGN_OR_RETURN(Manifest manifest,
                             MakeTrainerManifest(model.tensors, model.config, trainers, t));
    manifests.trainers.push_back(std::move(manifest));
  }
  for (uint32_t w = 0; w < workers.world(); ++w) {
    WAYBILL_ASSIGN_OR_RETURN(WorkerLayout layout,
                             MakeWorkerLayout(model.tensors, model.config, workers, w, serving));
    manifests.workers.push_back(std::move(layout.manifest));
  }
  return manifests;
}

// Writes that a trainer's routes become where nothing can be mapped.
uint64_t CountWrites(const RouteTable& routes) {
  constexpr uint64_t kChunkBytes = 1 << 20;
  const ChunkList list = CutIntoChunks(routes, kChunkBytes);
  std::vector<ChunkWrite> writes;
  uint64_t count = 0;
  for (const Chunk& chunk : list.chunks) {
    writes.clear();
    AppendWrites(routes, list, chunk, writes);
    count += writes.size();
  }
  return count;
}

void Print(const Plan& plan, const Manifests& manifests, double seconds) {
  std::cout << absl::StrFormat("plan %016x, made in %.1f ms\n\n", plan.hash, seconds * 1e3);
  std::cout << absl::StrFormat("%-12s %12s %12s %9s %9s\n", "rank", "holds MB", "moves MB",
                               "routes", "writes");
  for (size_t t = 0; t < plan.trainers.size(); ++t) {
    std::cout << absl::StrFormat("%-12s %12.1f %12.1f %9d %9d\n", absl::StrCat("trainer ", t),
                                 static_cast<double>(manifests.trainers[t].total_bytes()) / 1e6,
                                 static_cast<double>(plan.trainer_bytes[t]) / 1e6,
                                 plan.trainers[t].size(), CountWrites(plan.trainers[t]));
  }
  for (size_t w = 0; w < plan.workers.size(); ++w) {
    std::cout << absl::StrFormat("%-12s %12.1f %12.1f %9d\n", absl::StrCat("worker ", w),
                                 static_cast<double>(manifests.workers[w].total_bytes()) / 1e6,
                                 static_cast<double>(plan.worker_bytes[w]) / 1e6,
                                 plan.workers[w].size());
  }
  uint64_t messages = 0, maxima = 0;
  for (const Exchange& exchange : plan.exchanges) {
    for (const MaximaMessage& message : exchange.outgoing) {
      messages += message.into.empty() ? 1 : 0;
      maxima += message.into.empty() ? message.block_count() : 0;
    }
  }
  if (messages > 0) {
    std::cout << absl::StrFormat("\n%d maxima of split blocks in %d messages between trainers\n",
                                 maxima, messages);
  }
  std::cout << absl::StrFormat("\nbusiest rank / lower bound %.3f; busiest trainer / mean %.3f\n",
                               plan.balance.ratio(), plan.balance.trainer_imbalance());
}

nlohmann::json ToJson(const Plan& plan, double seconds) {
  nlohmann::json json = {{"hash", absl::StrFormat("%016x", plan.hash)},
                         {"seconds", seconds},
                         {"ratio_to_lower_bound", plan.balance.ratio()},
                         {"trainer_imbalance", plan.balance.trainer_imbalance()},
                         {"trainers", nlohmann::json::array()},
                         {"workers", nlohmann::json::array()}};
  for (size_t t = 0; t < plan.trainers.size(); ++t) {
    json["trainers"].push_back({{"bytes", plan.trainer_bytes[t]},
                                {"routes", plan.trainers[t].size()},
                                {"writes", CountWrites(plan.trainers[t])}});
  }
  for (size_t w = 0; w < plan.workers.size(); ++w) {
    json["workers"].push_back(
        {{"bytes", plan.worker_bytes[w]}, {"routes", plan.workers[w].size()}});
  }
  return json;
}

absl::Status RunPlan(const Options& options) {
  WAYBILL_ASSIGN_OR_RETURN(const Model model, FindModel(options));
  WAYBILL_ASSIGN_OR_RETURN(const Manifests manifests, MakeManifests(model, options));
  std::vector<const Manifest*> trainers, workers;
  for (const Manifest& m : manifests.trainers) trainers.push_back(&m);
  for (const Manifest& m : manifests.workers) workers.push_back(&m);
  const absl::Time begin = absl::Now();
  WAYBILL_ASSIGN_OR_RETURN(const Plan plan, MakePlan(trainers, workers));
  const double seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  if (options.json) {
    std::cout << ToJson(plan, seconds).dump(2) << "\n";
  } else {
    Print(plan, manifests, seconds);
  }
  return absl::OkStatus();
}

}  // namespace

void AddPlanCommand(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("plan", "Plans from configurations alone, no network");
  command->add_option("--model", options->model, "a made-up model")->capture_default_str();
  command->add_option("--layers", options->layers, "cut it to so many layers");
  command->add_option("--checkpoint", options->checkpoint, "a checkpoint's shapes instead");
  command->add_option("--trainers", options->trainers, "fsdp=2,tp=2,pp=1,dp=1")
      ->capture_default_str();
  command->add_option("--workers", options->workers, "tp=2,dp=1")->capture_default_str();
  command->add_option("--dtype", options->dtype, "what floats are served as; default: as stored");
  command->add_option(
      "--format", options->format,
      "what layers' matrices are served as: " + absl::StrJoin(QuantisationNames(), ", "));
  command->add_flag("--json", options->json, "for programs");
  command->callback([options, &run] { run = [options] { return RunPlan(*options); }; });
}

}  // namespace waybill
