// SPDX-License-Identifier: Apache-2.0

// Cuts what a rank holds into units by which replicas are compared: ranks that hold the same shard
// have the same units, wherever the shard lies in their memory.
#ifndef WAYBILL_CORE_TENSOR_REPLICA_UNITS_H_
#define WAYBILL_CORE_TENSOR_REPLICA_UNITS_H_

#include <cstdint>
#include <vector>

#include "core/tensor/manifest.h"

namespace waybill {

// A 64th of a shard's elements in row-major order, but within these bounds and rounded up to a
// power of two, or what is left of them. A GPU takes as long to begin with a unit as to read some
// MiB of it.
inline constexpr uint64_t kLeastReplicaUnitBytes = 64 << 10;
inline constexpr uint64_t kMostReplicaUnitBytes = 1 << 20;

struct ReplicaUnit {
  uint64_t key = 0;  // Of this unit on any rank, and of no other but by accident.
  uint32_t shard = 0;
  uint64_t begin_bytes = 0;
  uint64_t end_bytes = 0;
};

class ReplicaUnits {
 public:
  explicit ReplicaUnits(const Manifest& manifest);

  // Returns the units whose turn it is in a version, by key. Each has its turn once in as many
  // versions as a power of two says, at most 1024, and four units or more have it at a time if
  // there are as many.
  std::vector<ReplicaUnit> TurnOf(uint64_t version) const;
  // Returns the shard that a unit with this key is of, or the number of shards if there is none.
  uint32_t FindShard(uint64_t key) const;

 private:
  template <typename Visit>
  void ForEach(Visit visit) const;

  // By shard.
  std::vector<uint64_t> keys_;
  std::vector<uint64_t> sizes_bytes_;
  uint64_t turns_ = 1;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_TENSOR_REPLICA_UNITS_H_
