#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "core/layout/synthetic.h"
#include "core/tensor/quantisation.h"
#include "tools/waybill/commands.h"
#include "tools/waybill/demo.h"

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
      "A controller, trainers and workers as processes on this machine: the trainers change their\n"
      "weights and publish versions; what the workers show is checked byte for byte");
  command
      ->add_option("--model", options->model,
                   "made up, with real shapes: " + absl::StrJoin(SyntheticModelNames(), ", "))
      ->capture_default_str();
  command->add_option("--layers", options->layers, "cut the model to so many layers");
  command->add_option("--checkpoint", options->checkpoint,
                      "a Hugging Face directory instead: safetensors, and config.json");
  command->add_option("--trainers", options->trainers, "how many, or fsdp=2,tp=2,pp=1,dp=1")
      ->capture_default_str();
  command->add_option("--workers", options->workers, "how many, or tp=2,dp=2")
      ->capture_default_str();
  command->add_option("--versions", options->versions, "how many to publish")
      ->capture_default_str()
      ->check(CLI::Range(uint64_t{1}, uint64_t{1'000'000}));
  command->add_option("--mode", options->mode, "shadow, shadow-copy or in-place")
      ->capture_default_str()
      ->check(CLI::IsMember({"shadow", "shadow-copy", "in-place"}));
  command->add_option("--dtype", options->dtype,
                      "what floats are served as: F32 or BF16; default: as stored");
  std::vector<std::string> names;
  for (const absl::string_view name : QuantisationNames()) names.emplace_back(name);
  command
      ->add_option("--format", options->format,
                   "what layers' matrices are served as, quantised by the trainers: " +
                       absl::StrJoin(QuantisationNames(), ", "))
      ->check(CLI::IsMember(names));
  command->add_option("--dump", options->dump,
                      "write what each worker holds at the end to this folder, as safetensors");
  command->add_option("--trace", options->trace,
                      "write when each stage of each update went on, on every rank, to this file; "
                      "for ui.perfetto.dev or chrome://tracing");
  command->add_flag_callback(
      "--no-digests", [options] { options->digests = false; }, "do not verify what arrived");
  command->add_flag_callback(
      "--no-check", [options] { options->check = false; }, "do not compare with the checkpoint");
  command->add_flag_callback(
      "--no-bound", [options] { options->bound = false; }, "do not measure memcpy beside");
  command->add_option("--threads", options->threads, "for staging or verifying, in each rank")
      ->capture_default_str();
  command->add_option("--timeout", options->timeout_seconds, "seconds for each update")
      ->capture_default_str();
  command
      ->add_option("--fabric", options->fabric,
                   "auto (the best that works, for each pair), local, verbs or tcp")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "local", "verbs", "tcp"}));
  command
      ->add_option("--nodes", options->nodes,
                   "RDMA devices by node, \"rxe1,rxe2;rxe3,rxe4\": ranks take the nodes in turn")
      ->envname("WAYBILL_RXE_NODES");
  command->add_option("--listen", options->listen, "address of the controller")
      ->capture_default_str();
  command->add_option("--wrap-trainers", options->wrap_trainers,
                      "a command that runs another one, for controller and trainers: \"ip netns "
                      "exec left\"");
  command->add_option("--wrap-workers", options->wrap_workers, "the same for workers");
  command->add_option("--kill", options->kill,
                      "\"trainer 0\": SIGKILL it in the last version, to see what the others do");
  command->add_flag("--json", *json, "for programs");
  command->callback(
      [options, json, &run] { run = [options, json] { return RunDemoCommand(*options, *json); }; });
}

}  // namespace waybill
