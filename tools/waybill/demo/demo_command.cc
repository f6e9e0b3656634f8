// SPDX-License-Identifier: Apache-2.0

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "core/layout/synthetic.h"
#include "core/tensor/quantisation.h"
#include "tools/waybill/command_line/commands.h"
#include "tools/waybill/command_line/relays_names.h"
#include "tools/waybill/demo/demo.h"

namespace waybill {
namespace {

absl::Status RunDemoCommand(const DemoOptions& options, bool json) {
  const auto progress = [json](const std::string& line) {
    (json ? std::cerr : std::cout) << line << std::endl;
  };
  WAYBILL_ASSIGN_OR_RETURN(const DemoReport report, RunDemo(options, progress));
  if (json) {
    std::cout << ReportToJson(report).dump(2) << "\n";
  } else {
    std::cout << FormatReport(report, options);
  }
  return absl::OkStatus();
}

}  // namespace

void AddDemoCommand(CLI::App& app, Run& run) {
  auto options = std::make_shared<DemoOptions>();
  auto json = std::make_shared<bool>(false);
  options->trainers = "2";
  options->workers = "2";
  CLI::App* command = app.add_subcommand(
      "demo",
      "Run a controller, trainers and workers as processes on this machine. The trainers change\n"
      "their weights and publish versions; the demo checks every byte that the workers show");
  command
      ->add_option(
          "--model", options->model,
          "a synthetic model with real shapes: " + absl::StrJoin(SyntheticModelNames(), ", "))
      ->capture_default_str();
  command->add_option("--layers", options->layers, "number of layers; default: all");
  command->add_option(
      "--checkpoint", options->checkpoint,
      "a Hugging Face directory (config.json, safetensors) instead of a synthetic model");
  command
      ->add_option("--trainers", options->trainers,
                   "a number of trainers, or a sharding: fsdp=2,replicas=2 or megatron,tp=2,ep=2")
      ->capture_default_str();
  command
      ->add_option("--workers", options->workers,
                   "a number of workers, or a sharding: tp=2,dp=2,ep=4,engine=sglang")
      ->capture_default_str();
  command->add_option("--versions", options->versions, "number of versions to publish")
      ->capture_default_str()
      ->check(CLI::Range(uint64_t{1}, uint64_t{1'000'000}));
  command
      ->add_option("--mode", options->mode,
                   "how workers hold versions: shadow, shadow-copy or in-place")
      ->capture_default_str()
      ->check(CLI::IsMember({"shadow", "shadow-copy", "in-place"}));
  command->add_option("--dtype", options->dtype,
                      "type in which workers hold floats: F32 or BF16; default: as stored");
  std::vector<std::string> names;
  for (const absl::string_view name : QuantisationNames()) names.emplace_back(name);
  command
      ->add_option("--format", options->format,
                   "format in which workers hold the layers' matrices; trainers quantise: " +
                       absl::StrJoin(QuantisationNames(), ", "))
      ->check(CLI::IsMember(names));
  command->add_option("--dump", options->dump,
                      "folder for a safetensors file of what each worker holds at the end");
  command->add_option("--trace", options->trace,
                      "file for a timeline of the stages of each update on each rank, which "
                      "ui.perfetto.dev and chrome://tracing can show");
  command->add_flag_callback(
      "--no-digests", [options] { options->digests = false; }, "do not verify what arrives");
  command->add_flag_callback(
      "--no-check", [options] { options->check = false; }, "do not compare with the checkpoint");
  command->add_flag_callback(
      "--no-bound", [options] { options->bound = false; }, "do not measure memcpy");
  command->add_flag_callback(
      "--lanes", [options] { options->lanes = LaneDetail::kAll; },
      "list every lane, with its ports");
  command->add_option("--threads", options->threads, "threads that stage or verify, in each rank")
      ->capture_default_str();
  command->add_flag("--images", options->images,
                    "let trainers send from copies of their weights, which may change meanwhile");
  command
      ->add_option(
          "--changes", options->changes,
          "as --images, and let trainers send only what changed, over tcp and verbs; auto: "
          "to groups that get it sooner so")
      ->capture_default_str()
      ->check(CLI::IsMember({"never", "auto", "always"}));
  command
      ->add_option("--changed", options->changed,
                   "part of the weights that changes with each version, by one unit in the last "
                   "place: at most 0.5, or 1 for all, and by more")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 0.5) | CLI::Range(1.0, 1.0));
  command->add_option("--timeout", options->timeout_seconds, "deadline of each update, in seconds")
      ->capture_default_str();
  command
      ->add_option("--fabric", options->fabric,
                   "auto (the best that works for each pair of ranks), local, verbs or tcp")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "local", "verbs", "tcp"}));
  command
      ->add_option("--relays", options->relays,
                   "whether workers relay what several of them get alike: auto, never or always")
      ->capture_default_str()
      ->check(CLI::IsMember(RelaysByName()));
  command
      ->add_option("--nodes", options->nodes,
                   "RDMA NICs by node, \"rxe1,rxe2;rxe3,rxe4\"; ranks take the nodes in turn")
      ->envname("WAYBILL_RXE_NODES");
  command->add_option("--listen", options->listen, "address on which the controller listens")
      ->capture_default_str();
  command->add_option("--wrap-trainers", options->wrap_trainers,
                      "command that runs the controller and the trainers: \"ip netns exec left\"");
  command->add_option("--wrap-workers", options->wrap_workers, "command that runs the workers");
  command->add_option("--kill", options->kill,
                      "rank to SIGKILL while the last version is published, such as \"trainer 0\"");
  command->add_flag("--json", *json, "print JSON");
  command->callback(
      [options, json, &run] { run = [options, json] { return RunDemoCommand(*options, *json); }; });
}

}  // namespace waybill
