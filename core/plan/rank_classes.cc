// SPDX-License-Identifier: Apache-2.0

#include "core/plan/rank_classes.h"

#include "absl/container/flat_hash_map.h"

namespace waybill {
namespace {

struct HoldingsHash {
  size_t operator()(const Manifest* manifest) const { return manifest->HashOfHoldings(); }
};
struct HoldingsEqual {
  bool operator()(const Manifest* a, const Manifest* b) const { return a->HoldsTheSame(*b); }
};

}  // namespace

RankClasses::RankClasses(absl::Span<const Manifest* const> manifests) {
  absl::flat_hash_map<const Manifest*, uint32_t, HoldingsHash, HoldingsEqual> classes;
  for (uint32_t rank = 0; rank < manifests.size(); ++rank) {
    const Manifest* manifest = manifests[rank];
    // Replicas are often neighbours, and a manifest of many shards takes long to hash.
    if (rank > 0 && manifest->SharesHoldingsWith(*manifests[rank - 1])) {
      class_of_.push_back(class_of_.back());
    } else {
      const auto [known, is_new] =
          classes.try_emplace(manifest, static_cast<uint32_t>(manifests_.size()));
      if (is_new) {
        manifests_.push_back(*manifest);
        ranks_.emplace_back();
      }
      class_of_.push_back(known->second);
    }
    ranks_[class_of_.back()].push_back(rank);
  }
}

}  // namespace waybill
