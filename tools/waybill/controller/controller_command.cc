// SPDX-License-Identifier: Apache-2.0

#include <malloc.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/control/candidate.h"
#include "core/control/controller.h"
#include "core/control/etcd.h"
#include "core/control/etcd_store.h"
#include "core/control/identity.h"
#include "core/control/job_token.h"
#include "core/control/standby.h"
#include "core/protocol/timeouts.h"
#include "tools/waybill/command_line/commands.h"
#include "tools/waybill/command_line/printable.h"
#include "tools/waybill/command_line/relays_names.h"
#include "tools/waybill/command_line/token_options.h"
#include "tools/waybill/driven_process/driven.h"
#include "tools/waybill/observe/event_log.h"
#include "tools/waybill/observe/exporter.h"
#include "tools/waybill/observe/span_exporter.h"
#include "tools/waybill/observe/update_watch.h"

namespace waybill {
namespace {

struct Options {
  ControllerOptions controller;
  double join_timeout_seconds = absl::ToDoubleSeconds(kJoinTimeout);
  std::vector<std::string> required_groups;
  std::string metrics;  // The address to serve metrics on; empty: none.
  bool metrics_by_rank = false;
  std::string etcd_key;  // The file by which etcd is reached with TLS; empty: without.
  LogFormat log = LogFormat::kText;
  std::string traces;  // The collector that spans are sent to; empty: none.
  bool driven = false;

  const std::string& job() const { return controller.coordinator.job; }
};

absl::StatusOr<std::string> DefaultState(const std::string& job) {
  const std::string folder = StateFolder();
  if (!folder.empty()) return absl::StrCat(folder, "/", job, "/decisions");
  return absl::InvalidArgumentError(
      "this user has no home directory to keep the decisions in: give --state FILE");
}

// Returns an error if the job's name cannot be part of a path or of a key.
absl::Status CheckJob(const std::string& job) {
  const bool plain = !job.empty() && job[0] != '.' && job.find('/') == std::string::npos;
  if (plain) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--job ", job, ": the name of a job must not be empty, contain a slash or begin with a dot"));
}

// Tells when the command has to end: by a signal, or with standard input if it is driven. Made
// before any thread starts, so that all threads block the signals and only Wait() takes them.
class Ending {
 public:
  explicit Ending(bool driven) : driven_(driven) {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  }

  // Returns true once the command has to end, and false after `patience`, or earlier.
  bool Wait(absl::Duration patience) const {
    if (!driven_) {
      const timespec timeout = absl::ToTimespec(patience);
      return sigtimedwait(&signals_, nullptr, &timeout) >= 0;
    }
    pollfd input{.fd = STDIN_FILENO, .events = POLLIN};
    if (poll(&input, 1, static_cast<int>(absl::ToInt64Milliseconds(patience))) <= 0) return false;
    char ignored[256];
    return read(STDIN_FILENO, ignored, sizeof(ignored)) <= 0;
  }

 private:
  const bool driven_;
  sigset_t signals_{};
};

void SayListening(const Options& options, const Controller& controller) {
  if (options.driven) {
    Tell({{"event", "listening"}, {"address", controller.address()}});
  } else {
    std::cout << "controller of job \"" << options.job() << "\" on " << controller.address()
              << ", state in " << options.controller.state << std::endl;
  }
}

void SayMetrics(const Options& options, const MetricsExporter& metrics) {
  if (options.driven) {
    Tell({{"event", "metrics"}, {"address", metrics.address()}});
  } else {
    std::cout << "page on http://" << metrics.address() << "/, metrics on http://"
              << metrics.address() << "/metrics" << std::endl;
  }
}

// Serves the metrics of a controller, unless `metrics` is null, until this object ends.
class Served {
 public:
  Served(MetricsExporter* metrics, const Controller* controller) : metrics_(metrics) {
    if (metrics_ != nullptr) metrics_->SetController(controller);
  }
  ~Served() {
    if (metrics_ != nullptr) metrics_->SetController(nullptr);
  }
  Served(const Served&) = delete;
  Served& operator=(const Served&) = delete;

 private:
  MetricsExporter* const metrics_;
};

// In one piece, because several processes may share one standard error.
void Warn(const absl::Status& status) {
  std::cerr << "waybill: " + Printable(status.message()) + "\n";
}

// Sees what the controller does. One watch serves all controllers that this process has in turn.
struct Observation {
  explicit Observation(const Options& options)
      : log(options.log, options.job(), STDERR_FILENO),
        spans(options.traces.empty()
                  ? nullptr
                  : std::make_unique<SpanExporter>(options.traces, options.job(), Warn)),
        watch(spans == nullptr ? std::vector<WatchListener*>{&log}
                               : std::vector<WatchListener*>{&log, spans.get()}) {}

