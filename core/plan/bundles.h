// SPDX-License-Identifier: Apache-2.0

// The routes of a plan, in bundles: the routes of a bundle differ only in their addresses.
#ifndef WAYBILL_CORE_PLAN_BUNDLES_H_
#define WAYBILL_CORE_PLAN_BUNDLES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "core/plan/assignment.h"
#include "core/plan/bundled_routes.h"
#include "core/plan/demands.h"
#include "core/plan/rank_classes.h"
#include "core/plan/route_table.h"
#include "core/plan/tensor_classes.h"

namespace waybill {

// Routes from one sender that bring the same box of several tensors to several receivers.
struct Bundle {
  uint32_t want = 0;
  uint32_t holding = 0;  // The index of the sender's shards in TensorClasses::held().
  Copies copies;
  // A receiver sends the bundle: `holding` is an index in TensorClasses::wanted().
  bool relayed = false;
};

// The ranks, tensors and wants that the bundles of a plan refer to.
struct PlannedRanks {
  RankClasses senders;
  RankClasses receivers;
  TensorClasses tensors;
  std::vector<Recipient> destinations;
  std::vector<Want> wants;
  bool relays = false;  // The receivers are also numbered as senders, after the holders.
};

// Immutable after Finish(): any number of threads may then read it.
class Bundles {
 public:
  explicit Bundles(std::shared_ptr<const PlannedRanks> ranks) : ranks_(std::move(ranks)) {}

  // `first` is the route of the first tensor to the first destination; its axes and box are those
  // of all routes of the bundle.
  void Add(const Bundle& bundle, const RouteView& first);
  // Replaces the receivers' shards in all routes: shard `s` of receiver `w` becomes shards[w][s].
  void RenameShards(std::vector<std::vector<uint32_t>> shards) { shards_ = std::move(shards); }
  void Finish();

  const PlannedRanks& ranks() const { return *ranks_; }
  const std::shared_ptr<const PlannedRanks>& shared_ranks() const { return ranks_; }
  uint32_t size() const { return static_cast<uint32_t>(bundles_.size()); }
  const Bundle& bundle(uint32_t i) const { return bundles_[i]; }
  const RouteTable& first_routes() const { return first_routes_; }

  // The number of holders, the senders that hold what they send. With relays, receiver r is also
  // sender holder_count() + r.
  uint32_t holder_count() const { return ranks_->senders.rank_count(); }
  uint32_t sender_count() const {
    return holder_count() + (ranks_->relays ? ranks_->receivers.rank_count() : 0);
  }
  uint32_t receiver_count() const { return ranks_->receivers.rank_count(); }
  uint32_t route_count(uint32_t sender, uint32_t receiver) const {
    return first_ledger_entry(sender + 1, receiver) - first_ledger_entry(sender, receiver);
  }
  uint32_t route_count_to(uint32_t receiver) const {
    return first_ledger_entry(sender_count(), receiver);
  }
  // Returns the index of the first ledger entry of a sender's routes in a receiver's ledger.
  // `sender` may be sender_count(), which gives the size of the ledger.
  uint32_t first_ledger_entry(uint32_t sender, uint32_t receiver) const {
    return ledger_begins_[size_t{sender} * receiver_count() + receiver];
  }
  uint64_t route_count() const { return route_count_; }
  uint64_t sender_bytes(uint32_t sender) const { return sender_bytes_[sender]; }
  uint64_t receiver_bytes(uint32_t receiver) const { return receiver_bytes_[receiver]; }
  // Returns the bytes that each sender sends to a receiver.
  std::vector<uint64_t> BytesTo(uint32_t receiver) const;

  // See Plan::SenderRoutes() and Plan::ReceiverRoutes().
  BundledRoutes SenderBundles(uint32_t sender) const;
  BundledRoutes ReceiverBundles(uint32_t receiver) const;

  // Returns a digest of all bundles, including the addresses of their routes.
  uint64_t Digest() const;

 private:
  absl::Span<const uint32_t> BundlesOf(uint32_t sender) const;
  // Calls visit(bundle, destination) for each bundle that has routes to a receiver. `destination`
  // is the receiver's index among the want's destinations.
  template <typename Visit>
  void ForEachBundleTo(uint32_t receiver, Visit visit) const;
  const RankClasses& SendersOf(const Bundle& bundle) const {
    return bundle.relayed ? ranks_->receivers : ranks_->senders;
  }
  const Holding& HeldBy(const Bundle& bundle, uint32_t member) const;
  const Holding& WantedBy(const Bundle& bundle, uint32_t member, uint32_t destination) const;
  uint32_t ReceiverOf(uint32_t bundle, uint32_t destination) const;
  // Adds the routes of a bundle to some of its destinations.
  void AddRoutes(uint32_t bundle, uint32_t first_destination, uint32_t last_destination,
                 BundledRoutes& out) const;
  // Records the source addresses of a bundle's tensors.
  void AddSources(uint32_t bundle);
  // Adds the destination addresses of a bundle's tensors.
  void AddDestinations(uint32_t bundle, uint32_t destination, BundledRoutes& out) const;

  std::shared_ptr<const PlannedRanks> ranks_;
  std::vector<Bundle> bundles_;
  RouteTable first_routes_;  // By bundle.
  // By bundle and tensor: the source address. Each receiver's table contains those of its own
  // bundles.
  std::vector<uint32_t> source_shards_, source_regions_, scale_tables_;
  std::vector<uint64_t> source_offsets_bytes_;
  std::vector<size_t> source_ends_;  // By bundle.
  std::vector<std::vector<uint32_t>> shards_;

  std::vector<uint32_t> by_sender_;  // Bundles, sorted by sender.
  std::vector<uint32_t> sender_ends_;
  std::vector<std::vector<uint32_t>> by_want_;  // Bundles.
  // By receiver: its wants, with its index among their destinations.
  std::vector<std::vector<std::pair<uint32_t, uint32_t>>> by_receiver_;
  std::vector<uint32_t> ledger_begins_;
  std::vector<uint64_t> sender_bytes_;
  std::vector<uint64_t> receiver_bytes_;
  uint64_t route_count_ = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_BUNDLES_H_
