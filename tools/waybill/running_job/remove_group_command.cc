// SPDX-License-Identifier: Apache-2.0

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "core/base/status.h"
#include "core/control/ask_controller.h"
#include "tools/waybill/command_line/commands.h"
#include "tools/waybill/running_job/asked_controller.h"

namespace waybill {
namespace {

struct Options {
  AskedController controller;
  std::string group;
  bool json = false;
};

absl::Status RunRemoveGroup(const Options& options) {
  WAYBILL_ASSIGN_OR_RETURN(const uint32_t workers,
                           RemoveGroup(options.controller.address, options.controller.token,
                                       options.group, absl::Seconds(5)));
  if (options.json) {
    std::cout << nlohmann::json{{"group", options.group}, {"workers", workers}}.dump(2) << "\n";
  } else {
    std::cout << "group " << options.group << " is removed; " << workers
              << (workers == 1 ? " worker was" : " workers were") << " dismissed\n";
  }
  return absl::OkStatus();
}

}  // namespace

void AddRemoveGroupCommand(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "remove-group", "Dismiss the workers of a group, and wait for it no more if it was required");
  command->add_option("group", options->group, "name of the group")->required();
  options->controller.AddTo(*command);
  command->add_flag("--json", options->json, "print JSON");
  command->callback([options, &run] { run = [options] { return RunRemoveGroup(*options); }; });
}

}  // namespace waybill
