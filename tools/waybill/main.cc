// waybill: moves weights from trainers to inference workers.

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdlib>
#include <iostream>

#include "tools/waybill/commands.h"

int main(int argc, char** argv) {
  // gRPC's own log repeats, with file and line, what our errors say.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  std::signal(SIGPIPE, SIG_IGN);

  CLI::App app(
      "Moves updated model weights from trainer ranks to inference workers, shard to shard.\n"
      "See it work: waybill demo");
  app.name("waybill");
  app.require_subcommand(1);
  waybill::Run run;
  waybill::AddDemoCommand(app, run);
  waybill::AddControllerCommand(app, run);
  waybill::AddTrainerCommand(app, run);
  waybill::AddWorkerCommand(app, run);
  waybill::AddPlanCommand(app, run);
  waybill::AddStatusCommand(app, run);
  CLI11_PARSE(app, argc, argv);

  const absl::Status status = run();
  if (status.ok()) return 0;
  std::cerr << "waybill: " << status.message() << "\n";
  return 1;
}
