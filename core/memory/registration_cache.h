// SPDX-License-Identifier: Apache-2.0

// Registers each piece of memory once, even if many tensors lie in it.
#ifndef WAYBILL_CORE_MEMORY_REGISTRATION_CACHE_H_
#define WAYBILL_CORE_MEMORY_REGISTRATION_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <map>

#include "absl/container/flat_hash_map.h"
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

// Memory that lies entirely within a registered range shares that registration. Registrations are
// counted: a range is deregistered when its last user releases it. Not thread-safe. The fabric must
// outlive the cache.
class RegistrationCache {
 public:
  enum class Use : uint8_t {
    kWritten,  // Fabric::Register()
    kRead,     // Fabric::RegisterSource()
  };
  explicit RegistrationCache(Fabric* fabric, Use use = Use::kWritten)
      : fabric_(fabric), use_(use) {}
  RegistrationCache(const RegistrationCache&) = delete;
  RegistrationCache& operator=(const RegistrationCache&) = delete;
  ~RegistrationCache();

  // Registers the memory, or counts one more user of the range that contains it. `name` is for
  // errors.
  absl::StatusOr<Registration> Acquire(const MemorySpan& memory, absl::string_view name);

  // Releases what Acquire() returned.
  //
  // kInvalidArgument: the registration is not held.
  absl::Status Release(const Registration& registration);

  size_t region_count() const { return held_.size(); }

 private:
  struct Range {
    RegionId region = RegionId::kNone;
    uint64_t size_bytes = 0;
  };
  struct Held {
    std::byte* begin = nullptr;
    uint32_t users = 0;
  };

  Fabric* fabric_;
  const Use use_;
  // Registered ranges by their first byte, without those that lie within later ones. So the ends
  // are in order, too, and what contains a piece is the last range that begins before it.
  std::map<std::byte*, Range> ranges_;
  absl::flat_hash_map<RegionId, Held> held_;  // All that are registered.
};

}  // namespace waybill

#endif  // WAYBILL_CORE_MEMORY_REGISTRATION_CACHE_H_