  EventLog log;
  const std::unique_ptr<SpanExporter> spans;  // Null if none are sent.
  UpdateWatch watch;
  std::unique_ptr<MetricsExporter> metrics;  // Null if none are served.
};

ControllerOptions Observed(ControllerOptions options, Observation& observation) {
  observation.watch.Forget();
  options.observer = &observation.watch;
  return options;
}

absl::Status RunAlone(const Options& options, const Ending& ending, Observation& observation) {
  WAYBILL_ASSIGN_OR_RETURN(const std::unique_ptr<Controller> controller,
                           Controller::Start(Observed(options.controller, observation)));
  const Served served(observation.metrics.get(), controller.get());
  SayListening(options, *controller);
  if (observation.metrics != nullptr) SayMetrics(options, *observation.metrics);
  while (!ending.Wait(absl::Seconds(1))) {
    // The next controller reads the decisions, and the ranks reconnect to it.
    WAYBILL_RETURN_IF_ERROR(While("the controller has halted", controller->halted()));
  }
  return absl::OkStatus();
}

void SayStandby(const Options& options, const std::string& leader) {
  if (options.driven) {
    Tell({{"event", "standby"}, {"leader", leader}});
  } else {
    std::cout << "standby of job \"" << options.job() << "\" on " << options.controller.listen
              << ", state in " << options.controller.state << "; "
              << (leader.empty() ? "nobody leads yet" : "the leader is " + leader) << std::endl;
  }
}

// Waits until the candidate leads; returns false if the command has to end before.
bool AwaitLeadership(const Options& options, const Ending& ending, const Candidate& candidate) {
  const absl::StatusOr<std::unique_ptr<Standby>> standby =
      Standby::Start(options.controller.listen, options.controller.token, options.job());
  if (!standby.ok()) Warn(standby.status());
  std::string leader;
  bool told = false, in_trouble = false;
  for (;;) {
    const Candidate::State state = candidate.state();
    if (state.role == Candidate::Role::kLeader) return true;
    if (!state.trouble.ok() && !in_trouble) Warn(state.trouble);
    in_trouble = !state.trouble.ok();
    if (!state.leader_address.empty() && (!told || state.leader_address != leader)) {
      told = true;
      leader = state.leader_address;
      if (standby.ok()) (*standby)->SetLeader(leader);
      SayStandby(options, leader);
    }
    if (ending.Wait(absl::Milliseconds(20))) return false;
  }
}

// Leads the job once. Returns why this controller does not lead any more, or OK if the command has
// to end. An error of `*fatal` ends the command too.
absl::Status Lead(const Options& options, const Ending& ending, const std::shared_ptr<Etcd>& etcd,
                  const Candidate& candidate, Observation& observation, absl::Status* fatal) {
  absl::StatusOr<std::unique_ptr<EtcdStore>> store =
      EtcdStore::Open(etcd, options.job(), candidate.identity());
  if (absl::IsDataLoss(store.status())) *fatal = store.status();
  WAYBILL_RETURN_IF_ERROR(store.status());
  absl::StatusOr<std::unique_ptr<Controller>> controller =
      Controller::Start(Observed(options.controller, observation), *std::move(store));
  if (!controller.ok()) return *fatal = controller.status();
  const Served served(observation.metrics.get(), controller->get());
  SayListening(options, **controller);
  bool in_trouble = false;
  while (!ending.Wait(absl::Milliseconds(50))) {
    WAYBILL_RETURN_IF_ERROR(While("the controller has halted", (*controller)->halted()));
    const Candidate::State state = candidate.state();
    if (state.role == Candidate::Role::kDeposed) {
      return absl::AbortedError("another controller has taken the leadership of the job");
    }
    if (!state.trouble.ok() && !in_trouble) Warn(state.trouble);
    in_trouble = !state.trouble.ok();
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Identity>> ReadEtcdKey(const std::string& path) {
  if (path.empty()) return std::nullopt;
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) {
    return absl::InvalidArgumentError(
        absl::StrCat("--etcd-key ", path, ": ", std::strerror(errno)));
  }
  absl::StatusOr<Identity> identity = ReadPem(text.str());
  if (!identity.ok()) return While(absl::StrCat("--etcd-key ", path), identity.status());
  return *std::move(identity);
}

// Is a standby and a leader in turn, until the command has to end.
absl::Status RunAsOneOfSeveral(const Options& options, const Ending& ending,
                               Observation& observation) {
  WAYBILL_ASSIGN_OR_RETURN(const std::vector<std::string> endpoints,
                           ParseEtcdAddress(options.controller.state));
  if (absl::EndsWith(options.controller.listen, ":0")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--listen ", options.controller.listen,
        ": with --state etcd://... the port must not be 0; ranks are given the addresses of all "
        "controllers before these listen"));
  }
  if (observation.metrics != nullptr) SayMetrics(options, *observation.metrics);
  WAYBILL_ASSIGN_OR_RETURN(const std::optional<Identity> identity, ReadEtcdKey(options.etcd_key));
  const std::shared_ptr<Etcd> etcd = Etcd::Connect(endpoints, identity);
  for (;;) {
    const Candidate candidate(etcd, options.job(), options.controller.listen);
    if (!AwaitLeadership(options, ending, candidate)) return absl::OkStatus();
    absl::Status fatal;
    absl::Status why = Lead(options, ending, etcd, candidate, observation, &fatal);
    if (why.ok() || !fatal.ok()) return why;
    Warn(While("a standby again", why));
    if (options.driven) Tell(EventOf("deposed", why));
  }
}

absl::Status RunController(Options options) {
  // Messages are allocated by one of gRPC's threads and freed by another, so malloc's arenas, one a
  // thread, fragment each other. In 10,000 updates a controller grew by 2.7 %, and by 1.6 % with
  // one arena.
  mallopt(M_ARENA_MAX, 1);
  WAYBILL_RETURN_IF_ERROR(CheckJob(options.job()));
  if (options.controller.state.empty()) {
    WAYBILL_ASSIGN_OR_RETURN(options.controller.state, DefaultState(options.job()));
  }
  options.controller.coordinator.join_timeout = absl::Seconds(options.join_timeout_seconds);
  options.controller.coordinator.required_groups = {options.required_groups.begin(),
                                                    options.required_groups.end()};
  if (options.driven) options.log = LogFormat::kNone;
  const Ending ending(options.driven);
  Observation observation(options);
  if (!options.metrics.empty()) {
    const RankSeries ranks = options.metrics_by_rank ? RankSeries::kEach : RankSeries::kNone;
    WAYBILL_ASSIGN_OR_RETURN(
        observation.metrics,
        MetricsExporter::Start(options.metrics, options.job(), ranks, observation.watch));
  }
  return IsEtcdAddress(options.controller.state) ? RunAsOneOfSeveral(options, ending, observation)
                                                 : RunAlone(options, ending, observation);
}

}  // namespace

