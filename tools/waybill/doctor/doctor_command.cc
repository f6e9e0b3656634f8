// SPDX-License-Identifier: Apache-2.0

#include <unistd.h>

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "core/base/status.h"
#include "core/host/examine_host.h"
#include "tools/waybill/command_line/commands.h"
#include "tools/waybill/command_line/printable.h"
#include "tools/waybill/command_line/token_options.h"
#include "tools/waybill/doctor/measure_peer.h"

namespace waybill {
namespace {

struct Options {
  std::string peer;
  std::string token;
  bool serve = false;
  std::string listen = "0.0.0.0:7071";
  std::string own_address;
  uint16_t control_port = 7070;
  std::vector<std::string> nics;
  int gid_index = -1;
  double seconds = 0.5;
  bool json = false;
};

void Print(const std::vector<Finding>& findings) {
  const bool colours = isatty(STDOUT_FILENO) == 1;
  constexpr const char* kColours[] = {"\033[32m", "\033[33m", "\033[31m"};
  int bad = 0;
  for (const Finding& finding : findings) {
    const auto level = static_cast<size_t>(finding.level);
    bad += finding.level == Finding::Level::kBad ? 1 : 0;
    std::cout << absl::StrFormat("%s%-4s%s  %-32s %s\n", colours ? kColours[level] : "",
                                 Name(finding.level), colours ? "\033[0m" : "", finding.subject,
                                 finding.found);
    if (!finding.remedy.empty()) std::cout << absl::StrFormat("%39s-> %s\n", "", finding.remedy);
  }
  std::cout << (bad == 0 ? std::string("\nnothing is in the way\n")
                         : absl::StrFormat("\n%d thing%s in the way\n", bad,
                                           bad == 1 ? " is" : "s are"));
}

absl::Status RunDoctor(const Options& options) {
  const MeasureOptions measure{.own_address = options.own_address,
                               .nics = options.nics,
                               .gid_index = options.gid_index,
                               .seconds_each = options.seconds};
  if (options.serve) {
    return ServeMeasurements(options.listen, options.token, measure, [](const std::string& line) {
      std::cerr << Printable(line) << std::endl;
    });
  }
  if (options.peer.empty()) {
    const std::vector<Finding> findings = ExamineThisHost(
        options.gid_index >= 0 ? std::optional<uint32_t>(options.gid_index) : std::nullopt,
        options.own_address, options.control_port);
    if (options.json) {
      std::cout << nlohmann::json::parse(FindingsToJson(findings)).dump(2) << "\n";
    } else {
      Print(findings);
    }
    return absl::OkStatus();
  }
  WAYBILL_ASSIGN_OR_RETURN(
      const std::vector<FabricCurve> curves,
      MeasurePeer(options.peer, options.token, measure, [&](const std::string& line) {
        if (!options.json) std::cerr << Printable(line) << std::endl;
      }));
  std::cout << (options.json ? CurvesToJson(curves).dump(2, ' ', /*ensure_ascii=*/true) + "\n"
                             : Printable(FormatCurves(curves)));
  return absl::OkStatus();
}

}  // namespace

void AddDoctorCommand(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "doctor",
      "Check what RDMA needs of this host, and say what is wrong and how to fix it. With --peer,\n"
      "measure latency and bandwidth over each fabric, by the size of a write.\n\n"
      "  waybill doctor                      checks this host\n"
      "  waybill doctor --serve              serves measurements; run it on the other host, with\n"
      "                                      the same WAYBILL_TOKEN\n"
      "  waybill doctor --peer other:7071    measures between this host and the other");
  command->add_option("--peer", options->peer,
                      "HOST or HOST:PORT where `waybill doctor --serve` runs");
  command->add_flag("--serve", options->serve,
                    "serve measurements to whoever knows the token, until interrupted");
  AddTokenOptions(*command, options->token);
  command->add_option("--listen", options->listen, "address on which to serve")
      ->capture_default_str();
  command->add_option(
      "--host", options->own_address,
      "this host's numeric address; default: the one from which it reaches the peer");
  command->add_option("--control-port", options->control_port, "port of the controller to check")
      ->capture_default_str();
  command->add_option("--nics", options->nics, "RDMA NICs to use")
      ->envname("WAYBILL_NICS")
      ->delimiter(',');
  command
      ->add_option("--gid-index", options->gid_index,
                   "GID index of every port; default: chosen by rule")
      ->envname("WAYBILL_GID_INDEX");
  command->add_option("--seconds", options->seconds, "seconds for each size")
      ->capture_default_str();
  command->add_flag("--json", options->json, "print JSON");
  command->callback([options, &run] { run = [options] { return RunDoctor(*options); }; });
}

}  // namespace waybill
