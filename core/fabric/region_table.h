// SPDX-License-Identifier: Apache-2.0

// The regions of one endpoint of a fabric whose peers' writes are checked by this process: their
// keys, and to which lanes they are granted.
#ifndef WAYBILL_CORE_FABRIC_REGION_TABLE_H_
#define WAYBILL_CORE_FABRIC_REGION_TABLE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/fabric/fabric.h"
#include "core/fabric/shared_pages.h"

namespace waybill {

struct OwnRegion {
  RegionId id = RegionId::kNone;
  MemorySpan memory;
  std::string name;
  std::optional<SharedPages> pages;  // Set if it was allocated here.
  uint64_t key = 0;                  // 64 random bits. Each renewal draws new ones.
  std::set<LaneId> grants;
};

struct Destination {
  RegionId region = RegionId::kNone;
  MemoryKind kind = MemoryKind::kHost;
  std::byte* data = nullptr;
};

class RegionTable {
 public:
  enum class Renewal : uint8_t {
    kKeys,   // Nobody else has the pages, so they can stay.
    kPages,  // Peers have mapped the pages of what was allocated: fresh ones take their place.
  };

  explicit RegionTable(Renewal renewal) : renewal_(renewal) {}

  absl::StatusOr<Region> Register(const MemorySpan& memory, absl::string_view name);
  absl::StatusOr<Region> Allocate(uint64_t size_bytes, absl::string_view name);
  absl::Status Release(RegionId id);
  absl::Status Renew(RegionId id, Contents contents);

  // kNotFound: no such region.
  absl::StatusOr<OwnRegion*> Find(RegionId id);
  // Returns where a peer's write goes. kPermissionDenied: no region has the key, or the lane was
  // not granted it. kOutOfRange: the write does not lie within it.
  absl::StatusOr<Destination> FindDestination(LaneId lane, uint64_t key, uint64_t offset_bytes,
                                              uint64_t size_bytes) const;
  // Returns where a write reads from. kOutOfRange: it does not lie within its region.
  absl::StatusOr<const std::byte*> FindSource(const Write& write) const;
  void ForgetLane(LaneId lane);

 private:
  absl::StatusOr<Region> Add(OwnRegion region);

  const Renewal renewal_;
  uint32_t last_id_ = 0;
  std::map<RegionId, OwnRegion> regions_;
  std::unordered_map<uint64_t, RegionId> by_key_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_FABRIC_REGION_TABLE_H_
