// SPDX-License-Identifier: Apache-2.0

// The command-line options for the job's token.
#ifndef WAYBILL_TOOLS_WAYBILL_TOKEN_OPTIONS_H_
#define WAYBILL_TOOLS_WAYBILL_TOKEN_OPTIONS_H_

#include <CLI/CLI.hpp>
#include <string>

namespace waybill {

// Adds --token-file. `token` gets the file's content, or WAYBILL_TOKEN, or stays empty, which
// stands for the user's own token (core/control/job_token.h).
void AddTokenOptions(CLI::App& app, std::string& token);

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_TOKEN_OPTIONS_H_
