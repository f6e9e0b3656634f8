// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/running_job/trace_file.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <map>

#include "absl/strings/str_cat.h"
#include "core/base/json_text.h"

namespace waybill {
namespace {

// Staging is the work; whatever else goes on meanwhile costs no time. "receive" is another's
// staging and posting, seen from the worker.
constexpr std::array<const char*, 6> kOrder = {"stage", "post",   "exchange",
                                               "wait",  "verify", "commit"};

// Rows of a rank, from above.
constexpr std::array<const char*, 7> kRows = {"exchange", "stage",  "post",  "wait",
                                              "receive",  "verify", "commit"};

int RowOf(const std::string& stage) {
  return static_cast<int>(std::find(kRows.begin(), kRows.end(), stage) - kRows.begin());
}

}  // namespace

nlohmann::json ToChromeTrace(const std::vector<TracedStage>& stages) {
  int64_t first = INT64_MAX;
  std::map<std::string, int> processes;
  for (const TracedStage& s : stages) {
    first = std::min(first, s.begin_ns);
    processes.try_emplace(s.rank, static_cast<int>(processes.size()) + 1);
  }
  nlohmann::json events = nlohmann::json::array();
  for (const auto& [rank, id] : processes) {
    events.push_back(
        {{"ph", "M"}, {"name", "process_name"}, {"pid", id}, {"args", {{"name", rank}}}});
    for (size_t row = 0; row < kRows.size(); ++row) {
      events.push_back({{"ph", "M"},
                        {"name", "thread_name"},
                        {"pid", id},
                        {"tid", row},
                        {"args", {{"name", kRows[row]}}}});
    }
  }
  for (const TracedStage& s : stages) {
    events.push_back({{"ph", "X"},
                      {"name", s.stage},
                      {"cat", "update"},
                      {"pid", processes.at(s.rank)},
                      {"tid", RowOf(s.stage)},
                      {"ts", static_cast<double>(s.begin_ns - first) * 1e-3},
                      {"dur", static_cast<double>(s.end_ns - s.begin_ns) * 1e-3},
                      {"args", {{"version", s.version}}}});
  }
  return {{"traceEvents", events}, {"displayTimeUnit", "ms"}};
}

absl::Status WriteTrace(const std::string& path, const std::vector<TracedStage>& stages) {
  std::ofstream file(path);
  file << JsonText(ToChromeTrace(stages)) << "\n";
  file.close();
  if (file) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("trace: cannot write ", path));
}

std::vector<ExposedTime> FindExposedTime(const std::vector<TracedStage>& stages, int64_t begin_ns,
                                         int64_t end_ns) {
  std::vector<int64_t> edges = {begin_ns, end_ns};
  for (const TracedStage& s : stages) {
    edges.push_back(std::clamp(s.begin_ns, begin_ns, end_ns));
    edges.push_back(std::clamp(s.end_ns, begin_ns, end_ns));
  }
  std::sort(edges.begin(), edges.end());
  std::vector<ExposedTime> exposed;
  exposed.reserve(kOrder.size() + 1);
  for (const char* stage : kOrder) exposed.push_back({stage, 0});
  exposed.push_back({"hops", 0});
  for (size_t e = 1; e < edges.size(); ++e) {
    size_t owner = kOrder.size();
    for (const TracedStage& s : stages) {
      if (s.begin_ns > edges[e - 1] || s.end_ns < edges[e]) continue;
      const auto rank =
          static_cast<size_t>(std::find(kOrder.begin(), kOrder.end(), s.stage) - kOrder.begin());
      owner = std::min(owner, rank);
    }
    exposed[owner].seconds += static_cast<double>(edges[e] - edges[e - 1]) * 1e-9;
  }
  return exposed;
}

}  // namespace waybill
