// SPDX-License-Identifier: Apache-2.0

#include <iostream>
#include <memory>
#include <string>

#include "core/base/status.h"
#include "tools/waybill/command_line/commands.h"
#include "tools/waybill/described_job/cluster_file.h"
#include "tools/waybill/described_job/prediction.h"
#include "tools/waybill/page/page.h"

namespace waybill {
namespace {

struct Options {
  std::string file;
  std::string built_in;
  std::string sweep;
  std::string html;
  bool json = false;
};

absl::Status RunSimulate(const Options& options) {
  if (options.file.empty() == options.built_in.empty()) {
    return absl::InvalidArgumentError(
        "simulate: give either a FILE.yaml or --case NAME; waybill simulate --help shows one");
  }
  WAYBILL_ASSIGN_OR_RETURN(const ClusterFile file, options.file.empty()
                                                       ? FindCase(options.built_in)
                                                       : ReadClusterFile(options.file));
  WAYBILL_ASSIGN_OR_RETURN(Prediction prediction, Predict(file));
  if (!options.sweep.empty()) WAYBILL_RETURN_IF_ERROR(Sweep(options.sweep, prediction));
  const nlohmann::json json = PredictionToJson(prediction);
  if (!options.html.empty()) WAYBILL_RETURN_IF_ERROR(WritePage(options.html, json));
  if (options.json) {
    std::cout << json.dump(2) << "\n";
  } else {
    std::cout << FormatPrediction(prediction);
    if (!options.html.empty()) std::cout << "page: " << options.html << "\n";
  }
  return absl::OkStatus();
}

}  // namespace

void AddSimulateCommand(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "simulate",
      "Predict how long an update takes on hardware that you describe; needs no job and no "
      "network.\n"
      "The planner and the protocol are those of a job; the machines and the network are a model.\n"
      "\n"
      "  waybill simulate --case kimi-k2-256-128 --html page.html\n"
      "  waybill simulate cluster.yaml --sweep workers=32..512\n"
      "\n"
      "The smallest description, cluster.yaml (examples/clusters/README.md lists all keys):\n"
      "\n"
      "  model: {name: qwen3-0.6b}\n"
      "  trainers: {sharding: fsdp=8}\n"
      "  workers: {sharding: 'tp=4,dp=2', format: fp8-block}\n"
      "\n"
      "The first lines of the output tell the seconds of the update and the bounds that the "
      "busiest\n"
      "NICs set; no plan beats them. What the update takes beyond them is staging, verifying, the\n"
      "controller and uneven loads: the stages, the slowest path and the warnings say which.");
  command->add_option("FILE", options->file, "a YAML description of cluster, model and shardings");
  command->add_option("--case", options->built_in,
                      "a built-in description: kimi-k2-256-128, qwen3-235b-128-32 or small");
  command->add_option("--sweep", options->sweep,
                      "predict other numbers of ranks as well, doubling: workers=32..512");
  command->add_option("--html", options->html,
                      "write a page that shows it: one file, which needs no network");
  command->add_flag("--json", options->json, "print JSON");
  command->callback([options, &run] { run = [options] { return RunSimulate(*options); }; });
}

}  // namespace waybill
