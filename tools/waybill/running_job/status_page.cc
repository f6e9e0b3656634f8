// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/running_job/status_page.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/control/status_json.h"

namespace waybill {
namespace {

bool IsTrainer(const proto::RankStatus& rank) { return absl::StartsWith(rank.name(), "trainer"); }

// Ranks of several groups have the same number.
std::string NameOf(const proto::RankStatus& rank, bool several_groups) {
  if (IsTrainer(rank) || !several_groups) return rank.name();
  return absl::StrCat(rank.name(), " of group ", rank.group());
}

nlohmann::json ToJson(const proto::RankStatus& rank, bool several_groups) {
  nlohmann::json json = {{"name", NameOf(rank, several_groups)},
                         {"state", rank.state()},
                         {"shown_version", rank.shown_version()},
                         {"bytes", rank.planned_bytes()},
                         {"stages", nlohmann::json::object()}};
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

nlohmann::json ToJson(const proto::GroupStatus& group, uint64_t published_version) {
  const uint64_t version = group.committed_version();
  std::string phase = group.phase();
  if (group.updating_version() != 0)
    absl::StrAppend(&phase, ", version ", group.updating_version());
  if (group.fetches()) absl::StrAppend(&phase, ", fetches");
  return {{"name", group.name()},
          {"version", version},
          {"behind", published_version > version ? published_version - version : 0},
          {"phase", phase}};
}

// Adds what the heat map shows. Ranks are told by their places among those of the page.
void AddTraffic(const proto::StatusReply& status, nlohmann::json& json) {
  std::map<std::pair<std::string, std::string>, size_t> places;  // By group and name.
  size_t trainers = 0, workers = 0;
  for (const proto::RankStatus& rank : status.ranks()) {
    const bool trainer = IsTrainer(rank);
    places[{trainer ? "" : rank.group(), rank.name()}] = trainer ? trainers++ : workers++;
  }
  json["pairs"] = json["relays"] = nlohmann::json::array();
  for (const proto::RankStatus& rank : status.ranks()) {
    if (IsTrainer(rank)) continue;
    const size_t to = places.at({rank.group(), rank.name()});
    const auto add = [&](nlohmann::json& list, const std::string& group, const char* role,
                         const auto& bytes) {
      for (int sender = 0; sender < bytes.size(); ++sender) {
        const auto from = places.find({group, absl::StrCat(role, " ", sender)});
        if (bytes[sender] == 0 || from == places.end()) continue;
        list.push_back({from->second, to, bytes[sender]});
      }
    };
    add(json["pairs"], "", "trainer", rank.from_trainers());
    add(json["relays"], rank.group(), "worker", rank.from_workers());
  }
  for (const nlohmann::json& relay : json["relays"]) {
    nlohmann::json& relayed = json["workers"][relay[0].get<size_t>()]["relayed_bytes"];
    relayed = (relayed.is_null() ? 0 : relayed.get<uint64_t>()) + relay[2].get<uint64_t>();
  }
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
    if (group.lost_version() != 0) {
      warnings.push_back(
          absl::StrCat(name, ": version ", group.lost_version(), " was lost: ", group.lost_why()));
    }
    if (const uint64_t lost = LanesLost(group); lost > 0) {
      warnings.push_back(absl::StrCat(name, ": lanes have died ", lost, " times"));
    }
  }
  std::map<std::string, size_t> unchanged;  // Workers, by group.
  for (const proto::RankStatus& rank : status.ranks()) {
    const uint64_t fallbacks = CounterOf(rank.report(), "fallbacks");
    if (fallbacks > 0) {
      warnings.push_back(absl::StrCat(rank.name(), ": ", fallbacks,
                                      " ends of lanes fell back to a slower fabric"));
    }
    if (CounterOf(rank.report(), "wrong_bases") > 0) {
      warnings.push_back(absl::StrCat(rank.name(), " of group ", rank.group(), " ", kWrongBase));
    }
    if (rank.approximate()) {
      warnings.push_back(absl::StrCat(rank.name(), " of group ", rank.group(), " ", kApproximate));
    }
    if (CounterOf(rank.report(), "unchanged_versions") > 0) ++unchanged[rank.group()];
    const uint64_t nonfinite = CounterOf(rank.report(), "nonfinite_elements");
    if (nonfinite > 0) {
      warnings.push_back(absl::StrCat(rank.name(), " has quantised ", nonfinite,
                                      " NaNs or infinities in its latest update"));
    }
  }
  for (const auto& [group, workers] : unchanged) {
    warnings.push_back(absl::StrCat("group ", group,
                                    ": workers that have shown a version with the ",
                                    "bytes of the one before: ", workers));
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
                         {"groups", nlohmann::json::array()},
                         {"terms", nlohmann::json::array()},
                         {"trainers", nlohmann::json::array()},
                         {"workers", nlohmann::json::array()}};
  int64_t longest_us = 0;
  uint64_t bytes = 0;
  for (const proto::RankStatus& rank : status.ranks()) {
    json[IsTrainer(rank) ? "trainers" : "workers"].push_back(
        ToJson(rank, status.groups_size() > 1));
    if (!IsTrainer(rank)) bytes += rank.planned_bytes();
    for (const proto::StageTime& stage : rank.report().stages()) {
      longest_us = std::max(longest_us, stage.end_us());
    }
  }
  for (const proto::GroupStatus& group : status.groups()) {
    json["groups"].push_back(ToJson(group, status.published_version()));
    json["terms"].push_back({group.name(), group.epoch()});
  }
  json["bytes"] = bytes;
  AddTraffic(status, json);
  if (longest_us > 0) json["seconds"] = static_cast<double>(longest_us) * 1e-6;
  return json;
}

}  // namespace waybill
