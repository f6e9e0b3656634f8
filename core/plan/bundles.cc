#include "core/plan/bundles.h"

#include <algorithm>
#include <string>
#include <tuple>

#include "core/base/sha256.h"
#include "core/plan/route_codec.h"
#include "kernels/digest.h"

namespace waybill {

void Bundles::Add(const Bundle& bundle, const RouteView& first) {
  bundles_.push_back(bundle);
  first_routes_.Add(first);
}

void Bundles::Finish() {
  const uint32_t trainers = trainer_count(), workers = worker_count();
  trainer_bytes_.assign(trainers, 0);
  worker_bytes_.assign(workers, 0);
  trainer_ends_.assign(trainers, 0);
  by_want_.assign(ranks_->wants.size(), {});
  by_worker_.assign(workers, {});
  ledger_begins_.assign((size_t{trainers} + 1) * workers, 0);
  for (uint32_t i = 0; i < size(); ++i) {
    const Bundle& bundle = bundles_[i];
    const Want& want = ranks_->wants[bundle.want];
    const uint32_t trainer = first_routes_.trainer(i);
    ++trainer_ends_[trainer];
    by_want_[bundle.want].push_back(i);
    const uint32_t members = bundle.copies.last_member - bundle.copies.first_member;
    const uint64_t bytes = first_routes_.written_bytes(i) * members;
    for (uint32_t d = bundle.copies.first_destination; d < bundle.copies.last_destination; ++d) {
      const uint32_t worker = ranks_->destinations[want.first_destination + d].worker;
      ledger_begins_[(size_t{trainer} + 1) * workers + worker] += members;
      trainer_bytes_[trainer] += bytes;
      worker_bytes_[worker] += bytes;
    }
    route_count_ += bundle.copies.count();
  }
  for (size_t i = workers; i < ledger_begins_.size(); ++i) {
    ledger_begins_[i] += ledger_begins_[i - workers];
  }
  uint32_t begin = 0;
  for (uint32_t& end : trainer_ends_) begin += std::exchange(end, begin);
  by_trainer_.resize(size());
  for (uint32_t i = 0; i < size(); ++i) by_trainer_[trainer_ends_[first_routes_.trainer(i)]++] = i;
  for (uint32_t w = 0; w < ranks_->wants.size(); ++w) {
    const Want& want = ranks_->wants[w];
    for (uint32_t d = want.first_destination; d < want.last_destination; ++d) {
      by_worker_[ranks_->destinations[d].worker].emplace_back(w, d - want.first_destination);
    }
  }
}

absl::Span<const uint32_t> Bundles::BundlesOf(uint32_t trainer) const {
  const uint32_t begin = trainer == 0 ? 0 : trainer_ends_[trainer - 1];
  return absl::MakeConstSpan(by_trainer_).subspan(begin, trainer_ends_[trainer] - begin);
}

const Holding& Bundles::HeldBy(const Bundle& bundle, uint32_t member) const {
  const TensorClasses& tensors = ranks_->tensors;
  const uint32_t tensor = tensors.members(ranks_->wants[bundle.want].tensor_class)[member];
  return (bundle.relayed ? tensors.wanted(tensor) : tensors.held(tensor))[bundle.holding];
}

const Holding& Bundles::WantedBy(const Bundle& bundle, uint32_t member,
                                 uint32_t destination) const {
  const TensorClasses& tensors = ranks_->tensors;
  const Want& want = ranks_->wants[bundle.want];
  const uint32_t tensor = tensors.members(want.tensor_class)[member];
  return tensors.wanted(tensor)[ranks_->destinations[want.first_destination + destination].holding];
}

Bundles::Routed Bundles::MakeRouted(uint32_t bundle, uint32_t member, uint32_t destination) const {
  const Bundle& of = bundles_[bundle];
  const Holding& first = WantedBy(of, of.copies.first_member, of.copies.first_destination);
  const Holding& own = WantedBy(of, member, destination);
  const Manifest& manifest = ranks_->workers.manifest(own.rank_class);
  const uint64_t within = first_routes_.destination_offset(bundle) -
                          ranks_->workers.manifest(first.rank_class).shard_offset(first.shard);
  return {bundle, member, destination, manifest.shard_region(own.shard),
          manifest.shard_offset(own.shard) + within};
}

// A worker's memory is written in its order, so that neighbours become one write.
void Bundles::SortBySendingOrder(std::vector<Routed>& routes) {
  std::sort(routes.begin(), routes.end(), [](const Routed& a, const Routed& b) {
    return std::tie(a.destination_region, a.destination_offset_bytes, a.bundle, a.member) <
           std::tie(b.destination_region, b.destination_offset_bytes, b.bundle, b.member);
  });
}

void Bundles::AddRoute(const Routed& routed, RouteTable& table) const {
  const Bundle& bundle = bundles_[routed.bundle];
  const Want& want = ranks_->wants[bundle.want];
  RouteView route = first_routes_[routed.bundle];
  const uint32_t members_on = routed.member - bundle.copies.first_member;
  if (route.scale_table != kNoScaleTable) route.scale_table += members_on;
  if (first_routes_.reads_scales(routed.bundle)) {
    route.source_shard = HeldBy(bundle, routed.member).shard;
    route.source_region += members_on;
  } else {
    const Holding& first = HeldBy(bundle, bundle.copies.first_member);
    const Holding& own = HeldBy(bundle, routed.member);
    const Manifest& manifest = SendersOf(bundle).manifest(own.rank_class);
    route.source_shard = own.shard;
    route.source_region = manifest.shard_region(own.shard);
    route.source_offset_bytes +=
        manifest.shard_offset(own.shard) - manifest.shard_offset(first.shard);
  }
  route.worker = ranks_->destinations[want.first_destination + routed.destination].worker;
  route.destination_shard = WantedBy(bundle, routed.member, routed.destination).shard;
  if (!shards_.empty()) route.destination_shard = shards_[route.worker][route.destination_shard];
  route.destination_region = routed.destination_region;
  route.destination_offset_bytes = routed.destination_offset_bytes;
  table.Add(route);
}

// Each trainer starts at another worker, so that no worker's link is crowded at the start.
RouteTable Bundles::TrainerRoutes(uint32_t trainer) const {
  std::vector<std::vector<Routed>> to(worker_count());
  for (const uint32_t i : BundlesOf(trainer)) {
    const Copies& copies = bundles_[i].copies;
    const Want& want = ranks_->wants[bundles_[i].want];
    for (uint32_t d = copies.first_destination; d < copies.last_destination; ++d) {
      std::vector<Routed>& routes = to[ranks_->destinations[want.first_destination + d].worker];
      for (uint32_t m = copies.first_member; m < copies.last_member; ++m) {
        routes.push_back(MakeRouted(i, m, d));
      }
    }
  }
  RouteTable table;
  const uint32_t workers = worker_count();
  const auto start = static_cast<uint32_t>(uint64_t{trainer} * workers / trainer_count() % workers);
  for (uint32_t i = 0; i < workers; ++i) {
    const uint32_t worker = (start + i) % workers;
    SortBySendingOrder(to[worker]);
    for (const Routed& routed : to[worker]) AddRoute(routed, table);
  }
  return table;
}

template <typename Visit>
void Bundles::ForEachBundleTo(uint32_t worker, Visit visit) const {
  for (const auto& [want, destination] : by_worker_[worker]) {
    for (const uint32_t i : by_want_[want]) {
      const Copies& copies = bundles_[i].copies;
      if (destination < copies.first_destination || destination >= copies.last_destination) {
        continue;
      }
      visit(i, destination);
    }
  }
}

std::vector<uint64_t> Bundles::BytesTo(uint32_t worker) const {
  std::vector<uint64_t> bytes(trainer_count());
  ForEachBundleTo(worker, [&](uint32_t i, uint32_t /*destination*/) {
    const Copies& copies = bundles_[i].copies;
    bytes[first_routes_.trainer(i)] +=
        first_routes_.written_bytes(i) * (copies.last_member - copies.first_member);
  });
  return bytes;
}

RouteTable Bundles::WorkerRoutes(uint32_t worker) const {
  std::vector<std::vector<Routed>> from(trainer_count());
  ForEachBundleTo(worker, [&](uint32_t i, uint32_t destination) {
    const Copies& copies = bundles_[i].copies;
    std::vector<Routed>& routes = from[first_routes_.trainer(i)];
    for (uint32_t m = copies.first_member; m < copies.last_member; ++m) {
      routes.push_back(MakeRouted(i, m, destination));
    }
  });
  RouteTable table;
  table.Reserve(route_count_to(worker));
  for (std::vector<Routed>& routes : from) {
    SortBySendingOrder(routes);
    for (const Routed& routed : routes) AddRoute(routed, table);
  }
  return table;
}

// Appends where the routes of a bundle to one of its destinations begin in both ranks' memory.
void Bundles::AppendPlaces(uint32_t bundle, uint32_t destination,
                           std::vector<uint64_t>& places) const {
  const Bundle& of = bundles_[bundle];
  const uint32_t worker =
      ranks_->destinations[ranks_->wants[of.want].first_destination + destination].worker;
  const auto append = [&](const RankClasses& ranks, const Holding& holding) {
    const Manifest& manifest = ranks.manifest(holding.rank_class);
    places.insert(places.end(), {holding.shard, manifest.shard_region(holding.shard),
                                 manifest.shard_offset(holding.shard)});
  };
  places.insert(places.end(), {worker, uint64_t{of.copies.last_member} - of.copies.first_member});
  for (uint32_t m = of.copies.first_member; m < of.copies.last_member; ++m) {
    append(SendersOf(of), HeldBy(of, m));
    const Holding& wanted = WantedBy(of, m, destination);
    append(ranks_->workers, wanted);
    if (!shards_.empty()) places.push_back(shards_[worker][wanted.shard]);
  }
}

// A rank chooses part of what others' tables hold, and must not make two of them pass for one.
std::string Bundles::DigestOf(const RouteTable& first_routes, const std::vector<uint64_t>& places) {
  return Sha256(EncodeRoutes(first_routes)) +
         Sha256({reinterpret_cast<const char*>(places.data()), places.size() * sizeof(uint64_t)});
}

std::string Bundles::TrainerDigest(uint32_t trainer) const {
  RouteTable first_routes;
  std::vector<uint64_t> places = {worker_count(), trainer_count()};  // The order of its workers.
  for (const uint32_t i : BundlesOf(trainer)) {
    first_routes.Add(first_routes_[i]);
    const Copies& copies = bundles_[i].copies;
    for (uint32_t d = copies.first_destination; d < copies.last_destination; ++d) {
      AppendPlaces(i, d, places);
    }
  }
  return DigestOf(first_routes, places);
}

std::string Bundles::WorkerDigest(uint32_t worker) const {
  RouteTable first_routes;
  std::vector<uint64_t> places;
  ForEachBundleTo(worker, [&](uint32_t i, uint32_t destination) {
    first_routes.Add(first_routes_[i]);
    AppendPlaces(i, destination, places);
  });
  return DigestOf(first_routes, places);
}

uint64_t Bundles::Digest() const {
  // The first routes, what each bundle has besides, and the places of all shards that are used.
  std::vector<uint64_t> digests;
  const auto add = [&](const auto& values) {
    digests.push_back(kernels::Digest(values.data(), values.size() * sizeof(values[0])));
  };
  add(EncodeRoutes(first_routes_));
  add(ledger_begins_);
  std::vector<uint64_t> places;
  const auto place = [&](const RankClasses& ranks, const Holding& h) {
    const Manifest& manifest = ranks.manifest(h.rank_class);
    places.insert(places.end(), {h.rank_class, h.shard, manifest.shard_region(h.shard),
                                 manifest.shard_offset(h.shard)});
  };
  const TensorClasses& tensors = ranks_->tensors;
  for (uint32_t c = 0; c < tensors.size(); ++c) {
    for (const uint32_t tensor : tensors.members(c)) {
      for (const Holding& h : tensors.held(tensor)) place(ranks_->trainers, h);
      for (const Holding& h : tensors.wanted(tensor)) place(ranks_->workers, h);
    }
    add(places);
    places.clear();
  }
  for (const Bundle& bundle : bundles_) {
    const Copies& c = bundle.copies;
    places.insert(places.end(), {bundle.want, bundle.holding, c.first_member, c.last_member,
                                 c.first_destination, c.last_destination});
  }
  for (const Recipient& d : ranks_->destinations) {
    places.insert(places.end(), {d.worker, d.holding});
  }
  for (const auto& shards : shards_) places.insert(places.end(), shards.begin(), shards.end());
  add(places);
  return kernels::Digest(digests.data(), digests.size() * sizeof(uint64_t));
}

}  // namespace waybill
