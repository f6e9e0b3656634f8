// SPDX-License-Identifier: Apache-2.0

// The plan: a routing table for each sender and each receiver, the exchanges of maxima, and the
// balance.
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

// Stores bundles of routes, and makes each rank's table on demand: all tables of a large job would
// take gigabytes. Immutable; copies share the bundles.
class Plan {
 public:
  Plan() = default;
  Plan(std::shared_ptr<const Bundles> bundles, std::vector<ExchangePattern> exchanges,
       const Balance& balance);

  // Returns the number of senders: the holders and, with relays, after them all receivers.
  uint32_t sender_count() const { return bundles_ == nullptr ? 0 : bundles_->sender_count(); }
  uint32_t holder_count() const { return bundles_ == nullptr ? 0 : bundles_->holder_count(); }
  bool relays() const { return holder_count() < sender_count(); }
  // Returns the sender number of a receiver that relays.
  uint32_t relay(uint32_t receiver) const { return holder_count() + receiver; }
  uint32_t receiver_count() const { return bundles_ == nullptr ? 0 : bundles_->receiver_count(); }

  // Returns a sender's routes in the order in which it sends them.
  RouteTable SenderRoutes(uint32_t sender) const { return Expand(SenderBundles(sender)); }
  // Returns a receiver's routes in the order of its ledger: by sender, and each sender's routes in
  // the order in which it sends them.
  RouteTable ReceiverRoutes(uint32_t receiver) const { return Expand(ReceiverBundles(receiver)); }
  // Return the same routes in bundles.
  BundledRoutes SenderBundles(uint32_t sender) const { return bundles_->SenderBundles(sender); }
  BundledRoutes ReceiverBundles(uint32_t receiver) const {
    return bundles_->ReceiverBundles(receiver);
  }

  uint32_t route_count(uint32_t sender, uint32_t receiver) const {
    return bundles_->route_count(sender, receiver);
  }
  // Returns the index of the first ledger entry of a sender's routes in a receiver's ledger. The
  // ledger has one entry for each route, in the order of ReceiverRoutes().
  uint32_t first_ledger_entry(uint32_t sender, uint32_t receiver) const {
    return bundles_->first_ledger_entry(sender, receiver);
  }
  uint64_t route_count() const { return bundles_->route_count(); }
  const Bundles& bundles() const { return *bundles_; }

  // Returns a sender's exchange, which is empty if the sender quantises nothing.
  Exchange SenderExchange(uint32_t sender) const;
  // By holder.
  const std::vector<ExchangePattern>& exchanges() const { return exchanges_; }
  bool trades(uint32_t sender) const {
    if (sender >= exchanges_.size()) return false;  // A relay trades nothing.
    const Exchange& exchange = exchanges_[sender].of_first;
    return !exchange.outgoing.empty() || !exchange.incoming.empty();
  }
  const Balance& balance() const { return balance_; }
  uint64_t sender_bytes(uint32_t sender) const { return bundles_->sender_bytes(sender); }
  uint64_t receiver_bytes(uint32_t receiver) const { return bundles_->receiver_bytes(receiver); }
  // Returns the bytes that a receiver relays to others.
  uint64_t relayed_bytes(uint32_t receiver) const {
    return relays() ? sender_bytes(relay(receiver)) : 0;
  }
  uint64_t total_bytes() const;
  // Returns a hash over all routes and exchanges. Equal plans have equal hashes, on every host.
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

// All tables of a plan, for small jobs.
struct PlanTables {
  std::vector<RouteTable> senders;
  std::vector<RouteTable> receivers;
  std::vector<Exchange> exchanges;  // By sender.
};
PlanTables MakeTables(const Plan& plan);

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_PLAN_H_
