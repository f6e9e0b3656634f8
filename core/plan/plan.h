// SPDX-License-Identifier: Apache-2.0

// The plan: one routing table for each trainer, what each worker is to expect, and how good it is.
#ifndef WAYBILL_CORE_PLAN_PLAN_H_
#define WAYBILL_CORE_PLAN_PLAN_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/plan/balance.h"
#include "core/plan/bundled_routes.h"
#include "core/plan/bundles.h"
#include "core/plan/exchange.h"
#include "core/plan/route_table.h"

namespace waybill {

// Keeps bundles of routes, from which each rank's table is made when somebody needs it: all tables
// of a large job would take gigabytes. Immutable once planned; copies share the bundles.
class Plan {
 public:
  Plan() = default;
  Plan(std::shared_ptr<const Bundles> bundles, std::vector<ExchangePattern> exchanges,
       const Balance& balance);

  // With relays, the workers are counted as trainers, too: worker w is first_relay() + w.
  uint32_t trainer_count() const { return bundles_ == nullptr ? 0 : bundles_->trainer_count(); }
  uint32_t first_relay() const { return bundles_ == nullptr ? 0 : bundles_->first_relay(); }
  bool relays() const { return first_relay() < trainer_count(); }
  uint32_t worker_count() const { return bundles_ == nullptr ? 0 : bundles_->worker_count(); }

  // Returns a trainer's routes in the order in which it sends them.
  RouteTable TrainerRoutes(uint32_t trainer) const { return Expand(TrainerBundles(trainer)); }
  // Returns a worker's routes in the order of its ledger: the trainers in order, each one's routes
  // in the order in which it sends them.
  RouteTable WorkerRoutes(uint32_t worker) const { return Expand(WorkerBundles(worker)); }
  // Return the same routes in bundles.
  BundledRoutes TrainerBundles(uint32_t trainer) const { return bundles_->TrainerBundles(trainer); }
  BundledRoutes WorkerBundles(uint32_t worker) const { return bundles_->WorkerBundles(worker); }

  uint32_t route_count(uint32_t trainer, uint32_t worker) const {
    return bundles_->route_count(trainer, worker);
  }
  // Returns where the digests of a trainer's routes begin in a worker's ledger, which has the
  // entries of all routes in the order of WorkerRoutes().
  uint32_t first_ledger_entry(uint32_t trainer, uint32_t worker) const {
    return bundles_->first_ledger_entry(trainer, worker);
  }
  uint64_t route_count() const { return bundles_->route_count(); }
  const Bundles& bundles() const { return *bundles_; }

  // Returns what a trainer exchanges with others. Empty if it quantises nothing.
  Exchange TrainerExchange(uint32_t trainer) const;
  // By rank of the trainer.
  const std::vector<ExchangePattern>& exchanges() const { return exchanges_; }
  bool trades(uint32_t trainer) const {
    if (trainer >= exchanges_.size()) return false;  // It relays.
    const Exchange& exchange = exchanges_[trainer].of_first;
    return !exchange.outgoing.empty() || !exchange.incoming.empty();
  }
  const Balance& balance() const { return balance_; }
  uint64_t trainer_bytes(uint32_t trainer) const { return bundles_->trainer_bytes(trainer); }
  uint64_t worker_bytes(uint32_t worker) const { return bundles_->worker_bytes(worker); }
  // Returns what a worker sends to others.
  uint64_t relayed_bytes(uint32_t worker) const {
    return relays() ? trainer_bytes(first_relay() + worker) : 0;
  }
  uint64_t total_bytes() const;
  // Over all routes and exchanges: equal plans have equal hashes, on every host.
  uint64_t hash() const { return hash_; }

  bool quantises() const {
    return std::any_of(exchanges_.begin(), exchanges_.end(),
                       [](const ExchangePattern& e) { return !e.of_first.empty(); });
  }

 private:
  std::shared_ptr<const Bundles> bundles_;
  std::vector<ExchangePattern> exchanges_;
  Balance balance_;
  uint64_t hash_ = 0;
};

// All tables of a plan at once. For small jobs.
struct PlanTables {
  std::vector<RouteTable> trainers;
  std::vector<RouteTable> workers;
  std::vector<Exchange> exchanges;  // By trainer.
};
PlanTables MakeTables(const Plan& plan);

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_PLAN_H_
