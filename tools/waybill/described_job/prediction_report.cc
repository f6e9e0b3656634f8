// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/waybill/described_job/prediction.h"
#include "tools/waybill/page/page.h"

namespace waybill {
namespace {

using simulate::PortLoad;
using simulate::RankResult;
using simulate::Stage;

double Megabytes(uint64_t bytes) { return static_cast<double>(bytes) / 1e6; }

absl::string_view Name(PortLoad::Kind kind) {
  constexpr absl::string_view kNames[] = {"egress", "ingress",  "pcie",
                                          "uplink", "downlink", "nvlink"};
  return kNames[static_cast<size_t>(kind)];
}

std::string NameOf(const RankResult& rank) {
  return absl::StrCat(waybill::Name(rank.id.role), " ", rank.id.rank);
}

// The rank of a role that moves most, with its stages.
const RankResult* BusiestOf(const simulate::Result& result, Role role) {
  const RankResult* busiest = nullptr;
  for (const RankResult& rank : result.ranks) {
    if (rank.id.role != role) continue;
    if (busiest == nullptr || rank.moved_bytes > busiest->moved_bytes) busiest = &rank;
  }
  return busiest;
}

void AppendRank(const RankResult& rank, std::string& text) {
  absl::StrAppendFormat(&text, "%-13s %12.1f %12.1f", NameOf(rank), Megabytes(rank.held_bytes),
                        Megabytes(rank.moved_bytes));
  for (const simulate::Span& span : rank.spans) {
    absl::StrAppendFormat(
        &text, " %15s",
        span.end == 0 ? "-" : absl::StrFormat("%.1f-%.1f", span.begin * 1e3, span.end * 1e3));
  }
  absl::StrAppend(&text, "\n");
}

void AppendRelays(const simulate::Result& result, std::string& text) {
  uint64_t relayed_bytes = 0;
  uint32_t workers = 0;
  for (const RankResult& rank : result.ranks) {
    relayed_bytes += rank.relayed_bytes;
    workers += rank.relayed_bytes > 0;
  }
  if (workers == 0) return;
  absl::StrAppendFormat(&text, "relayed          %9.1f GB of it, by %d workers\n",
                        static_cast<double>(relayed_bytes) / 1e9, workers);
}

uint64_t SentBytes(const simulate::Result& result) {
  uint64_t bytes = 0;
  for (const RankResult& rank : result.ranks) {
    if (rank.id.role == Role::kTrainer) bytes += rank.moved_bytes;
  }
  return bytes;
}

// Adds how long trainers with images wait, and how much travels from them.
void AppendPublish(const Prediction& prediction, std::string& text) {
  const ClusterFile& file = prediction.file;
  if (!file.images && !file.changed) return;
  absl::StrAppendFormat(&text,
                        "publish          %9.3f s until the trainers may change their weights\n",
                        prediction.result.publish_seconds);
  if (!file.changed) return;
  absl::StrAppendFormat(
      &text, "travels          %9.3f GB from the trainers, of which %.1f %% changed\n",
      static_cast<double>(SentBytes(prediction.result)) / 1e9, 100 * *file.changed);
}

nlohmann::json ToJson(const RankResult& rank) {
  nlohmann::json json = {{"name", NameOf(rank)},
                         {"held_bytes", rank.held_bytes},
                         {"bytes", rank.moved_bytes},
                         {"ledger_bytes", rank.ledger_bytes},
                         {"stages", nlohmann::json::object()}};
  if (rank.id.role == Role::kTrainer) {
    json["ring_bytes"] = rank.ring_bytes;
  } else {
    json["buffer_bytes"] = rank.buffer_bytes;
    json["relayed_bytes"] = rank.relayed_bytes;
  }
  for (size_t s = 0; s < simulate::kStageCount; ++s) {
    const simulate::Span& span = rank.spans[s];
    if (span.end == 0) continue;
    json["stages"][std::string(simulate::Name(static_cast<Stage>(s)))] = {
        {"begin", span.begin}, {"end", span.end}, {"busy", span.busy}};
  }
  return json;
}

}  // namespace

std::string FormatPrediction(const Prediction& prediction) {
  const simulate::Result& result = prediction.result;
  std::string text =
      absl::StrFormat("%s: %d trainers to %d workers, %.1f GB in an update\n", prediction.file.name,
                      prediction.traffic.trainers(), prediction.traffic.workers(),
                      static_cast<double>(result.total_bytes) / 1e9);
  absl::StrAppendFormat(&text, "plan %016x, made in %.1f ms\n", prediction.plan_hash,
                        prediction.planning_seconds * 1e3);
  absl::StrAppendFormat(&text,
                        "\nupdate           %9.3f s from publish() until all workers show it\n",
                        result.seconds);
  AppendPublish(prediction, text);
  if (result.bound_seconds() > 0) {
    absl::StrAppendFormat(&text,
                          "ingress bound    %9.3f s (%s)\negress bound     %9.3f s (%s)\n"
                          "update / bound   %9.2f\n",
                          result.ingress.seconds, result.ingress.port, result.egress.seconds,
                          result.egress.port, result.seconds / result.bound_seconds());
  }
  absl::StrAppendFormat(&text,
                        "imbalance        %9.3f of trainers, %.3f of workers (busiest / mean)\n",
                        result.trainer_imbalance, result.worker_imbalance);
  AppendRelays(result, text);
  absl::StrAppendFormat(&text, "\n%-13s %12s %12s %15s %15s %15s %15s %15s\n", "busiest rank",
                        "holds MB", "moves MB", "stage ms", "post ms", "wire ms", "verify ms",
                        "commit ms");
  for (const Role role : {Role::kTrainer, Role::kWorker}) {
    if (const RankResult* rank = BusiestOf(result, role)) AppendRank(*rank, text);
  }
  const RankResult* trainer = BusiestOf(result, Role::kTrainer);
  const RankResult* worker = BusiestOf(result, Role::kWorker);
  absl::StrAppendFormat(
      &text,
      "\nmemory beside the weights: a trainer's ring %.1f MB and ledger %.1f MB; a "
      "worker's other buffer %.1f MB and ledger %.1f MB\n",
      Megabytes(trainer->ring_bytes), Megabytes(trainer->ledger_bytes),
      Megabytes(worker->buffer_bytes), Megabytes(worker->ledger_bytes));
  absl::StrAppend(&text, "slowest path: ", result.slowest_path, "\n");
  for (const std::string& warning : result.warnings) {
    absl::StrAppend(&text, "warning: ", warning, "\n");
  }
  absl::StrAppendFormat(&text, "simulated in %d pieces of at most %.1f MB, %d events\n",
                        result.pieces, Megabytes(result.piece_bytes), result.events);
  if (prediction.sweep.empty()) return text;
  absl::StrAppendFormat(&text, "\n%-10s %10s %10s\n", prediction.swept, "update s", "bound s");
  for (const SweepPoint& point : prediction.sweep) {
    absl::StrAppendFormat(&text, "%-10d %10.3f %10.3f\n", point.ranks, point.seconds,
                          point.bound_seconds);
  }
  return text;
}

nlohmann::json PredictionToJson(const Prediction& prediction) {
  const simulate::Result& result = prediction.result;
  nlohmann::json json = {
      {"kind", "simulation"},
      {"name", prediction.file.name},
      {"model", prediction.file.model_name()},
      {"trainer_sharding", prediction.file.trainers.Describe()},
      {"worker_sharding", prediction.file.workers.Describe()},
      {"seconds", result.seconds},
      {"sent_seconds", result.sent_seconds},
      {"publish_seconds", result.publish_seconds},
      {"bounds",
       {{"egress", {{"seconds", result.egress.seconds}, {"port", result.egress.port}}},
        {"ingress", {{"seconds", result.ingress.seconds}, {"port", result.ingress.port}}}}},
      {"bytes", result.total_bytes},
      {"writes", result.writes},
      {"imbalance", {{"trainers", result.trainer_imbalance}, {"workers", result.worker_imbalance}}},
      {"warnings", result.warnings},
      {"slowest_path", result.slowest_path},
      {"granularity",
       {{"piece_bytes", result.piece_bytes}, {"pieces", result.pieces}, {"events", result.events}}},
      {"trainers", nlohmann::json::array()},
      {"workers", nlohmann::json::array()},
      {"ports", nlohmann::json::array()},
      {"plan",
       {{"hash", absl::StrFormat("%016x", prediction.plan_hash)},
        {"seconds", prediction.planning_seconds},
        {"ratio_to_lower_bound", prediction.traffic.planned_ratio}}}};
  for (const RankResult& rank : result.ranks) {
    json[rank.id.role == Role::kTrainer ? "trainers" : "workers"].push_back(ToJson(rank));
  }
  AddTraffic(prediction.traffic, json);
  for (const PortLoad& port : result.ports) {
    json["ports"].push_back({{"name", port.name},
                             {"kind", std::string(Name(port.kind))},
                             {"bytes", port.bytes},
                             {"bytes_per_second", port.rate},
                             {"busy_seconds", port.busy}});
  }
  if (!prediction.sweep.empty()) {
    json["sweep"] = {{"what", prediction.swept}, {"points", nlohmann::json::array()}};
    for (const SweepPoint& point : prediction.sweep) {
      json["sweep"]["points"].push_back({{"ranks", point.ranks},
                                         {"seconds", point.seconds},
                                         {"bound_seconds", point.bound_seconds}});
    }
  }
  return json;
}

}  // namespace waybill
