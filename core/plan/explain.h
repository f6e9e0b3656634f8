// SPDX-License-Identifier: Apache-2.0

// Describes a plan for people and for programs.
#ifndef WAYBILL_CORE_PLAN_EXPLAIN_H_
#define WAYBILL_CORE_PLAN_EXPLAIN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/plan/plan.h"
#include "core/plan/route_table.h"

namespace waybill {

// Returns the number of writes of the routes if nothing can be mapped and the tensors are in host
// memory.
uint64_t CountWrites(const RouteTable& routes);

struct PlanCounts {
  uint64_t routes = 0;
  uint64_t writes = 0;
  uint64_t maxima = 0;  // The maxima of split blocks that senders send to each other.
  uint64_t maxima_messages = 0;
};
PlanCounts CountPlan(const Plan& plan);

// The total size of all shards, by rank.
struct HeldBytes {
  std::vector<uint64_t> senders;
  std::vector<uint64_t> receivers;
};

// Returns a table with one line for each rank.
std::string ExplainAsTable(const Plan& plan, const HeldBytes& held);

enum class RoutesToo : bool { kNo, kYes };
// {"hash", "ratio_to_lower_bound", "trainers": [{"bytes", "routes", "writes"}], ...}; with every
// route of each sender if `routes` is kYes.
std::string ExplainAsJson(const Plan& plan, const HeldBytes& held, RoutesToo routes);

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_EXPLAIN_H_
