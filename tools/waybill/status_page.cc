#include "tools/waybill/status_page.h"

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/control/status_json.h"

namespace waybill {
namespace {

bool IsTrainer(const proto::RankStatus& rank) { return absl::StartsWith(rank.name(), "trainer"); }

nlohmann::json ToJson(const proto::RankStatus& rank) {
  nlohmann::json json = {
      {"name", rank.name()}, {"bytes", rank.planned_bytes()}, {"stages", nlohmann::json::object()}};
  for (const proto::StageTime& stage : rank.report().stages()) {
    json["stages"][stage.name()] = {{"begin", static_cast<double>(stage.begin_us()) * 1e-6},
                                    {"end", static_cast<double>(stage.end_us()) * 1e-6},
                                    {"busy", 0}};
  }
  if (IsTrainer(rank)) {
    json["ring_bytes"] = CounterOf(rank.report(), "ring_high_water_bytes");
  }
  return json;
}

nlohmann::json WarningsOf(const proto::StatusReply& status) {
  nlohmann::json warnings = nlohmann::json::array();
  for (const proto::GroupStatus& group : status.groups()) {
    const std::string name = absl::StrCat("group ", group.name());
    if (!group.waiting_for().empty()) {
      warnings.push_back(absl::StrCat(name, " waits for ", group.waiting_for()));
    }
    if (!group.catch_up_trouble().empty()) {
      warnings.push_back(absl::StrCat(name, " could not ", group.catch_up_trouble()));
    }
    if (group.lanes_lost() > 0) {
      warnings.push_back(
          absl::StrCat(name, ": a lane died between living ranks ", group.lanes_lost(), " times"));
    }
  }
  for (const proto::RankStatus& rank : status.ranks()) {
    const uint64_t fallbacks = CounterOf(rank.report(), "fallbacks");
    if (fallbacks > 0) {
      warnings.push_back(absl::StrCat(rank.name(), ": ", fallbacks,
                                      " ends of lanes fell back to a slower fabric"));
    }
    const uint64_t nonfinite = CounterOf(rank.report(), "nonfinite_elements");
    if (nonfinite > 0) {
      warnings.push_back(absl::StrCat(rank.name(), " has quantised ", nonfinite,
                                      " NaNs or infinities in its latest update"));
    }
  }
  return warnings;
}

}  // namespace

nlohmann::json StatusToPage(const proto::StatusReply& status) {
  nlohmann::json json = {{"kind", "status"},
                         {"name", status.job()},
                         {"phase", status.phase()},
                         {"version", status.committed_version()},
                         {"warnings", WarningsOf(status)},
                         {"trainers", nlohmann::json::array()},
                         {"workers", nlohmann::json::array()}};
  int64_t longest_us = 0;
  uint64_t bytes = 0;
  for (const proto::RankStatus& rank : status.ranks()) {
    json[IsTrainer(rank) ? "trainers" : "workers"].push_back(ToJson(rank));
    if (!IsTrainer(rank)) bytes += rank.planned_bytes();
    for (const proto::StageTime& stage : rank.report().stages()) {
      longest_us = std::max(longest_us, stage.end_us());
    }
  }
  json["bytes"] = bytes;
  if (longest_us > 0) json["seconds"] = static_cast<double>(longest_us) * 1e-6;
  return json;
}

}  // namespace waybill
