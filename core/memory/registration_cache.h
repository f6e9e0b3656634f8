// Registers each piece of memory once, however many tensors lie in it.
#ifndef WAYBILL_CORE_MEMORY_REGISTRATION_CACHE_H_
#define WAYBILL_CORE_MEMORY_REGISTRATION_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/fabric/fabric.h"

namespace waybill {

// A part of a registered region.
struct Registration {
  RegionId region = RegionId::kNone;
  uint64_t offset_bytes = 0;
};

// Keyed by ranges: memory that lies within a registered range, to its last byte, shares that
// registration. Counted: the fabric forgets a range when the last user of it releases it. Not
// thread-safe. The fabric outlives it.
class RegistrationCache {
 public:
  explicit RegistrationCache(Fabric* fabric) : fabric_(fabric) {}
  RegistrationCache(const RegistrationCache&) = delete;
  RegistrationCache& operator=(const RegistrationCache&) = delete;
  ~RegistrationCache();

  absl::StatusOr<Registration> Acquire(const MemorySpan& memory, absl::string_view name);

  // kInvalidArgument: not a registration that Acquire() gave out and that is still held.
  absl::Status Release(const Registration& registration);

  size_t region_count() const { return entries_.size(); }

 private:
  struct Entry {
    RegionId region;
    uint64_t size_bytes;
    uint32_t users;
  };

  Fabric* fabric_;
  std::multimap<std::byte*, Entry> entries_;  // By first byte.
};

}  // namespace waybill

#endif  // WAYBILL_CORE_MEMORY_REGISTRATION_CACHE_H_
