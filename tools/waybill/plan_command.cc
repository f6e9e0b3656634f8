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
#include "core/plan/explain.h"
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

absl::Status RunPlan(const Options& options) {
  WAYBILL_ASSIGN_OR_RETURN(const Model model, FindModel(options));
  WAYBILL_ASSIGN_OR_RETURN(const Manifests manifests, MakeManifests(model, options));
  std::vector<const Manifest*> trainers, workers;
  HeldBytes held;
  for (const Manifest& m : manifests.trainers) {
    trainers.push_back(&m);
    held.trainers.push_back(m.total_bytes());
  }
  for (const Manifest& m : manifests.workers) {
    workers.push_back(&m);
    held.workers.push_back(m.total_bytes());
  }
  const absl::Time begin = absl::Now();
  WAYBILL_ASSIGN_OR_RETURN(const Plan plan, MakePlan(trainers, workers));
  const double seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  if (options.json) {
    nlohmann::json json = nlohmann::json::parse(ExplainAsJson(plan, held, RoutesToo::kNo));
    json["seconds"] = seconds;
    std::cout << json.dump(2) << "\n";
  } else {
    std::cout << absl::StrFormat("plan %016x, made in %.1f ms\n\n", plan.hash(), seconds * 1e3)
              << ExplainAsTable(plan, held);
  }
  return absl::OkStatus();
}

}  // namespace

void AddPlanCommand(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "plan", "Show the plan for a model and two shardings; needs no job and no network");
  command->add_option("--model", options->model, "a synthetic model")->capture_default_str();
  command->add_option("--layers", options->layers, "number of layers; default: all");
  command->add_option("--checkpoint", options->checkpoint,
                      "a checkpoint, whose shapes replace --model");
  command
      ->add_option("--trainers", options->trainers,
                   "sharding of the trainers: fsdp=2,tp=2,pp=1,replicas=1")
      ->capture_default_str();
  command->add_option("--workers", options->workers, "sharding of the workers: tp=2,dp=1")
      ->capture_default_str();
  command->add_option("--dtype", options->dtype,
                      "type in which workers hold floats; default: as stored");
  command->add_option("--format", options->format,
                      "format in which workers hold the layers' matrices: " +
                          absl::StrJoin(QuantisationNames(), ", "));
  command->add_flag("--json", options->json, "print JSON");
  command->callback([options, &run] { run = [options] { return RunPlan(*options); }; });
}

}  // namespace waybill
