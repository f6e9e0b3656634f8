#include "core/memory/registration_cache.h"

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace waybill {

RegistrationCache::~RegistrationCache() {
  for (const auto& [begin, entry] : entries_) (void)fabric_->Release(entry.region);
}

absl::StatusOr<Registration> RegistrationCache::Acquire(const MemorySpan& memory,
                                                        absl::string_view name) {
  const auto after = entries_.upper_bound(memory.data);
  for (auto it = entries_.begin(); it != after; ++it) {
    Entry& entry = it->second;
    const auto offset = static_cast<uint64_t>(memory.data - it->first);
    if (offset <= entry.size_bytes && memory.size_bytes <= entry.size_bytes - offset) {
      ++entry.users;
      return Registration{entry.region, offset};
    }
  }
  WAYBILL_ASSIGN_OR_RETURN(const Region region, use_ == Use::kRead
                                                    ? fabric_->RegisterSource(memory, name)
                                                    : fabric_->Register(memory, name));
  entries_.emplace(memory.data, Entry{region.id, memory.size_bytes, 1});
  return Registration{region.id, 0};
}

absl::Status RegistrationCache::Release(const Registration& registration) {
  for (auto it = entries_.begin(); it != entries_.end(); ++it) {
    if (it->second.region != registration.region) continue;
    if (--it->second.users > 0) return absl::OkStatus();
    entries_.erase(it);
    return fabric_->Release(registration.region);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "release region ", static_cast<uint32_t>(registration.region), ": it is not held"));
}

}  // namespace waybill
