// The plan: one routing table for each trainer, what each worker is to expect, and how good it is.
#ifndef WAYBILL_CORE_PLAN_PLAN_H_
#define WAYBILL_CORE_PLAN_PLAN_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/plan/exchange.h"
#include "core/plan/route_table.h"

namespace waybill {

// Loads are bytes over link speed, in seconds; where no rank declares a speed, in bytes.
struct Balance {
  double busiest_trainer = 0;
  double busiest_worker = 0;
  double mean_trainer = 0;
  // No assignment of sources can end earlier than this.
  double lower_bound = 0;

  double busiest() const {
    return busiest_trainer > busiest_worker ? busiest_trainer : busiest_worker;
  }
  // 1 is perfect.
  double ratio() const { return lower_bound > 0 ? busiest() / lower_bound : 1; }
  // The figure that others publish: the busiest trainer over the mean.
  double trainer_imbalance() const { return mean_trainer > 0 ? busiest_trainer / mean_trainer : 1; }
};

struct Plan {
  // Indexed by rank. A trainer's routes in the order in which it sends them.
  std::vector<RouteTable> trainers;
  // Indexed by rank. A worker's routes in the order of its ledger.
  std::vector<RouteTable> workers;
  // Indexed by rank of the trainer. Empty where nothing is quantised.
  std::vector<Exchange> exchanges;
  std::vector<uint64_t> trainer_bytes;
  std::vector<uint64_t> worker_bytes;
  Balance balance;
  // Over the canonical encoding of all tables and exchanges: equal plans, equal hashes, on every
  // host.
  uint64_t hash = 0;

  bool quantises() const {
    return std::any_of(exchanges.begin(), exchanges.end(),
                       [](const Exchange& exchange) { return !exchange.empty(); });
  }
  uint64_t total_bytes() const {
    uint64_t total = 0;
    for (const uint64_t bytes : worker_bytes) total += bytes;
    return total;
  }
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_PLAN_H_
