// SPDX-License-Identifier: Apache-2.0

// Measures a job of many groups: how long trainers and workers take to join, and to commit a tensor
// of 4 KiB, and how long the controller takes to serve its metrics and its page's data. Each rank
// has its own threads, streams and local fabric; decisions are recorded in a file. Beside it, in
// turn: the messages of such a commit over bare gRPC streams, if groups have one worker.
//
//     bazel run -c opt //testing/bench:many_groups -- --groups 200
//     bazel run -c opt //testing/bench:many_groups -- --groups 64 --of-group 16 --trainers 2
//
// The controller and the trainers are one process, and the workers are others, because a rank takes
// some twenty descriptors. A trainer takes five for each worker: with 1,000 of them it must be one
// of three at most, where a process may open 20,000.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "core/base/steady_now.h"
#include "core/net/tcp_socket.h"
#include "testing/bench/bare_streams.h"
#include "testing/bench/http_get.h"
#include "testing/job/job.h"
#include "tools/waybill/observe/exporter.h"

namespace waybill {
namespace {

struct Shape {
  uint32_t trainers = 4;
  uint32_t groups = 0;
  uint32_t of_group = 1;      // Workers.
  uint32_t of_process = 200;  // Workers, or a group if that has more.
  uint32_t updates = 21;
};

// Ends the process where it is not OK.
void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << status << "\n";
  std::_Exit(1);
}

double MillisecondsSince(absl::Time begin) {
  return absl::ToDoubleMilliseconds(SteadyNow() - begin);
}

JobOptions OptionsOf(uint32_t trainers, absl::Span<const std::string> groups) {
  JobOptions options{.trainers = trainers, .workers = static_cast<uint32_t>(groups.size())};
  options.groups = {groups.begin(), groups.end()};
  options.join_timeout = absl::Minutes(2);
  return options;
}

// Processes in which the workers of some groups live.
class Workers {
 public:
  // Forks before this process has any thread.
  Workers(const Shape& shape, absl::Span<const std::string> groups) {
    const size_t of_each = std::max(1u, shape.of_process / shape.of_group) * shape.of_group;
    for (size_t first = 0; first < groups.size(); first += of_each) {
      int address[2], joined[2];
      if (pipe(address) != 0 || pipe(joined) != 0) Check(absl::ErrnoToStatus(errno, "pipe"));
      const pid_t child = fork();
      if (child < 0) Check(absl::ErrnoToStatus(errno, "fork"));
      if (child == 0) {
        close(address[1]);
        close(joined[0]);
        for (const Child& earlier : children_) {
          close(earlier.address);
          close(earlier.joined);
        }
        Live(OptionsOf(shape.trainers, groups.subspan(first, of_each)), address[0], joined[1]);
      }
      close(address[0]);
      close(joined[1]);
      children_.push_back({child, address[1], joined[0]});
    }
  }
  // They end when their pipe does.
  ~Workers() {
    for (const Child& child : children_) {
      close(child.address);
      waitpid(child.process, nullptr, 0);
      close(child.joined);
    }
  }

  void Join(const std::string& controller) const {
    const std::string line = controller + "\n";
    for (const Child& child : children_) {
      if (write(child.address, line.data(), line.size()) < 0) {
        Check(absl::ErrnoToStatus(errno, "write to a process of workers"));
      }
    }
  }
  void AwaitJoined() const {
    for (const Child& child : children_) {
      char byte;
      if (read(child.joined, &byte, 1) != 1) {
        Check(absl::AbortedError("a process of workers has ended before they joined"));
      }
    }
  }

 private:
  struct Child {
    pid_t process;
    int address, joined;
  };

  [[noreturn]] static void Live(const JobOptions& options, int address, int joined) {
    std::string controller;
    char byte = 0;
    while (read(address, &byte, 1) == 1 && byte != '\n') controller += byte;
    if (byte != '\n') std::_Exit(1);
    (void)net::RaiseLimitOfOpenFiles();
    Job job(options);
    job.UseController(controller);
    std::vector<std::thread> joining;
    for (uint32_t w = 0; w < options.workers; ++w) {
      joining.emplace_back([&job, w] { Check(job.JoinWorker(w)); });
    }
    for (std::thread& thread : joining) thread.join();
    if (write(joined, "j", 1) != 1) std::_Exit(1);
    while (read(address, &byte, 1) > 0) {
    }
    std::_Exit(0);
  }

