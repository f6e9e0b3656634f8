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
#include "tools/waybill/commands.h"
#include "tools/waybill/driven.h"

namespace waybill {
namespace {

struct Options {
  ControllerOptions controller;
  double join_timeout_seconds = 120;
  bool driven = false;
};

std::string DefaultLog(const std::string& job) {
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  const std::string base =
      state != nullptr ? state : absl::StrCat(home ? home : "", "/.local/state");
  return absl::StrCat(base, "/waybill/", job, "/decisions");
}

absl::Status RunController(Options options) {
  if (options.controller.decision_log.empty()) {
    options.controller.decision_log = DefaultLog(options.controller.coordinator.job);
  }
  options.controller.coordinator.join_timeout = absl::Seconds(options.join_timeout_seconds);
  // Before any thread is there, so that none of them takes the signal instead of sigwait().
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
  int signal = 0;
  sigwait(&signals, &signal);
  return absl::OkStatus();
}

}  // namespace

void AddControllerCommand(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("controller", "Keeps membership, plans, and decides commits, for one job");
  CoordinatorOptions& coordinator = options->controller.coordinator;
  command
      ->add_option("--listen", options->controller.listen, "address:port; port 0 takes a free one")
      ->capture_default_str();
  command->add_option("--job", coordinator.job, "the job that all its ranks name")
      ->capture_default_str();
  command->add_option("--token", coordinator.token, "what every rank has to show")
      ->envname("WAYBILL_TOKEN");
  command->add_option("--trainers", coordinator.trainers,
                      "how many there have to be; by default as many as they say");
  command->add_option("--workers", coordinator.workers, "likewise");
  command
      ->add_option("--join-timeout", options->join_timeout_seconds,
                   "seconds from the first rank's coming until all are there")
      ->capture_default_str();
  command->add_option("--decisions", options->controller.decision_log,
                      "file for the decisions to commit; by default in the user's state folder");
  command->add_flag("--driven", options->driven, "ends with standard input")->group("");
  command->callback([options, &run] { run = [options] { return RunController(*options); }; });
}

}  // namespace waybill
