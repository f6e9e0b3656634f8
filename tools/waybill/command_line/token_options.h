// SPDX-License-Identifier: Apache-2.0

// The command-line options for the job's token.
#ifndef WAYBILL_TOOLS_WAYBILL_COMMAND_LINE_TOKEN_OPTIONS_H_
#define WAYBILL_TOOLS_WAYBILL_COMMAND_LINE_TOKEN_OPTIONS_H_

#include <CLI/CLI.hpp>
#include <string>

namespace waybill {

// Adds --token-file. `token` becomes what JobToken() takes (core/control/job_token.h): "@" and the
// file, or WAYBILL_TOKEN, or it stays empty, which stands for the user's own secret.
void AddTokenOptions(CLI::App& app, std::string& token);

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_COMMAND_LINE_TOKEN_OPTIONS_H_
