// SPDX-License-Identifier: Apache-2.0

#include "core/control/status_json.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"

namespace waybill {

std::string StatusToJson(const proto::StatusReply& status) {
  nlohmann::json ranks = nlohmann::json::array();
  for (const proto::RankStatus& rank : status.ranks()) {
    nlohmann::json lanes = nlohmann::json::array(), nics = nlohmann::json::array();
    for (const auto& lane : rank.lanes()) {
      lanes.push_back({{"group", lane.group()},
                       {"peer", lane.peer()},
                       {"co_owner", lane.co_owner()},
                       {"relay", lane.relay()},
                       {"path", lane.path()}});
    }
    for (const auto& nic : rank.nics()) {
      nics.push_back({{"name", nic.name()}, {"bytes_per_second", nic.bytes_per_second()}});
    }
    nlohmann::json stages = nlohmann::json::object(), counters = nlohmann::json::object();
    for (const auto& stage : rank.report().stages()) {
      stages[stage.name()] = {{"begin_us", stage.begin_us()}, {"end_us", stage.end_us()}};
    }
    for (const auto& counter : rank.report().counters()) counters[counter.name()] = counter.value();
    nlohmann::json rates = nlohmann::json::array();
    for (const auto& rate : rank.report().lane_rates()) {
      rates.push_back({{"peer", rate.peer()},
                       {"group", rate.group()},
                       {"fabric", rate.fabric()},
                       {"bytes", rate.bytes()},
                       {"us", rate.us()}});
    }
    ranks.push_back({{"name", rank.name()},
                     {"lanes", lanes},
                     {"lane_rates", rates},
                     {"nics", nics},
                     {"group", rank.group()},
                     {"state", rank.state()},
                     {"planned_bytes", rank.planned_bytes()},
                     {"version", rank.report().version()},
                     {"moved_bytes", rank.report().moved_bytes()},
                     {"stages", stages},
                     {"counters", counters},
                     {"shown_version", rank.shown_version()},
                     {"approximate", rank.approximate()}});
  }
  nlohmann::json groups = nlohmann::json::array();
  for (const proto::GroupStatus& group : status.groups()) {
    groups.push_back({{"name", group.name()},
                      {"phase", group.phase()},
                      {"epoch", group.epoch()},
                      {"plan_hash", absl::StrFormat("%016x", group.plan_hash())},
                      {"committed_version", group.committed_version()},
                      {"updating_version", group.updating_version()},
                      {"lanes_lost", LanesLost(group)},
                      {"waiting_for", group.waiting_for()},
                      {"catch_up_trouble", group.catch_up_trouble()},
                      {"fetches", group.fetches()},
                      {"lost_version", group.lost_version()},
                      {"lost_why", group.lost_why()}});
  }
  const nlohmann::json json = {{"job", status.job()},
                               {"phase", status.phase()},
                               {"committed_version", status.committed_version()},
                               {"published_version", status.published_version()},
                               {"updates_committed", status.updates_committed()},
                               {"updates_aborted", status.updates_aborted()},
                               {"switch_spread_us", status.switch_spread_us()},
                               {"waiting_for", status.waiting_for()},
                               {"groups", groups},
                               {"ranks", ranks}};
  return json.dump();
}

uint64_t CounterOf(const proto::RankReport& report, absl::string_view name) {
  for (const proto::Counter& counter : report.counters()) {
    if (counter.name() == name) return counter.value();
  }
  return 0;
}

uint64_t LanesLost(const proto::GroupStatus& group) {
  uint64_t lost = 0;
  for (const proto::Counter& of_code : group.lanes_lost()) lost += of_code.value();
  return lost;
}

}  // namespace waybill
