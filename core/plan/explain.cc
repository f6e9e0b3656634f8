// SPDX-License-Identifier: Apache-2.0

#include "core/plan/explain.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/plan/chunks.h"

namespace waybill {
namespace {

double Megabytes(uint64_t bytes) { return static_cast<double>(bytes) / 1e6; }

nlohmann::json ToJson(const RouteView& route) {
  return {{"worker", route.receiver},
          {"source_shard", route.source_shard},
          {"source_region", route.source_region},
          {"source_offset_bytes", route.source_offset_bytes},
          {"destination_shard", route.destination_shard},
          {"destination_region", route.destination_region},
          {"destination_offset_bytes", route.destination_offset_bytes},
          {"bytes", route.shape.size_bytes()},
          {"box", ToString(route.box)},
          {"witness", route.witness},
          {"quantised", route.scale_table != kNoScaleTable}};
}

}  // namespace

uint64_t CountWrites(const RouteTable& routes) {
  constexpr uint64_t kChunkBytes = 1 << 20;
  const ChunkList list = CutIntoChunks(routes, kChunkBytes);
  std::vector<ChunkWrite> writes;
  uint64_t count = 0;
  for (const Chunk& chunk : list.chunks) {
    writes.clear();
    AppendWrites(
        routes, list, chunk, [&](uint32_t route) { return IsDirect(routes, route); }, writes);
    count += writes.size();
  }
  return count;
}

PlanCounts CountPlan(const Plan& plan) {
  PlanCounts counts;
  counts.routes = plan.route_count();
  for (uint32_t t = 0; t < plan.sender_count(); ++t) {
    counts.writes += CountWrites(plan.SenderRoutes(t));
  }
  for (uint32_t t = 0; plan.quantises() && t < plan.sender_count(); ++t) {
    const Exchange exchange = plan.SenderExchange(t);
    for (const MaximaMessage& message : exchange.outgoing) {
      if (!message.into.empty()) continue;
      ++counts.maxima_messages;
      counts.maxima += message.block_count();
    }
  }
  return counts;
}

std::string ExplainAsTable(const Plan& plan, const HeldBytes& held) {
  std::string text = absl::StrFormat("%-12s %12s %12s %9s %9s\n", "rank", "holds MB", "moves MB",
                                     "routes", "writes");
  for (uint32_t t = 0; t < plan.holder_count(); ++t) {
    const RouteTable routes = plan.SenderRoutes(t);
    absl::StrAppendFormat(&text, "%-12s %12.1f %12.1f %9d %9d\n", absl::StrCat("trainer ", t),
                          Megabytes(held.senders[t]), Megabytes(plan.sender_bytes(t)),
                          routes.size(), CountWrites(routes));
  }
  for (uint32_t w = 0; w < plan.receiver_count(); ++w) {
    absl::StrAppendFormat(&text, "%-12s %12.1f %12.1f %9d\n", absl::StrCat("worker ", w),
                          Megabytes(held.receivers[w]), Megabytes(plan.receiver_bytes(w)),
                          plan.bundles().route_count_to(w));
  }
  if (plan.relays()) {
    uint64_t relayed = 0;
    for (uint32_t w = 0; w < plan.receiver_count(); ++w) relayed += plan.relayed_bytes(w);
    absl::StrAppendFormat(&text, "\n%.1f MB of these are relayed by workers to others\n",
                          Megabytes(relayed));
  }
  const PlanCounts counts = CountPlan(plan);
  if (counts.maxima_messages > 0) {
    absl::StrAppendFormat(&text, "\n%d maxima of split blocks in %d messages between trainers\n",
                          counts.maxima, counts.maxima_messages);
  }
  absl::StrAppendFormat(&text, "\nbusiest rank / lower bound %.3f; busiest trainer / mean %.3f\n",
                        plan.balance().ratio(), plan.balance().sender_imbalance());
  return text;
}

std::string ExplainAsJson(const Plan& plan, const HeldBytes& held, RoutesToo with_routes) {
  const PlanCounts counts = CountPlan(plan);
  nlohmann::json json = {{"hash", absl::StrFormat("%016x", plan.hash())},
                         {"bytes", plan.total_bytes()},
                         {"maxima", counts.maxima},
                         {"maxima_messages", counts.maxima_messages},
                         {"ratio_to_lower_bound", plan.balance().ratio()},
                         {"trainer_imbalance", plan.balance().sender_imbalance()},
                         {"trainers", nlohmann::json::array()},
                         {"workers", nlohmann::json::array()}};
  for (uint32_t t = 0; t < plan.holder_count(); ++t) {
    const RouteTable routes = plan.SenderRoutes(t);
    nlohmann::json sender = {{"held_bytes", held.senders[t]},
                             {"bytes", plan.sender_bytes(t)},
                             {"routes", routes.size()},
                             {"writes", CountWrites(routes)}};
    if (with_routes == RoutesToo::kYes) {
      nlohmann::json& table = sender["table"] = nlohmann::json::array();
      for (uint32_t i = 0; i < routes.size(); ++i) table.push_back(ToJson(routes[i]));
    }
    json["trainers"].push_back(std::move(sender));
  }
  for (uint32_t w = 0; w < plan.receiver_count(); ++w) {
    json["workers"].push_back({{"held_bytes", held.receivers[w]},
                               {"bytes", plan.receiver_bytes(w)},
                               {"relayed_bytes", plan.relayed_bytes(w)},
                               {"routes", plan.bundles().route_count_to(w)}});
  }
  return json.dump();
}

}  // namespace waybill
