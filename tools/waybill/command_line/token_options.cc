// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/command_line/token_options.h"

#include <cstdlib>

namespace waybill {

// No option takes the token itself: every user of the host can read a process's arguments.
void AddTokenOptions(CLI::App& app, std::string& token) {
  if (const char* given = std::getenv("WAYBILL_TOKEN"); given != nullptr) token = given;
  app.add_option_function<std::string>(
      "--token-file", [&token](const std::string& path) { token = "@" + path; },
      "file with the job's secret, or with a key (`waybill keys`); it is read at each connection. "
      "Default: WAYBILL_TOKEN, which may be @FILE, or a secret that this user's processes share on "
      "this host");
}

}  // namespace waybill
