// SPDX-License-Identifier: Apache-2.0

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "core/plan/explain.h"
#include "core/simulate/traffic.h"
#include "core/tensor/quantisation.h"
#include "tools/waybill/command_line/commands.h"
#include "tools/waybill/described_job/cluster_file.h"
#include "tools/waybill/described_job/planned_job.h"
#include "tools/waybill/page/page.h"

namespace waybill {
namespace {

struct Options {
  std::string file;
  std::string built_in;
  ClusterFile described;  // By options.
  std::string html;
  bool json = false;
};

absl::StatusOr<ClusterFile> FindJob(const Options& options) {
  if (!options.file.empty()) return ReadClusterFile(options.file);
  if (!options.built_in.empty()) return FindCase(options.built_in);
  ClusterFile described = options.described;
  described.hardware.trainers.nics_per_host = described.hardware.workers.nics_per_host = 0;
  if (!described.checkpoint.empty()) described.model.clear();
  described.name = described.model_name();
  return described;
}

// What the page shows of a plan: everything but times.
nlohmann::json PageOf(const ClusterFile& file, const PlannedJob& job) {
  nlohmann::json json = nlohmann::json::parse(ExplainAsJson(job.plan, job.held, RoutesToo::kNo));
  json["kind"] = "plan";
  json["name"] = file.name;
  json["model"] = file.model_name();
  json["trainer_sharding"] = file.trainers.Describe();
  json["worker_sharding"] = file.workers.Describe();
  json["plan"] = {{"hash", json["hash"]},
                  {"seconds", job.seconds},
                  {"ratio_to_lower_bound", json["ratio_to_lower_bound"]}};
  AddTraffic(simulate::TrafficOf(job.plan, job.held.senders, job.held.receivers), json);
  for (const absl::string_view side : {"trainer", "worker"}) {
    uint32_t rank = 0;
    for (nlohmann::json& one : json[absl::StrCat(side, "s")]) {
      one["name"] = absl::StrCat(side, " ", rank++);
    }
  }
  return json;
}

absl::Status RunPlan(const Options& options) {
  WAYBILL_ASSIGN_OR_RETURN(const ClusterFile file, FindJob(options));
  WAYBILL_ASSIGN_OR_RETURN(const PlannedJob job, PlanJob(file));
  if (!options.html.empty()) WAYBILL_RETURN_IF_ERROR(WritePage(options.html, PageOf(file, job)));
  if (options.json) {
    nlohmann::json json = nlohmann::json::parse(ExplainAsJson(job.plan, job.held, RoutesToo::kNo));
    json["seconds"] = job.seconds;
    json["warnings"] = job.warnings;
    std::cout << json.dump(2) << "\n";
    return absl::OkStatus();
  }
  std::cout << absl::StrFormat("plan %016x, made in %.1f ms\n\n", job.plan.hash(),
                               job.seconds * 1e3)
            << ExplainAsTable(job.plan, job.held);
  for (const std::string& warning : job.warnings) std::cout << "warning: " << warning << "\n";
  if (!options.html.empty()) std::cout << "page: " << options.html << "\n";
  return absl::OkStatus();
}

}  // namespace

void AddPlanCommand(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  ClusterFile& job = options->described;
  job.model = "qwen3-0.6b";
  job.trainers.sharding = "fsdp=2";
  job.workers.sharding = "tp=2";
  CLI::App* command =
      app.add_subcommand("plan",
                         "Show the plan of a described job; needs no job and no network. `waybill "
                         "simulate` predicts how\n"
                         "long its updates take.\n"
                         "\n"
                         "  waybill plan --model qwen3-0.6b --trainers fsdp=4 --workers tp=2,dp=2\n"
                         "  waybill plan examples/clusters/small.yaml --html page.html");
  CLI::Option* file = command->add_option(
      "FILE", options->file,
      "a YAML description of cluster, model and shardings, which replaces the options");
  command
      ->add_option("--case", options->built_in,
                   "a built-in description: kimi-k2-256-128, qwen3-235b-128-32 or small")
      ->excludes(file);
  command->add_option("--model", job.model, "a synthetic model")->capture_default_str();
  command->add_option("--layers", job.layers, "number of layers; default: all");
  command->add_option("--checkpoint", job.checkpoint, "a checkpoint, whose shapes replace --model");
  command
      ->add_option("--trainers", job.trainers.sharding,
                   "sharding of the trainers: fsdp=2,tp=2,pp=1,replicas=1")
      ->capture_default_str();
  command->add_option("--workers", job.workers.sharding, "sharding of the workers: tp=2,dp=1")
      ->capture_default_str();
  command->add_option("--dtype", job.dtype,
                      "type in which workers hold floats; default: as stored");
  command->add_option("--format", job.format,
                      "format in which workers hold the layers' matrices: " +
                          absl::StrJoin(QuantisationNames(), ", "));
  command->add_option("--html", options->html,
                      "write a page that shows it: one file, which needs no network");
  command->add_flag("--json", options->json, "print JSON");
  command->callback([options, &run] { run = [options] { return RunPlan(*options); }; });
}

}  // namespace waybill
