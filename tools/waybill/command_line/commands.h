// SPDX-License-Identifier: Apache-2.0

// The subcommands of `waybill`. Each function adds a subcommand to the command line. If the user
// chooses it, parsing sets `run` to what it does.
#ifndef WAYBILL_TOOLS_WAYBILL_COMMAND_LINE_COMMANDS_H_
#define WAYBILL_TOOLS_WAYBILL_COMMAND_LINE_COMMANDS_H_

#include <CLI/CLI.hpp>
#include <functional>

#include "absl/status/status.h"

namespace waybill {

using Run = std::function<absl::Status()>;

void AddControllerCommand(CLI::App& app, Run& run);
void AddTrainerCommand(CLI::App& app, Run& run);
void AddWorkerCommand(CLI::App& app, Run& run);
void AddDemoCommand(CLI::App& app, Run& run);
void AddArchiveCommand(CLI::App& app, Run& run);
void AddPlanCommand(CLI::App& app, Run& run);
void AddSimulateCommand(CLI::App& app, Run& run);
void AddStatusCommand(CLI::App& app, Run& run);
void AddVerifyCommand(CLI::App& app, Run& run);
void AddRemoveGroupCommand(CLI::App& app, Run& run);
void AddKeysCommand(CLI::App& app, Run& run);
void AddDoctorCommand(CLI::App& app, Run& run);

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_COMMAND_LINE_COMMANDS_H_
