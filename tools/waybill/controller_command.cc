#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/control/controller.h"
#include "core/protocol/timeouts.h"
#include "tools/waybill/commands.h"
#include "tools/waybill/driven.h"

namespace waybill {
namespace {

struct Options {
  ControllerOptions controller;
  double join_timeout_seconds = absl::ToDoubleSeconds(kJoinTimeout);
  std::vector<std::string> required_groups;
  bool driven = false;
};

std::string DefaultLog(const std::string& job) {
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  const std::string base =
      state != nullptr ? state : absl::StrCat(home ? home : "", "/.local/state");
  return absl::StrCat(base, "/waybill/", job, "/decisions");
}

// Returns an error if the job's name cannot name the folder of its decisions.
absl::Status CheckJob(const std::string& job) {
  const bool plain = !job.empty() && job[0] != '.' && job.find('/') == std::string::npos;
  if (plain) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--job ", job, ": the name of a job must not be empty, contain a slash or begin with a dot"));
}

absl::Status RunController(Options options) {
  WAYBILL_RETURN_IF_ERROR(CheckJob(options.controller.coordinator.job));
  if (options.controller.decision_log.empty()) {
    options.controller.decision_log = DefaultLog(options.controller.coordinator.job);
  }
  options.controller.coordinator.join_timeout = absl::Seconds(options.join_timeout_seconds);
  options.controller.coordinator.required_groups = {options.required_groups.begin(),
                                                    options.required_groups.end()};
  // Blocks the signals before any thread starts, so that only sigtimedwait() takes them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  WAYBILL_ASSIGN_OR_RETURN(const std::unique_ptr<Controller> controller,
                           Controller::Start(options.controller));
  if (options.driven) {
    Tell({{"event", "listening"}, {"address", controller->address()}});
    while (ReadCommand()) {
    }
    return absl::OkStatus();
  }
  std::cout << "controller of job \"" << options.controller.coordinator.job << "\" on "
            << controller->address() << ", decisions in " << options.controller.decision_log
            << std::endl;
  const timespec second{.tv_sec = 1, .tv_nsec = 0};
  while (sigtimedwait(&signals, nullptr, &second) < 0) {
    // The next controller reads the decisions, and the ranks reconnect to it.
    WAYBILL_RETURN_IF_ERROR(While("the controller has halted", controller->halted()));
  }
  return absl::OkStatus();
}

}  // namespace

void AddControllerCommand(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "controller",
      "Run the controller of a job, which keeps membership, plans and decides commits");
  CoordinatorOptions& coordinator = options->controller.coordinator;
  command
      ->add_option("--listen", options->controller.listen,
                   "address and port; port 0 takes a free port")
      ->capture_default_str();
  command->add_option("--job", coordinator.job, "name of the job, which all its ranks give")
      ->capture_default_str();
  command
      ->add_option("--token", options->controller.token,
                   "the job's secret, which all its ranks have too")
      ->envname("WAYBILL_TOKEN");
  command->add_option("--require", options->required_groups,
                      "a group without which no version is published; can be given several times");
  command
      ->add_option("--join-timeout", options->join_timeout_seconds,
                   "seconds that a rank which joins may wait for the others of its group")
      ->capture_default_str();
  command->add_option("--decisions", options->controller.decision_log,
                      "file for the decisions to commit; default: in the user's state folder");
  command->add_flag("--driven", options->driven, "ends with standard input")->group("");
  command->callback([options, &run] { run = [options] { return RunController(*options); }; });
}

}  // namespace waybill
