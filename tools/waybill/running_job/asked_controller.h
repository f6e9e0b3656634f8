// SPDX-License-Identifier: Apache-2.0

// The controller that a command asks, and its command-line options.
#ifndef WAYBILL_TOOLS_WAYBILL_RUNNING_JOB_ASKED_CONTROLLER_H_
#define WAYBILL_TOOLS_WAYBILL_RUNNING_JOB_ASKED_CONTROLLER_H_

#include <CLI/CLI.hpp>
#include <string>

#include "tools/waybill/command_line/token_options.h"

namespace waybill {

struct AskedController {
  std::string address = "127.0.0.1:7070";
  std::string token;

  // Adds --controller and --token-file.
  void AddTo(CLI::App& app) {
    app.add_option("--controller", address,
                   "address of the controller, or of each, separated by commas")
        ->capture_default_str();
    AddTokenOptions(app, token);
  }
};

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_RUNNING_JOB_ASKED_CONTROLLER_H_
