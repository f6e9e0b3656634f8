// SPDX-License-Identifier: Apache-2.0

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/control/ask_controller.h"
#include "core/control/status_json.h"
#include "core/engine/timeline.h"
#include "tools/waybill/command_line/commands.h"
#include "tools/waybill/command_line/printable.h"
#include "tools/waybill/page/page.h"
#include "tools/waybill/running_job/asked_controller.h"
#include "tools/waybill/running_job/lane_rates.h"
#include "tools/waybill/running_job/lane_table.h"
#include "tools/waybill/running_job/status_page.h"
#include "tools/waybill/running_job/trace_file.h"

namespace waybill {
namespace {

struct Options {
  AskedController controller;
  bool json = false;
  bool lanes = false;  // All of them.
  bool watch = false;
  std::string html;
  std::string trace;
};

constexpr absl::string_view kClearScreen = "\x1b[H\x1b[2J";

// How long the rank's part in its latest update took.
std::string DescribeTime(const proto::RankReport& report) {
  int64_t end_us = 0;
  for (const proto::StageTime& stage : report.stages()) end_us = std::max(end_us, stage.end_us());
  return end_us == 0 ? "" : absl::StrFormat("%.1f ms", static_cast<double>(end_us) / 1e3);
}

// From the decision until the latest version was shown.
std::string DescribeSwitch(const proto::RankReport& report) {
  for (const proto::StageTime& stage : report.stages()) {
    if (stage.name() != Name(Stage::kCommit)) continue;
    return absl::StrFormat("%.1f ms", static_cast<double>(stage.end_us() - stage.begin_us()) / 1e3);
  }
  return "";
}

// The memory in which a worker receives updates.
absl::string_view DescribeBuffers(const proto::RankReport& report) {
  if (CounterOf(report, "gpu_buffer_bytes") > 0) return "gpu";
  return CounterOf(report, "host_buffer_bytes") > 0 ? "host" : "in place";
}

void Print(const proto::StatusReply& status, std::ostream& out) {
  out << absl::StrFormat("job %s: %s\n", status.job(), status.phase());
  out << absl::StrFormat("version %d committed; %d updates committed, %d aborted\n",
                         status.committed_version(), status.updates_committed(),
                         status.updates_aborted());
  if (status.switch_spread_us() > 0) {
    out << absl::StrFormat("the workers have shown it within %.1f ms of each other\n",
                           static_cast<double>(status.switch_spread_us()) / 1e3);
  }
  if (status.groups().empty() && !status.waiting_for().empty()) {
    out << "waiting for " << status.waiting_for() << "\n";
  }
  for (const proto::GroupStatus& group : status.groups()) {
    out << absl::StrFormat("group %s: %s", group.name(), group.phase());
    if (group.epoch() != 0) {
      out << absl::StrFormat(", term %d, plan %016x", group.epoch(), group.plan_hash());
    }
    if (group.updating_version() != 0) {
      out << ", version " << group.updating_version() << " is being sent";
    }
    if (group.fetches()) out << ", gets versions when it asks";
    if (!group.waiting_for().empty()) out << ", waiting for " << group.waiting_for();
    if (!group.catch_up_trouble().empty()) {
      out << "; it could not " << group.catch_up_trouble();
    }
    if (group.lost_version() != 0) {
      out << "; version " << group.lost_version() << " was lost: " << group.lost_why();
    }
    out << "\n";
  }
  if (status.ranks().empty()) return;
  out << absl::StrFormat("\n%-12s %-10s %-10s %14s %14s %12s %12s %12s %8s\n", "rank", "group",
                         "state", "planned MB", "sent MB", "last took", "received in",
                         "switched in", "shows");
  for (const proto::RankStatus& rank : status.ranks()) {
    const bool worker = rank.name().rfind("worker", 0) == 0;
    out << absl::StrFormat(
        "%-12s %-10s %-10s %14.1f %14s %12s %12s %12s %8s\n", rank.name(),
        worker ? rank.group() : "", rank.state(), static_cast<double>(rank.planned_bytes()) / 1e6,
        worker ? ""
               : absl::StrFormat("%.1f",
                                 static_cast<double>(CounterOf(rank.report(), "sent_bytes")) / 1e6),
        DescribeTime(rank.report()), worker ? DescribeBuffers(rank.report()) : "",
        worker ? DescribeSwitch(rank.report()) : "",
        worker ? absl::StrCat(rank.shown_version()) : "");
  }
  for (const proto::RankStatus& rank : status.ranks()) {
    if (const uint64_t spared = CounterOf(rank.report(), "spared_bytes"); spared > 0) {
      out << absl::StrFormat("%s has kept %.1f MB of that off the network, which workers had\n",
                             rank.name(), static_cast<double>(spared) / 1e6);
    }
    if (CounterOf(rank.report(), "wrong_bases") > 0) {
      out << absl::StrFormat("%s of group %s %s\n", rank.name(), rank.group(), kWrongBase);
    }
    if (rank.approximate()) {
      out << absl::StrFormat("%s of group %s %s\n", rank.name(), rank.group(), kApproximate);
    }
    const uint64_t left_out = CounterOf(rank.report(), "left_out_elements");
    const uint64_t unselected = CounterOf(rank.report(), "unselected_bytes");
    if (left_out + unselected > 0) {
      out << absl::StrFormat(
          "%s has left %d changed elements, and %.1f MB of tensors that were not selected, out of "
          "its "
          "versions\n",
          rank.name(), left_out, static_cast<double>(unselected) / 1e6);
    }
    const uint64_t unchanged = CounterOf(rank.report(), "unchanged_versions");
    if (unchanged == 0) continue;
    out << absl::StrFormat(
        "%s of group %s has shown %d versions with the bytes of the one before\n", rank.name(),
        rank.group(), unchanged);
  }
}

// Prints how many lanes of the trainers take each path, how many died and how many fell back.
void PrintLanes(const proto::StatusReply& status, LaneDetail detail, std::ostream& out) {
  std::vector<std::string> paths, of_co_owners;
  uint64_t fallbacks = 0, lanes_lost = 0;
  for (const proto::GroupStatus& group : status.groups()) lanes_lost += LanesLost(group);
  for (const proto::RankStatus& rank : status.ranks()) {
    fallbacks += CounterOf(rank.report(), "fallbacks");
    if (rank.name().rfind("trainer", 0) != 0) continue;
    for (const proto::LaneReport& lane : rank.lanes()) {
      (lane.co_owner() ? of_co_owners : paths).push_back(lane.path());
    }
  }
  if (paths.empty()) return;
  out << "\nlanes from trainers to workers\n" << LaneTable(paths, detail);
  if (!of_co_owners.empty()) {
    out << "\nends of lanes between trainers, which trade the maxima of split blocks\n"
        << LaneTable(of_co_owners, detail);
  }
  for (const auto& [fabric, rates] : RatesOfLanes(status)) {
    out << absl::StrFormat(
        "in the latest update, lanes by %s carried %.2f GB/s (median), at most %.2f, and least "
        "%.2f (%s)\n",
        Printable(fabric), rates.median / 1e9, rates.fastest / 1e9, rates.slowest / 1e9,
        Printable(rates.slowest_lane));
  }
  if (lanes_lost > 0 || fallbacks > 0) {
    out << absl::StrFormat(
        "lanes have died %d times; %d ends of lanes fell back to a slower "
        "fabric\n",
        lanes_lost, fallbacks);
  }
}

// The stages of each rank's latest update. They begin with the rank's own part.
std::vector<TracedStage> StagesOf(const proto::StatusReply& status) {
  std::vector<TracedStage> stages;
  for (const proto::RankStatus& rank : status.ranks()) {
    const std::string name = rank.name().rfind("worker", 0) == 0 && status.groups().size() > 1
                                 ? absl::StrCat(rank.name(), " of group ", rank.group())
                                 : rank.name();
    for (const proto::StageTime& stage : rank.report().stages()) {
      stages.push_back({name, rank.report().version(), stage.name(), stage.begin_us() * 1000,
                        stage.end_us() * 1000});
    }
  }
  return stages;
}

absl::Status Show(const Options& options) {
  proto::StatusRequest request;
  request.set_traffic(!options.html.empty());
  WAYBILL_ASSIGN_OR_RETURN(
      const proto::StatusReply status,
      FetchStatus(options.controller.address, options.controller.token, absl::Seconds(5), request));
  if (!options.html.empty()) {
    WAYBILL_RETURN_IF_ERROR(WritePage(options.html, StatusToPage(status)));
  }
  if (!options.trace.empty()) {
    WAYBILL_RETURN_IF_ERROR(WriteTrace(options.trace, StagesOf(status)));
  }
  if (options.json) {
    std::cout << nlohmann::json::parse(StatusToJson(status))
                     .dump(options.watch ? -1 : 2, ' ', /*ensure_ascii=*/true)
              << "\n";
  } else {
    if (options.watch && isatty(STDOUT_FILENO)) std::cout << kClearScreen;
    std::ostringstream text;
    Print(status, text);
    PrintLanes(status, options.lanes ? LaneDetail::kAll : LaneDetail::kSummary, text);
    std::cout << Printable(text.str());
  }
  std::cout << std::flush;
  return absl::OkStatus();
}

// With --watch shows it every second, also when the controller is away, until it is interrupted.
absl::Status RunStatus(const Options& options) {
  for (;;) {
    absl::Status status = Show(options);
    if (!options.watch || absl::IsUnauthenticated(status)) return status;
    if (!status.ok()) std::cerr << Printable(status.message()) << "\n";
    absl::SleepFor(absl::Seconds(1));
  }
}

}  // namespace

void AddStatusCommand(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("status", "Show what a running job is doing");
  options->controller.AddTo(*command);
  command->add_flag("--watch", options->watch, "show it again every second, until interrupted");
  command->add_flag("--lanes", options->lanes, "list every lane, with its ports");
  command->add_option(
      "--html", options->html,
      "write a page that shows the ranks' reports: one file, which needs no network");
  command->add_option("--trace", options->trace,
                      "file for a timeline of the stages of each rank's latest update, which "
                      "ui.perfetto.dev and chrome://tracing can show");
  command->add_flag("--json", options->json, "print JSON; with --watch, a line each second");
  command->callback([options, &run] { run = [options] { return RunStatus(*options); }; });
}

}  // namespace waybill
