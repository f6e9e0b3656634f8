// SPDX-License-Identifier: Apache-2.0

#include "core/memory/registration_cache.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace waybill {

RegistrationCache::~RegistrationCache() {
  for (const auto& [region, held] : held_) (void)fabric_->Release(region);
}

absl::StatusOr<Registration> RegistrationCache::Acquire(const MemorySpan& memory,
                                                        absl::string_view name) {
  const auto after = ranges_.upper_bound(memory.data);
  if (after != ranges_.begin()) {
    const auto& [begin, range] = *std::prev(after);
    const auto offset = static_cast<uint64_t>(memory.data - begin);
    if (offset <= range.size_bytes && memory.size_bytes <= range.size_bytes - offset) {
      ++held_.at(range.region).users;
      return Registration{range.region, offset};
    }
  }
  WAYBILL_ASSIGN_OR_RETURN(const Region region, use_ == Use::kRead
                                                    ? fabric_->RegisterSource(memory, name)
                                                    : fabric_->Register(memory, name));
  held_[region.id] = {.begin = memory.data, .users = 1};
  const std::byte* const end = memory.data + memory.size_bytes;
  auto within = ranges_.lower_bound(memory.data);
  while (within != ranges_.end() && within->first + within->second.size_bytes <= end) {
    within = ranges_.erase(within);
  }
  ranges_[memory.data] = {.region = region.id, .size_bytes = memory.size_bytes};
  return Registration{region.id, 0};
}

absl::Status RegistrationCache::Release(const Registration& registration) {
  const auto held = held_.find(registration.region);
  if (held == held_.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "release region ", static_cast<uint32_t>(registration.region), ": it is not held"));
  }
  if (--held->second.users > 0) return absl::OkStatus();
  const auto range = ranges_.find(held->second.begin);
  if (range != ranges_.end() && range->second.region == registration.region) ranges_.erase(range);
  held_.erase(held);
  return fabric_->Release(registration.region);
}

}  // namespace waybill
