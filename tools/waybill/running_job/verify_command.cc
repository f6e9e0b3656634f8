// SPDX-License-Identifier: Apache-2.0

#include <cstdint>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/status.h"
#include "core/control/ask_controller.h"
#include "tools/waybill/command_line/commands.h"
#include "tools/waybill/command_line/printable.h"
#include "tools/waybill/running_job/asked_controller.h"

namespace waybill {
namespace {

struct Options {
  AskedController controller;
  std::string group;
  double timeout_seconds = 60;
  bool json = false;
};

absl::string_view ResultOf(const proto::Verified& verified) {
  if (!verified.has_error()) return "right";
  const bool differs =
      static_cast<absl::StatusCode>(verified.error().code()) == absl::StatusCode::kDataLoss;
  return differs ? "differs" : "not verified";
}

nlohmann::json ToJson(const std::vector<proto::Verified>& answers) {
  nlohmann::json workers = nlohmann::json::array();
  for (const proto::Verified& verified : answers) {
    workers.push_back({{"group", verified.group()},
                       {"rank", verified.rank()},
                       {"version", verified.version()},
                       {"bytes", verified.bytes()},
                       {"seconds", verified.seconds()},
                       {"result", ResultOf(verified)},
                       {"error", verified.error().message()}});
  }
  return {{"workers", workers}};
}

void Print(const std::vector<proto::Verified>& answers, std::ostream& out) {
  out << absl::StrFormat("%-16s %6s %10s %14s %10s  %s\n", "group", "rank", "version", "MB",
                         "seconds", "result");
  for (const proto::Verified& verified : answers) {
    out << absl::StrFormat("%-16s %6d %10d %14.1f %10.3f  %s", verified.group(), verified.rank(),
                           verified.version(), static_cast<double>(verified.bytes()) / 1e6,
                           verified.seconds(), ResultOf(verified));
    if (verified.has_error()) out << ": " << verified.error().message();
    out << "\n";
  }
}

absl::Status RunVerify(const Options& options) {
  WAYBILL_ASSIGN_OR_RETURN(const std::vector<proto::Verified> answers,
                           VerifyWorkers(options.controller.address, options.controller.token,
                                         options.group, absl::Seconds(options.timeout_seconds)));
  if (options.json) {
    std::cout << ToJson(answers).dump(2, ' ', /*ensure_ascii=*/true) << "\n";
  } else {
    std::ostringstream text;
    Print(answers, text);
    std::cout << Printable(text.str());
  }
  int wrong = 0;
  for (const proto::Verified& verified : answers) wrong += verified.has_error() ? 1 : 0;
  if (wrong == 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(wrong, " of ", answers.size(),
                                          " workers show something else than what was sent, or "
                                          "could not be verified"));
}

}  // namespace

void AddVerifyCommand(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "verify", "Compare what the workers of a running job show with what was sent to them");
  options->controller.AddTo(*command);
  command->add_option("--group", options->group, "ask only the workers of this group");
  command
      ->add_option("--timeout", options->timeout_seconds,
                   "seconds to wait for the workers; those that do not answer are named")
      ->check(CLI::Range(0.001, 3600.0))
      ->capture_default_str();
  command->add_flag("--json", options->json, "print JSON");
  command->callback([options, &run] { run = [options] { return RunVerify(*options); }; });
}

}  // namespace waybill
