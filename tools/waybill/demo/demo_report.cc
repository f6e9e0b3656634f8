// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/waybill/demo/demo.h"

namespace waybill {
namespace {

std::vector<double> SortedSeconds(const DemoReport& report) {
  std::vector<double> seconds;
  seconds.reserve(report.updates.size());
  for (const DemoUpdate& update : report.updates) seconds.push_back(update.seconds);
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

double Percentile(const std::vector<double>& sorted, double fraction) {
  if (sorted.empty()) return 0;
  return sorted[static_cast<size_t>(
      std::lround(fraction * static_cast<double>(sorted.size() - 1)))];
}

std::string Megabytes(uint64_t bytes) {
  return absl::StrFormat("%.1f", static_cast<double>(bytes) / 1e6);
}

// The median update's time, by what nothing hid.
std::string FormatExposed(const DemoReport& report) {
  std::vector<const DemoUpdate*> updates;
  updates.reserve(report.updates.size());
  for (const DemoUpdate& update : report.updates) updates.push_back(&update);
  if (updates.empty()) return "";
  const auto middle = updates.begin() + static_cast<ptrdiff_t>(updates.size() / 2);
  std::nth_element(
      updates.begin(), middle, updates.end(),
      [](const DemoUpdate* a, const DemoUpdate* b) { return a->seconds < b->seconds; });
  std::string text = "  of it, hidden by nothing      ";
  for (const ExposedTime& e : (*middle)->exposed) {
    if (e.seconds > 0)
      absl::StrAppend(&text, absl::StrFormat("  %s %.2f", e.stage, e.seconds * 1e3));
  }
  return text + "\n";
}

}  // namespace

double DemoReport::median_seconds() const { return Percentile(SortedSeconds(*this), 0.5); }
double DemoReport::worst_seconds() const { return Percentile(SortedSeconds(*this), 1); }

double DemoReport::imbalance() const {
  uint64_t busiest = 0, total = 0;
  for (const DemoRank& rank : trainers) {
    busiest = std::max(busiest, rank.moved_bytes);
    total += rank.moved_bytes;
  }
  return total == 0 ? 1
                    : static_cast<double>(busiest) * static_cast<double>(trainers.size()) /
                          static_cast<double>(total);
}

std::string FormatReport(const DemoReport& report, const DemoOptions& options) {
  std::string text = absl::StrFormat("\n%-12s %12s %16s\n", "rank", "holds MB", "moves MB/update");
  for (const DemoRank& rank : report.trainers) {
    absl::StrAppend(&text,
                    absl::StrFormat("%-12s %12s %16s\n", rank.name, Megabytes(rank.weight_bytes),
                                    Megabytes(rank.moved_bytes)));
  }
  for (const DemoRank& rank : report.workers) {
    absl::StrAppend(&text,
                    absl::StrFormat("%-12s %12s\n", rank.name, Megabytes(rank.weight_bytes)));
  }
  std::vector<std::string> paths;
  for (const DemoRank& rank : report.trainers) {
    paths.insert(paths.end(), rank.lanes.begin(), rank.lanes.end());
  }
  absl::StrAppend(&text, "\nlanes from trainers to workers\n", LaneTable(paths, options.lanes));
  const double median = report.median_seconds();
  const double rate = static_cast<double>(report.update_bytes) / median;
  absl::StrAppend(
      &text,
      absl::StrFormat("\n%d version%s of %s, %s MB each, %s, digests %s\n", report.updates.size(),
                      report.updates.size() == 1 ? "" : "s", report.model,
                      Megabytes(report.update_bytes), options.mode, options.digests ? "on" : "off"),
      absl::StrFormat("  first publish to last shown   %9.2f ms median, %.2f ms worst\n",
                      median * 1e3, report.worst_seconds() * 1e3),
      absl::StrFormat("  rate                          %9.2f GB/s\n", rate / 1e9),
      absl::StrFormat("  busiest trainer over the mean %9.3f\n", report.imbalance()));
  if (options.bound) {
    absl::StrAppend(
        &text,
        absl::StrFormat("  memcpy here, %2d thread%s       %9.2f GB/s; reached %.2f of it\n",
                        report.copy_threads, report.copy_threads == 1 ? " " : "s",
                        report.copy_bytes_per_second / 1e9, rate / report.copy_bytes_per_second));
  }
  absl::StrAppend(&text, FormatExposed(report));
  uint64_t messages = 0, maxima_bytes = 0;
  for (const DemoRank& rank : report.trainers) {
    messages += rank.counts.value("maxima_messages", uint64_t{0});
    maxima_bytes += rank.counts.value("maxima_bytes", uint64_t{0});
  }
  if (messages > 0) {
    absl::StrAppend(&text, absl::StrFormat("  maxima between trainers       %9d messages, %s kB\n",
                                           messages, absl::StrFormat("%.1f", maxima_bytes / 1e3)));
  }
  if (options.check) {
    absl::StrAppend(&text, absl::StrFormat("  elements checked              %9d, all right\n",
                                           report.elements_checked));
  }
  return text;
}

nlohmann::json ReportToJson(const DemoReport& report) {
  nlohmann::json json = {
      {"model", report.model},
      {"update_bytes", report.update_bytes},
      {"elements_checked", report.elements_checked},
      {"median_seconds", report.median_seconds()},
      {"worst_seconds", report.worst_seconds()},
      {"p99_seconds", Percentile(SortedSeconds(report), 0.99)},
      {"imbalance", report.imbalance()},
  };
  if (report.copy_bytes_per_second > 0) {
    json["copy_bytes_per_second"] = report.copy_bytes_per_second;
    json["copy_threads"] = report.copy_threads;
    json["fraction_of_copy"] = static_cast<double>(report.update_bytes) / report.median_seconds() /
                               report.copy_bytes_per_second;
  }
  for (const DemoUpdate& update : report.updates) {
    json["updates"].push_back({{"version", update.version},
                               {"seconds", update.seconds},
                               {"sent_seconds", update.sent_seconds},
                               {"moving_seconds", update.moving_seconds}});
    for (const ExposedTime& e : update.exposed) {
      json["updates"].back()["exposed_seconds"][e.stage] = e.seconds;
    }
  }
  for (const DemoRank& rank : report.trainers) {
    nlohmann::json entry = {{"name", rank.name},
                            {"weight_bytes", rank.weight_bytes},
                            {"moved_bytes", rank.moved_bytes}};
    entry["last_update"] = rank.counts;
    entry["lanes"] = rank.lanes;
    json["trainers"].push_back(entry);
  }
  for (const DemoRank& rank : report.workers) {
    json["workers"].push_back({{"name", rank.name}, {"weight_bytes", rank.weight_bytes}});
  }
  return json;
}

}  // namespace waybill
