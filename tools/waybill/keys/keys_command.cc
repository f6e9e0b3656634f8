// SPDX-License-Identifier: Apache-2.0

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/new_file.h"
#include "core/base/status.h"
#include "core/control/identity.h"
#include "core/protocol/coordinator.h"
#include "tools/waybill/command_line/commands.h"
#include "tools/waybill/command_line/printable.h"
#include "tools/waybill/command_line/token_options.h"

namespace waybill {
namespace {

struct IssueOptions {
  std::string token;
  Rights rights{.role = KeyRole::kTrainer, .job = CoordinatorOptions().job};
  double days = 30;
  std::string to;  // Empty: standard output.
};

struct ShowOptions {
  std::string file;
  bool json = false;
};

// Returns the roles that keys are issued for.
std::map<std::string, KeyRole> RolesByName() {
  std::map<std::string, KeyRole> roles;
  for (const KeyRole role : {KeyRole::kTrainer, KeyRole::kWorker, KeyRole::kObserver,
                             KeyRole::kOperator, KeyRole::kController}) {
    roles.emplace(Name(role), role);
  }
  return roles;
}

absl::Status WriteKey(const std::string& path, const std::string& key) {
  const UniqueFd fd = OpenNewFile(path);
  if (fd.valid() && write(fd.get(), key.data(), key.size()) == static_cast<ssize_t>(key.size())) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(
      absl::StrCat("keys: ", path, " cannot be written: ", std::strerror(errno)));
}

absl::Status RunIssue(const IssueOptions& options) {
  // Hosts' clocks differ a little.
  constexpr absl::Duration kEarlier = absl::Minutes(5);
  const absl::Time now = absl::Now();
  WAYBILL_ASSIGN_OR_RETURN(
      const std::string key,
      IssueKey(options.token, {.rights = options.rights,
                               .valid_from = now - kEarlier,
                               .valid_until = now + options.days * absl::Hours(24)}));
  if (!options.to.empty()) return WriteKey(options.to, key);
  std::cout << key;
  return absl::OkStatus();
}

absl::Status RunShow(const ShowOptions& options) {
  const absl::Time now = absl::Now();
  // A key that is not valid is shown, too.
  WAYBILL_ASSIGN_OR_RETURN(const CertificateInfo info, DescribeToken("@" + options.file));
  const auto text = [](absl::Time time) {
    return absl::FormatTime(absl::RFC3339_sec, time, absl::UTCTimeZone());
  };
  const std::string state = now >= info.valid_until ? "expired"
                            : now < info.valid_from ? "not valid yet"
                                                    : "valid";
  if (options.json) {
    std::cout << nlohmann::json{{"role", std::string(Name(info.rights.role))},
                                {"job", info.rights.job},
                                {"group", info.rights.group},
                                {"serial", info.serial},
                                {"issuer", info.issuer},
                                {"valid_from", text(info.valid_from)},
                                {"valid_until", text(info.valid_until)},
                                {"state", state}}
                     .dump(2)
              << "\n";
    return absl::OkStatus();
  }
  std::cout << "the key of   " << Printable(ToString(info.rights)) << "\n"
            << "serial       " << info.serial << "\n"
            << "issued by    " << Printable(info.issuer) << "\n"
            << "valid from   " << text(info.valid_from) << "\n"
            << "valid until  " << text(info.valid_until) << " (" << state << ")\n";
  return absl::OkStatus();
}

}  // namespace

void AddKeysCommand(CLI::App& app, Run& run) {
  CLI::App* keys = app.add_subcommand(
      "keys", "Issue keys that allow less than the job's secret, and show what a key allows");
  keys->require_subcommand(1);

  auto issue = std::make_shared<IssueOptions>();
  CLI::App* issuing = keys->add_subcommand(
      "issue",
      "Issue a key with the job's secret. A process is given it as its token: --token-file FILE, "
      "or WAYBILL_TOKEN=@FILE");
  issuing
      ->add_option("role", issue->rights.role,
                   "trainer: joins as a trainer; worker: joins one group; observer: reads the "
                   "status; operator: also verifies workers and removes groups; controller: is the "
                   "controller")
      ->required()
      ->transform(CLI::CheckedTransformer(RolesByName())
                      .description("trainer, worker, observer, operator or controller"));
  issuing->add_option("--job", issue->rights.job, "name of the job")->capture_default_str();
  issuing->add_option("--group", issue->rights.group, "name of a worker's group");
  issuing->add_option("--days", issue->days, "how long the key lets a process connect, in days")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  issuing->add_option("--to", issue->to,
                      "file for the key, which only its owner can read (default: standard output)");
  AddTokenOptions(*issuing, issue->token);
  issuing->callback([issue, &run] { run = [issue] { return RunIssue(*issue); }; });

  auto show = std::make_shared<ShowOptions>();
  CLI::App* showing = keys->add_subcommand(
      "show", "Show what a key allows, until when, and its serial, by which it can be revoked");
  showing->add_option("file", show->file, "file of the key")->required();
  showing->add_flag("--json", show->json, "print JSON");
  showing->callback([show, &run] { run = [show] { return RunShow(*show); }; });
}

}  // namespace waybill
