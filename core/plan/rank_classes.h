// SPDX-License-Identifier: Apache-2.0

// One side of a plan, all senders or all receivers, grouped into classes of ranks with equal
// manifests.
#ifndef WAYBILL_CORE_PLAN_RANK_CLASSES_H_
#define WAYBILL_CORE_PLAN_RANK_CLASSES_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "core/tensor/manifest.h"

namespace waybill {

// Replicas have equal manifests, so a job of hundreds of ranks often has few classes. Classes are
// numbered in the order of their first ranks. Immutable; copies the manifests that it needs.
class RankClasses {
 public:
  RankClasses() = default;
  // manifests[i] is the manifest of rank i. Copies of one manifest are recognised without comparing
  // shards.
  explicit RankClasses(absl::Span<const Manifest* const> manifests);

  uint32_t rank_count() const { return static_cast<uint32_t>(class_of_.size()); }
  uint32_t class_of(uint32_t rank) const { return class_of_[rank]; }

  uint32_t size() const { return static_cast<uint32_t>(manifests_.size()); }
  // Returns a class's manifest. Its host, rack and NICs are those of the class's first rank.
  const Manifest& manifest(uint32_t rank_class) const { return manifests_[rank_class]; }
  // Returns the ranks of a class, in order.
  absl::Span<const uint32_t> ranks(uint32_t rank_class) const { return ranks_[rank_class]; }

 private:
  std::vector<Manifest> manifests_;
  std::vector<std::vector<uint32_t>> ranks_;
  std::vector<uint32_t> class_of_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_RANK_CLASSES_H_