void AddControllerCommand(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "controller",
      "Run the controller of a job, which keeps membership, plans and decides commits");
  CoordinatorOptions& coordinator = options->controller.coordinator;
  // begin generated from capi/options.toml: flags of controller by command->
  command
      ->add_option("--listen", options->controller.listen,
                   "address and port to listen on; port 0 takes a free port")
      ->capture_default_str();
  command->add_option("--job", coordinator.job, "name of the job, which all its ranks give")
      ->capture_default_str();
  command->add_option(
      "--require", options->required_groups,
      "a group that must be whole before a version is published; can be given several times");
  command
      ->add_option("--join-timeout", options->join_timeout_seconds,
                   "how long a rank that joins may wait for the others of its group, in seconds")
      ->capture_default_str();
  // end generated
  AddTokenOptions(*command, options->controller.token);
  command
      ->add_option("--relays", coordinator.relays,
                   "whether workers relay what several of a group get alike: auto (where links' "
                   "speeds say that it is faster), never or always")
      ->default_str("auto")
      ->transform(CLI::CheckedTransformer(RelaysByName()).description("auto, never or always"));
  command->add_option(
      "--state", options->controller.state,
      "file for the decisions to commit (default: in the user's state folder), or "
      "etcd://HOST:PORT[,HOST:PORT...] for several controllers, of which one leads");
  command->add_option(
      "--etcd-key", options->etcd_key,
      "PEM file for TLS to etcd: the certificate of the authority that etcd's is "
      "from, after a private key and its certificate if etcd asks for one (default: "
      "nothing is encrypted)");
  command->add_option("--revoked", options->controller.revoked,
                      "file with the serials of keys that are served no more, one a line "
                      "(`waybill keys show` prints a key's); it is read again when it changes");
  command->add_option("--metrics", options->metrics,
                      "numeric address and port to serve a live page of the job on, as "
                      "http://ADDRESS/, and metrics "
                      "for Prometheus, as http://ADDRESS/metrics; port 0 takes a free port. "
                      "Nothing is encrypted and "
                      "nobody is asked for a token, so choose 127.0.0.1:9464 or a private address "
                      "(default: neither "
                      "is served)");
  command
      ->add_flag("--metrics-by-rank", options->metrics_by_rank,
                 "also serve series for each rank: its shown version, its stages and its rate")
      ->needs("--metrics");
  command
      ->add_option("--log", options->log,
                   "a line on standard error for each update of a group, and for each rank that "
                   "joins or goes: text, json or none")
      ->default_str("text")
      ->transform(
          CLI::CheckedTransformer(std::map<std::string, LogFormat>{{"text", LogFormat::kText},
                                                                   {"json", LogFormat::kJson},
                                                                   {"none", LogFormat::kNone}})
              .description("text, json or none"));
  command->add_option("--traces", options->traces,
                      "host and port of an OpenTelemetry collector, as 127.0.0.1:4317, that each "
                      "update is sent to as a trace, by OTLP over gRPC without TLS (default: none "
                      "are sent)");
  command->add_flag("--driven", options->driven, "ends with standard input")->group("");
  command->callback([options, &run] { run = [options] { return RunController(*options); }; });
}

}  // namespace waybill
