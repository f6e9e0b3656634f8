// SPDX-License-Identifier: Apache-2.0

// The plan: one routing table for each sender, what each receiver is to expect, and how good it is.
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

  // The senders are those that hold what they send and then, with relays, all receivers.
  uint32_t sender_count() const { return bundles_ == nullptr ? 0 : bundles_->sender_count(); }
  uint32_t holder_count() const { return bundles_ == nullptr ? 0 : bundles_->holder_count(); }
  bool relays() const { return holder_count() < sender_count(); }
  // Returns the number of a receiver as one that relays.
  uint32_t relay(uint32_t receiver) const { return holder_count() + receiver; }
  uint32_t receiver_count() const { return bundles_ == nullptr ? 0 : bundles_->receiver_count(); }

  // Returns a sender's routes in the order in which it sends them.
  RouteTable SenderRoutes(uint32_t sender) const { return Expand(SenderBundles(sender)); }
  // Returns a receiver's routes in the order of its ledger: the senders in order, each one's routes
  // in the order in which it sends them.
  RouteTable ReceiverRoutes(uint32_t receiver) const { return Expand(ReceiverBundles(receiver)); }
  // Return the same routes in bundles.
  BundledRoutes SenderBundles(uint32_t sender) const { return bundles_->SenderBundles(sender); }
  BundledRoutes ReceiverBundles(uint32_t receiver) const {
    return bundles_->ReceiverBundles(receiver);
  }

  uint32_t route_count(uint32_t sender, uint32_t receiver) const {
    return bundles_->route_count(sender, receiver);
  }
  // Returns where the digests of a sender's routes begin in a receiver's ledger, which has the
  // entries of all routes in the order of ReceiverRoutes().
  uint32_t first_ledger_entry(uint32_t sender, uint32_t receiver) const {
    return bundles_->first_ledger_entry(sender, receiver);
  }
  uint64_t route_count() const { return bundles_->route_count(); }
  const Bundles& bundles() const { return *bundles_; }

  // Returns what a sender exchanges with others. Empty if it quantises nothing.
  Exchange SenderExchange(uint32_t sender) const;
  // By rank of the sender.
  const std::vector<ExchangePattern>& exchanges() const { return exchanges_; }
  bool trades(uint32_t sender) const {
    if (sender >= exchanges_.size()) return false;  // It relays.
    const Exchange& exchange = exchanges_[sender].of_first;
    return !exchange.outgoing.empty() || !exchange.incoming.empty();
  }
  const Balance& balance() const { return balance_; }
  uint64_t sender_bytes(uint32_t sender) const { return bundles_->sender_bytes(sender); }
  uint64_t receiver_bytes(uint32_t receiver) const { return bundles_->receiver_bytes(receiver); }
  // Returns what a receiver sends to others.
  uint64_t relayed_bytes(uint32_t receiver) const {
    return relays() ? sender_bytes(relay(receiver)) : 0;
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
  std::vector<RouteTable> senders;
  std::vector<RouteTable> receivers;
  std::vector<Exchange> exchanges;  // By sender.
};
PlanTables MakeTables(const Plan& plan);

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_PLAN_H_
