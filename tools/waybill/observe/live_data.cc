// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/observe/live_data.h"

#include <map>
#include <string>
#include <utility>

#include "tools/waybill/running_job/status_page.h"

namespace waybill {
namespace {

nlohmann::json ToJson(const UpdateWatch::Progress& progress) {
  nlohmann::json parts = nlohmann::json::object();
  for (const auto& [name, duration] : progress.parts) {
    parts[name] = absl::ToDoubleSeconds(duration);
  }
  return {{"version", progress.version}, {"running", progress.running},
          {"workers", progress.workers}, {"arrived", progress.arrived},
          {"parts", std::move(parts)},   {"seconds", absl::ToDoubleSeconds(progress.total)}};
}

}  // namespace

nlohmann::json LiveData(const proto::StatusReply& status, const UpdateWatch& watch,
                        absl::Time now) {
  nlohmann::json data = StatusToPage(status);
  data["live"] = true;
  std::map<std::string, nlohmann::json> updates;
  for (const UpdateWatch::Progress& progress : watch.GroupProgress(now)) {
    updates[progress.group] = ToJson(progress);
  }
  for (nlohmann::json& group : data["groups"]) {
    const auto found = updates.find(group["name"].get<std::string>());
    if (found != updates.end()) group["update"] = std::move(found->second);
  }
  data["failures"] = nlohmann::json::array();
  for (const UpdateWatch::Progress& failure : watch.Failures(now)) {
    data["failures"].push_back({{"group", failure.group},
                                {"version", failure.version},
                                {"error", failure.error},
                                {"seconds_ago", absl::ToDoubleSeconds(failure.age)}});
  }
  return data;
}

nlohmann::json StandbyData(const std::string& job) {
  return {{"kind", "status"},
          {"live", true},
          {"name", job},
          {"phase", "standby"},
          {"terms", nlohmann::json::array()},
          {"warnings", {"this controller does not lead the job; ask the one that does"}}};
}

}  // namespace waybill
