// SPDX-License-Identifier: Apache-2.0

// The routes of a plan, in bundles of those that differ only in their places.
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

// Routes from one trainer that bring the same box of several tensors to several workers.
struct Bundle {
  uint32_t want = 0;
  uint32_t holding = 0;  // The place of the trainer's shards in TensorClasses::held().
  Copies copies;
  bool relayed = false;  // By a worker: `holding` is a place in TensorClasses::wanted().
};

// The ranks, tensors and wants that the bundles of a plan refer to.
struct PlannedRanks {
  RankClasses trainers;
  RankClasses workers;
  TensorClasses tensors;
  std::vector<Recipient> destinations;
  std::vector<Want> wants;
  bool relays = false;  // The workers are counted as trainers, too, behind the others.
};

// Immutable once the last bundle is added and Finish() was called; any number of threads may read.
class Bundles {
 public:
  explicit Bundles(std::shared_ptr<const PlannedRanks> ranks) : ranks_(std::move(ranks)) {}

  // `first` is the route of the first tensor to the first destination; its axes and box are those
  // of all routes of the bundle.
  void Add(const Bundle& bundle, const RouteView& first);
  // Replaces the workers' shards in all routes: shard `s` of worker `w` becomes shards[w][s].
  void RenameShards(std::vector<std::vector<uint32_t>> shards) { shards_ = std::move(shards); }
  void Finish();

  const PlannedRanks& ranks() const { return *ranks_; }
  const std::shared_ptr<const PlannedRanks>& shared_ranks() const { return ranks_; }
  uint32_t size() const { return static_cast<uint32_t>(bundles_.size()); }
  const Bundle& bundle(uint32_t i) const { return bundles_[i]; }
  const RouteTable& first_routes() const { return first_routes_; }

  // With relays, worker w sends as trainer first_relay() + w.
  uint32_t first_relay() const { return ranks_->trainers.rank_count(); }
  uint32_t trainer_count() const {
    return first_relay() + (ranks_->relays ? ranks_->workers.rank_count() : 0);
  }
  uint32_t worker_count() const { return ranks_->workers.rank_count(); }
  uint32_t route_count(uint32_t trainer, uint32_t worker) const {
    return first_ledger_entry(trainer + 1, worker) - first_ledger_entry(trainer, worker);
  }
  uint32_t route_count_to(uint32_t worker) const {
    return first_ledger_entry(trainer_count(), worker);
  }
  // Returns where a trainer's routes begin in a worker's ledger; trainer_count() is allowed.
  uint32_t first_ledger_entry(uint32_t trainer, uint32_t worker) const {
    return ledger_begins_[size_t{trainer} * worker_count() + worker];
  }
  uint64_t route_count() const { return route_count_; }
  uint64_t trainer_bytes(uint32_t trainer) const { return trainer_bytes_[trainer]; }
  uint64_t worker_bytes(uint32_t worker) const { return worker_bytes_[worker]; }
  // Returns what each trainer sends to a worker.
  std::vector<uint64_t> BytesTo(uint32_t worker) const;

  // See Plan::TrainerRoutes() and Plan::WorkerRoutes().
  BundledRoutes TrainerBundles(uint32_t trainer) const;
  BundledRoutes WorkerBundles(uint32_t worker) const;

  // Returns a digest of all bundles and of the places of their routes.
  uint64_t Digest() const;

 private:
  absl::Span<const uint32_t> BundlesOf(uint32_t trainer) const;
  // Calls visit(bundle, destination) for each bundle that brings something to a worker, whose place
  // among the want's destinations is `destination`.
  template <typename Visit>
  void ForEachBundleTo(uint32_t worker, Visit visit) const;
  const RankClasses& SendersOf(const Bundle& bundle) const {
    return bundle.relayed ? ranks_->workers : ranks_->trainers;
  }
  const Holding& HeldBy(const Bundle& bundle, uint32_t member) const;
  const Holding& WantedBy(const Bundle& bundle, uint32_t member, uint32_t destination) const;
  uint32_t WorkerOf(uint32_t bundle, uint32_t destination) const;
  // Adds the routes of a bundle to some of its destinations.
  void AddRoutes(uint32_t bundle, uint32_t first_destination, uint32_t last_destination,
                 BundledRoutes& out) const;
  // Notes where the tensors of a bundle are read.
  void AddSources(uint32_t bundle);
  // Adds where the tensors of a bundle are written at a destination.
  void AddDestinations(uint32_t bundle, uint32_t destination, BundledRoutes& out) const;

  std::shared_ptr<const PlannedRanks> ranks_;
  std::vector<Bundle> bundles_;
  RouteTable first_routes_;  // By bundle.
  // By bundle and tensor: where it is read. Each worker's table has that of the bundles to it.
  std::vector<uint32_t> source_shards_, source_regions_, scale_tables_;
  std::vector<uint64_t> source_offsets_bytes_;
  std::vector<size_t> source_ends_;  // By bundle.
  std::vector<std::vector<uint32_t>> shards_;

  std::vector<uint32_t> by_trainer_;  // Bundles, sorted by trainer.
  std::vector<uint32_t> trainer_ends_;
  std::vector<std::vector<uint32_t>> by_want_;                         // Bundles.
  std::vector<std::vector<std::pair<uint32_t, uint32_t>>> by_worker_;  // Wants and destinations.
  std::vector<uint32_t> ledger_begins_;
  std::vector<uint64_t> trainer_bytes_;
  std::vector<uint64_t> worker_bytes_;
  uint64_t route_count_ = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_BUNDLES_H_
