// SPDX-License-Identifier: Apache-2.0

#include "core/tensor/replica_units.h"

#include <algorithm>
#include <bit>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/digest.h"

namespace waybill {
namespace {

constexpr uint64_t kMostTurns = 1024;

// The finaliser of splitmix64, as in kernels/README.md: neighbouring units get unrelated keys.
uint64_t Mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

uint64_t UnitBytes(uint64_t shard_bytes) {
  return std::clamp(std::bit_ceil(shard_bytes / 64), kLeastReplicaUnitBytes, kMostReplicaUnitBytes);
}

}  // namespace

ReplicaUnits::ReplicaUnits(const Manifest& manifest) {
  uint64_t units = 0;
  std::string name;
  for (uint32_t s = 0; s < manifest.shard_count(); ++s) {
    const ShardView shard = manifest.shard(s);
    name.clear();
    absl::StrAppend(&name, manifest.tensor_name(shard.tensor_index), "\n", ToString(shard.format),
                    "\n", ToString(shard.box));
    keys_.push_back(kernels::Digest(name.data(), name.size()));
    sizes_bytes_.push_back(manifest.shard_bytes(s));
    const uint64_t unit_bytes = UnitBytes(sizes_bytes_.back());
    units += (sizes_bytes_.back() + unit_bytes - 1) / unit_bytes;
  }
  // A power of two: a rank that holds more, and so has more turns, takes a part of the turn of one
  // that holds less.
  turns_ = std::clamp<uint64_t>(std::bit_floor(units / 4), 1, kMostTurns);
}

template <typename Visit>
void ReplicaUnits::ForEach(Visit visit) const {
  for (uint32_t s = 0; s < keys_.size(); ++s) {
    const uint64_t unit_bytes = UnitBytes(sizes_bytes_[s]);
    for (uint64_t begin = 0; begin < sizes_bytes_[s]; begin += unit_bytes) {
      visit(ReplicaUnit{Mix(keys_[s] + begin), s, begin,
                        std::min(begin + unit_bytes, sizes_bytes_[s])});
    }
  }
}

std::vector<ReplicaUnit> ReplicaUnits::TurnOf(uint64_t version) const {
  std::vector<ReplicaUnit> turn;
  ForEach([&](const ReplicaUnit& unit) {
    if ((unit.key - version) % turns_ == 0) turn.push_back(unit);
  });
  std::sort(turn.begin(), turn.end(),
            [](const ReplicaUnit& a, const ReplicaUnit& b) { return a.key < b.key; });
  return turn;
}

uint32_t ReplicaUnits::FindShard(uint64_t key) const {
  auto found = static_cast<uint32_t>(keys_.size());
  ForEach([&](const ReplicaUnit& unit) {
    if (unit.key == key) found = unit.shard;
  });
  return found;
}

}  // namespace waybill
