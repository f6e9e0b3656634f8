// SPDX-License-Identifier: Apache-2.0

// The manifests of all ranks of a side.
#ifndef WAYBILL_CORE_LAYOUT_EVERY_RANK_H_
#define WAYBILL_CORE_LAYOUT_EVERY_RANK_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/status.h"
#include "core/tensor/manifest.h"

namespace waybill {

// Returns the manifests of all ranks of a TrainerSharding or a WorkerSharding. Calls make(rank),
// which returns an absl::StatusOr<Manifest>, for the first rank of each kind: ranks that hold the
// same share its manifest.
template <typename Sharding, typename Make>
absl::StatusOr<std::vector<Manifest>> MakeManifests(const Sharding& sharding, bool has_experts,
                                                    Make make) {
  std::vector<Manifest> manifests;
  manifests.reserve(sharding.world());
  for (uint32_t rank = 0; rank < sharding.world(); ++rank) {
    if (const uint32_t first = sharding.FirstLike(rank, has_experts); first < rank) {
      manifests.push_back(manifests[first]);
    } else {
      WAYBILL_ASSIGN_OR_RETURN(Manifest manifest, make(rank));
      manifests.push_back(std::move(manifest));
    }
  }
  return manifests;
}

// Returns pointers to manifests, which outlive them, as MakePlan() takes them.
inline std::vector<const Manifest*> PointersTo(const std::vector<Manifest>& manifests) {
  std::vector<const Manifest*> pointers;
  pointers.reserve(manifests.size());
  for (const Manifest& manifest : manifests) pointers.push_back(&manifest);
  return pointers;
}

}  // namespace waybill

#endif  // WAYBILL_CORE_LAYOUT_EVERY_RANK_H_
