// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/observe/status_families.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "core/control/status_json.h"
#include "tools/waybill/observe/families.h"
#include "tools/waybill/running_job/lane_rates.h"

namespace waybill {
namespace {

using Family = prometheus::MetricFamily;
using Families = std::vector<Family>;

constexpr absl::string_view kTrainer = "trainer";
constexpr absl::string_view kWorker = "worker";
constexpr absl::string_view kLaneDeaths = "lane_deaths.";  // Counters: with the status code.

// A rank's name is its role and its number: "worker 3".
struct RankName {
  std::string role;
  std::string number;
};

RankName NameOf(const proto::RankStatus& rank) {
  const size_t space = rank.name().find(' ');
  if (space == std::string::npos) return {rank.name(), ""};
  return {rank.name().substr(0, space), rank.name().substr(space + 1)};
}

bool IsTrainer(const proto::RankStatus& rank) { return NameOf(rank).role == kTrainer; }
bool IsWorker(const proto::RankStatus& rank) { return NameOf(rank).role == kWorker; }

double Seconds(const proto::StageTime& stage) {
  return static_cast<double>(stage.end_us() - stage.begin_us()) / 1e6;
}

// Returns how long the rank's part in its latest update took.
double Seconds(const proto::RankReport& report) {
  int64_t end_us = 0;
  for (const proto::StageTime& stage : report.stages()) end_us = std::max(end_us, stage.end_us());
  return static_cast<double>(end_us) / 1e6;
}

// Returns the fabric of a path as ranks describe it: "tcp: 10.0.0.1:41234 to ...".
std::string FabricOf(const std::string& path) {
  for (const char* fabric : {"local", "verbs", "tcp"}) {
    if (path.rfind(absl::StrCat(fabric, ":"), 0) == 0) return fabric;
  }
  return "none";
}

void AddGauge(Families& families, const char* name, const char* help, double value) {
  Family family = MakeGauges(name, help);
  AddSeries(family, {}, value);
  families.push_back(std::move(family));
}

void AddVersions(const proto::StatusReply& status, Families& families) {
  AddGauge(families, "waybill_published_version", "The newest version that a trainer published.",
           static_cast<double>(status.published_version()));
  AddGauge(families, "waybill_committed_version",
           "The newest version that a group was told to show.",
           static_cast<double>(status.committed_version()));
  AddGauge(families, "waybill_switch_spread_seconds",
           "Time between the first and the last worker's showing of the newest committed version.",
           static_cast<double>(status.switch_spread_us()) / 1e6);
  AddGauge(families, "waybill_controller_halted",
           "1 if the controller decides nothing any more and must be restarted.",
           status.phase() == "halted" ? 1 : 0);
  Family updates = MakeCounters("waybill_updates_total",
                                "Versions that at least one group has shown, or that none has.");
  AddSeries(updates, {{"outcome", "aborted"}}, static_cast<double>(status.updates_aborted()));
  AddSeries(updates, {{"outcome", "committed"}}, static_cast<double>(status.updates_committed()));
  families.push_back(std::move(updates));
}

void AddGroups(const proto::StatusReply& status, Families& families) {
  Family version = MakeGauges("waybill_group_version", "The version that the group shows.");
  Family behind = MakeGauges("waybill_group_versions_behind",
                             "The newest published version minus the version of the group.");
  Family ready =
      MakeGauges("waybill_group_ready", "1 if the group can get a version, or is getting one.");
  Family fetches =
      MakeGauges("waybill_group_fetches", "1 if the group gets versions when it asks for them.");
  Family lost =
      MakeGauges("waybill_group_lost_version",
                 "The last version that the group gave up and has not replaced; 0: none.");
  Family trouble = MakeGauges("waybill_group_catch_up_failed",
                              "1 if the group could not catch up when it tried last.");
  for (const proto::GroupStatus& group : status.groups()) {
    const MetricLabels labels = {{"group", group.name()}};
    const uint64_t committed = group.committed_version();
    AddSeries(version, labels, static_cast<double>(committed));
    const uint64_t newest = std::max(status.published_version(), committed);
    AddSeries(behind, labels, static_cast<double>(newest - committed));
    AddSeries(ready, labels, group.phase() == "ready" || group.phase() == "updating" ? 1 : 0);
    AddSeries(fetches, labels, group.fetches() ? 1 : 0);
    AddSeries(lost, labels, static_cast<double>(group.lost_version()));
    AddSeries(trouble, labels, group.catch_up_trouble().empty() ? 0 : 1);
  }
  for (Family* family : {&version, &behind, &ready, &fetches, &lost, &trouble}) {
    families.push_back(std::move(*family));
  }
}

void AddRanks(const proto::StatusReply& status, Families& families) {
  std::map<std::pair<std::string, std::string>, uint32_t> ranks;  // By role and state.
  std::map<std::string, uint32_t> lanes;                          // By fabric.
  for (const proto::RankStatus& rank : status.ranks()) {
    ++ranks[{NameOf(rank).role, rank.state()}];
    for (const proto::LaneReport& lane : rank.lanes()) {
      if (IsTrainer(rank) && !lane.co_owner()) ++lanes[FabricOf(lane.path())];
    }
  }
  Family rank_family = MakeGauges("waybill_ranks", "Ranks that are here, by role and state.");
  for (const auto& [key, count] : ranks) {
    AddSeries(rank_family, {{"role", key.first}, {"state", key.second}}, count);
  }
  Family lane_family = MakeGauges("waybill_lanes", "Lanes from trainers to workers, by fabric.");
  for (const auto& [fabric, count] : lanes) AddSeries(lane_family, {{"fabric", fabric}}, count);
  families.push_back(std::move(rank_family));
  families.push_back(std::move(lane_family));
}

void AddLaneRates(const proto::StatusReply& status, Families& families) {
  Family family =
      MakeGauges("waybill_lane_rate_bytes_per_second",
                 "How fast lanes carried the latest update, from a trainer's first post "
                 "to the completion of the last.");
  for (const auto& [fabric, rates] : RatesOfLanes(status)) {
    for (const auto& [lane, rate] : {std::pair("fastest", rates.fastest),
                                     {"median", rates.median},
                                     {"slowest", rates.slowest}}) {
      AddSeries(family, {{"fabric", fabric}, {"lane", lane}}, rate);
    }
  }
  families.push_back(std::move(family));
}

// The slowest rank sets the pace, so it stands for all of its role.
void AddStages(const proto::StatusReply& status, Families& families) {
  std::map<std::pair<std::string, std::string>, double> slowest;  // By role and stage.
  for (const proto::RankStatus& rank : status.ranks()) {
    for (const proto::StageTime& stage : rank.report().stages()) {
      double& seconds = slowest[{NameOf(rank).role, stage.name()}];
      seconds = std::max(seconds, Seconds(stage));
    }
  }
  Family family = MakeGauges("waybill_last_stage_seconds",
                             "Duration of a stage of the latest update on the slowest rank.");
  for (const auto& [key, seconds] : slowest) {
    AddSeries(family, {{"role", key.first}, {"stage", key.second}}, seconds);
  }
  families.push_back(std::move(family));
}

void AddMemory(const proto::StatusReply& status, Families& families) {
  uint64_t host = 0, gpu = 0, ring = 0, nonfinite = 0;
  for (const proto::RankStatus& rank : status.ranks()) {
    host += CounterOf(rank.report(), "host_buffer_bytes");
    gpu += CounterOf(rank.report(), "gpu_buffer_bytes");
    ring = std::max(ring, CounterOf(rank.report(), "ring_high_water_bytes"));
    nonfinite += CounterOf(rank.report(), "nonfinite_elements");
  }
  Family buffers = MakeGauges("waybill_worker_buffer_bytes",
                              "Memory in which all workers receive versions, by place.");
  AddSeries(buffers, {{"memory", "gpu"}}, static_cast<double>(gpu));
  AddSeries(buffers, {{"memory", "host"}}, static_cast<double>(host));
  families.push_back(std::move(buffers));
  AddGauge(families, "waybill_staging_high_water_bytes",
           "The most staging memory that a trainer has used.", static_cast<double>(ring));
  AddGauge(families, "waybill_nonfinite_elements",
           "NaNs and infinities among what the trainers quantised for the latest update.",
           static_cast<double>(nonfinite));
}

void RecordCounters(const proto::StatusReply& status, CounterLedger& ledger, absl::Time now) {
  for (const proto::GroupStatus& group : status.groups()) {
    for (const proto::Counter& lost : group.lanes_lost()) {
      ledger.Record(absl::StrCat(kLaneDeaths, lost.name()), group.name(), lost.value(), now);
    }
  }
  for (const proto::RankStatus& rank : status.ranks()) {
    const std::string source = absl::StrCat(rank.name(), "/", rank.group());
    for (const char* counter :
         {"tcp.sent_bytes", "tcp.received_bytes", "verbs.posted_bytes", "fallbacks", "sent_bytes",
          "spared_bytes", "verified_bytes", "unchanged_versions"}) {
      const uint64_t value = CounterOf(rank.report(), counter);
      ledger.Record(counter, source, value, now);
    }
  }
  ledger.ForgetOldSources(now);
}

void AddCounters(const CounterLedger& ledger, Families& families) {
  const auto sum = [&](const char* counter) { return static_cast<double>(ledger.Sum(counter)); };
  Family bytes = MakeCounters("waybill_bytes_total",
                              "Bytes that ranks have sent and received over a network, by fabric.");
  AddSeries(bytes, {{"direction", "received"}, {"fabric", "tcp"}}, sum("tcp.received_bytes"));
  AddSeries(bytes, {{"direction", "sent"}, {"fabric", "tcp"}}, sum("tcp.sent_bytes"));
  AddSeries(bytes, {{"direction", "sent"}, {"fabric", "verbs"}}, sum("verbs.posted_bytes"));
  families.push_back(std::move(bytes));
  Family weights = MakeCounters("waybill_weight_bytes_total",
                                "Bytes of weights that trainers have sent over all fabrics, of "
                                "these those that did not travel because workers had them, and "
                                "those that workers have verified.");
  AddSeries(weights, {{"direction", "sent"}}, sum("sent_bytes"));
  AddSeries(weights, {{"direction", "spared"}}, sum("spared_bytes"));
  AddSeries(weights, {{"direction", "verified"}}, sum("verified_bytes"));
  families.push_back(std::move(weights));
  const auto add = [&](const char* name, const char* help, const char* counter) {
    Family family = MakeCounters(name, help);
    AddSeries(family, {}, sum(counter));
    families.push_back(std::move(family));
  };
  Family deaths =
      MakeCounters("waybill_lane_deaths_total",
                   "Terms of groups that ended because a lane had died, by the error's code.");
  for (const auto& [counter, terms] : ledger.sums()) {
    const auto code = absl::StripPrefix(counter, kLaneDeaths);
    if (code.size() == counter.size()) continue;
    AddSeries(deaths, {{"code", std::string(code)}}, static_cast<double>(terms));
  }
  families.push_back(std::move(deaths));
  add("waybill_lane_fallbacks_total", "Ends of lanes that fell back to a slower fabric.",
      "fallbacks");
  add("waybill_unchanged_versions_total",
      "Versions that a worker showed with the same bytes as the version before.",
      "unchanged_versions");
}

void AddEachRank(const proto::StatusReply& status, Families& families) {
  Family version = MakeGauges("waybill_rank_shown_version", "The version that a worker shows.");
  Family stages = MakeGauges("waybill_rank_stage_seconds",
                             "Duration of a stage of the latest update on one rank.");
  Family rate = MakeGauges("waybill_rank_rate_bytes_per_second",
                           "Bytes of the rank's part in its latest update by the time it took.");
  for (const proto::RankStatus& rank : status.ranks()) {
    const RankName name = NameOf(rank);
    const MetricLabels labels = {
        {"group", rank.group()}, {"rank", name.number}, {"role", name.role}};
    if (IsWorker(rank)) AddSeries(version, labels, static_cast<double>(rank.shown_version()));
    for (const proto::StageTime& stage : rank.report().stages()) {
      MetricLabels with_stage = labels;
      with_stage.push_back({"stage", stage.name()});
      AddSeries(stages, std::move(with_stage), Seconds(stage));
    }
    const double seconds = Seconds(rank.report());
    if (seconds == 0) continue;
    AddSeries(rate, labels, static_cast<double>(rank.report().moved_bytes()) / seconds);
  }
  for (Family* family : {&version, &stages, &rate}) families.push_back(std::move(*family));
}

}  // namespace

std::vector<prometheus::MetricFamily> StatusFamilies(const proto::StatusReply& status,
                                                     RankSeries ranks, CounterLedger& ledger,
                                                     absl::Time now) {
  Families families;
  AddVersions(status, families);
  AddGroups(status, families);
  AddRanks(status, families);
  AddLaneRates(status, families);
  AddStages(status, families);
  AddMemory(status, families);
  RecordCounters(status, ledger, now);
  AddCounters(ledger, families);
  if (ranks == RankSeries::kEach) AddEachRank(status, families);
  return families;
}

}  // namespace waybill
