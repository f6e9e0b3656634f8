// SPDX-License-Identifier: Apache-2.0

// Measures a job of many groups of one worker: how long 4 trainers and they take to join, and to
// commit a tensor of 4 KiB. The controller and all ranks are one process, each rank with its own
// threads, streams and local fabric; decisions are recorded in a file.
//
//     bazel run -c opt //testing/bench:many_groups -- --groups 200
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "core/base/steady_now.h"
#include "testing/job/job.h"

namespace waybill {
namespace {

// Ends the process where it is not OK.
void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << status << "\n";
  std::exit(1);
}

double MillisecondsSince(absl::Time begin) {
  return absl::ToDoubleMilliseconds(SteadyNow() - begin);
}

void Measure(uint32_t groups, uint32_t updates, const std::string& state) {
  JobOptions options{.trainers = 4, .workers = groups, .state = state};
  for (uint32_t g = 0; g < groups; ++g) options.groups.push_back(absl::StrCat("group", g));
  Job job(options);
  Check(job.StartController());
  absl::Time begin = SteadyNow();
  Check(job.JoinAll());
  const double join_ms = MillisecondsSince(begin);
  std::vector<double> commits_ms;
  for (uint64_t version = 1; version <= updates; ++version) {
    begin = SteadyNow();
    for (const absl::Status& status : job.PublishAll(version)) Check(status);
    for (uint32_t t = 0; t < options.trainers; ++t) {
      const auto outcomes = job.trainer(t)->AwaitOutcome(absl::Seconds(20));
      Check(outcomes.status());
      for (const GroupOutcome& outcome : *outcomes) Check(outcome.status);
    }
    commits_ms.push_back(MillisecondsSince(begin));
  }
  std::sort(commits_ms.begin(), commits_ms.end());
  std::cout << std::fixed << std::setprecision(1) << std::setw(4) << groups << " groups joined in "
            << join_ms << " ms; commit: median " << commits_ms[commits_ms.size() / 2]
            << " ms, least " << commits_ms.front() << ", most " << commits_ms.back() << "\n";
}

int Main(int argc, char** argv) {
  CLI::App app{"Measures a job of many groups of one worker."};
  std::vector<uint32_t> groups = {1, 50, 100, 200};
  uint32_t updates = 50;
  std::string state = "/tmp/waybill-many-groups";
  app.add_option("--groups", groups)->capture_default_str();
  app.add_option("--updates", updates)->capture_default_str();
  app.add_option("--state", state, "where decisions are recorded")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  for (const uint32_t count : groups) {
    Measure(count, updates, state);
    std::filesystem::remove(state);
  }
  return 0;
}

}  // namespace
}  // namespace waybill

int main(int argc, char** argv) { return waybill::Main(argc, argv); }
