// SPDX-License-Identifier: Apache-2.0

// waybill: moves weights from trainers to inference workers.

#include <CLI/CLI.hpp>
#include <csignal>
#include <exception>
#include <iostream>
#include <string>

#include "core/base/version.h"
#include "tools/waybill/command_line/commands.h"
#include "tools/waybill/command_line/printable.h"

namespace {

int Main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);

  CLI::App app(
      "Moves updated model weights from RL trainers to inference workers, shard to shard.\n"
      "Try it: waybill demo");
  app.name("waybill");
  app.set_version_flag("--version", std::string(waybill::kVersion));
  app.require_subcommand(1);
  waybill::Run run;
  waybill::AddDemoCommand(app, run);
  waybill::AddControllerCommand(app, run);
  waybill::AddTrainerCommand(app, run);
  waybill::AddWorkerCommand(app, run);
  waybill::AddArchiveCommand(app, run);
  waybill::AddPlanCommand(app, run);
  waybill::AddSimulateCommand(app, run);
  waybill::AddStatusCommand(app, run);
  waybill::AddVerifyCommand(app, run);
  waybill::AddRemoveGroupCommand(app, run);
  waybill::AddKeysCommand(app, run);
  waybill::AddDoctorCommand(app, run);
  if (argc == 1) {
    std::cout << app.help();
    return 0;
  }
  const auto is_asked_for = [argv](CLI::App* command) { return command->check_name(argv[1]); };
  if (argv[1][0] != '-' && app.get_subcommands(is_asked_for).empty()) {
    std::cerr << "waybill: there is no command \"" << argv[1] << "\"; waybill --help lists them\n";
    return 1;
  }
  CLI11_PARSE(app, argc, argv);

  const absl::Status status = run();
  if (status.ok()) return 0;
  // In one piece: the demo's ranks share one standard error.
  std::cerr << "waybill: " + waybill::Printable(status.message()) + "\n";
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Main(argc, argv);
  } catch (const std::exception& error) {  // From CLI11 or the standard library.
    std::cerr << "waybill: " << waybill::Printable(error.what()) << "\n";
    return 1;
  }
}
