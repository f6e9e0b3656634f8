// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/token_options.h"

#include <cstdlib>
#include <fstream>

namespace waybill {

// No option takes the token itself: every user of the host can read a process's arguments.
void AddTokenOptions(CLI::App& app, std::string& token) {
  if (const char* given = std::getenv("WAYBILL_TOKEN"); given != nullptr) token = given;
  app.add_option_function<std::string>(
      "--token-file",
      [&token](const std::string& path) {
        if (!std::getline(std::ifstream(path), token) || token.empty()) {
          throw CLI::ValidationError("--token-file " + path, "it has no first line");
        }
      },
      "file whose first line is the job's secret, which all processes of the job have; default: "
      "WAYBILL_TOKEN, or a secret that this user's processes share on this host");
}

}  // namespace waybill