  std::vector<Child> children_;
};

// The middle, least and most of some times, in milliseconds.
std::string Spread(std::vector<double> times_ms) {
  std::sort(times_ms.begin(), times_ms.end());
  return absl::StrCat(absl::SixDigits(times_ms[times_ms.size() / 2]), " ms (",
                      absl::SixDigits(times_ms.front()), " to ", absl::SixDigits(times_ms.back()),
                      ")");
}

// Says how long it takes to serve what operators ask for.
void MeasureScrapes(const Controller& controller, uint32_t scrapes) {
  const UpdateWatch watch;
  const auto exporter = MetricsExporter::Start("127.0.0.1:0", "test", RankSeries::kEach, watch);
  Check(exporter.status());
  (*exporter)->SetController(&controller);
  const absl::StatusOr<net::HostPort> server = net::ParseHostPort((*exporter)->address());
  Check(server.status());
  for (const char* path : {"/metrics", "/status.json", "/traffic.json"}) {
    std::vector<double> times_ms;
    size_t bytes = 0;
    for (uint32_t i = 0; i < scrapes; ++i) {
      const absl::Time begin = SteadyNow();
      const absl::StatusOr<size_t> got = HttpGet(*server, path);
      Check(got.status());
      bytes = *got;
      times_ms.push_back(MillisecondsSince(begin));
    }
    std::cout << "     " << path << ": " << bytes << " bytes, " << Spread(times_ms) << "\n";
  }
  (*exporter)->SetController(nullptr);
}

void Measure(const Shape& shape, const std::string& state) {
  std::vector<std::string> groups;  // By worker.
  for (uint32_t w = 0; w < shape.groups * shape.of_group; ++w) {
    groups.push_back(absl::StrCat("group", w / shape.of_group));
  }
  const Workers workers(shape, groups);
  (void)net::RaiseLimitOfOpenFiles();
  JobOptions options = OptionsOf(shape.trainers, {});
  options.state = state;
  Job job(options);
  Check(job.StartController());
  absl::Time begin = SteadyNow();
  workers.Join(job.controller().address());
  Check(job.JoinAll());
  workers.AwaitJoined();
  std::cout << std::fixed << std::setprecision(1) << std::setw(4) << shape.groups
            << " groups joined in " << MillisecondsSince(begin) << " ms" << std::flush;
  std::unique_ptr<BareStreams> bare;
  if (shape.of_group == 1) {
    absl::StatusOr<std::unique_ptr<BareStreams>> opened =
        BareStreams::Open(shape.trainers, shape.groups);
    Check(opened.status());
    bare = *std::move(opened);
  }
  std::vector<double> commits_ms, bare_ms, ratios;
  for (uint64_t version = 1; version <= shape.updates; ++version) {
    begin = SteadyNow();
    for (const absl::Status& status : job.PublishAll(version)) Check(status);
    for (uint32_t t = 0; t < shape.trainers; ++t) {
      const auto outcomes = job.trainer(t)->AwaitOutcome(absl::Seconds(20));
      Check(outcomes.status());
      for (const GroupOutcome& outcome : *outcomes) Check(outcome.status);
    }
    commits_ms.push_back(MillisecondsSince(begin));
    if (bare == nullptr) continue;
    const absl::StatusOr<absl::Duration> alone = bare->Update(version);
    Check(alone.status());
    bare_ms.push_back(absl::ToDoubleMilliseconds(*alone));
    ratios.push_back(commits_ms.back() / bare_ms.back());
  }
  std::cout << "; commit " << Spread(commits_ms);
  if (bare != nullptr) {
    std::sort(ratios.begin(), ratios.end());
    std::cout << ", bare streams " << Spread(bare_ms) << ", ratio " << std::setprecision(2)
              << ratios[ratios.size() / 2];
  }
  std::cout << "\n";
  MeasureScrapes(job.controller(), shape.updates);
}

int Main(int argc, char** argv) {
  CLI::App app{"Measures a job of many groups."};
  std::vector<uint32_t> groups = {1, 50, 200};
  Shape shape;
  std::string state = "/tmp/waybill-many-groups";
  app.add_option("--groups", groups)->capture_default_str();
  app.add_option("--of-group", shape.of_group, "workers in a group")->capture_default_str();
  app.add_option("--trainers", shape.trainers)->capture_default_str();
  app.add_option("--updates", shape.updates, "also how often it is scraped")->capture_default_str();
  app.add_option("--of-process", shape.of_process, "workers in a process")->capture_default_str();
  app.add_option("--state", state, "where decisions are recorded")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  for (const uint32_t count : groups) {
    shape.groups = count;
    // Another process, because this one must not have threads when it forks.
    const pid_t child = fork();
    if (child == 0) {
      Measure(shape, state);
      std::cout << std::flush;
      std::_Exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    std::filesystem::remove(state);
    if (status != 0) return 1;
  }
  return 0;
}

}  // namespace
}  // namespace waybill

int main(int argc, char** argv) { return waybill::Main(argc, argv); }
