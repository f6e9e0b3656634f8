// The regions of one local endpoint, their keys, and to which lanes they are granted.
#ifndef WAYBILL_CORE_FABRIC_LOCAL_REGION_TABLE_H_
#define WAYBILL_CORE_FABRIC_LOCAL_REGION_TABLE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/fabric/fabric.h"
#include "core/fabric/shared_pages.h"

namespace waybill::local {

struct OwnRegion {
  MemorySpan memory;
  std::string name;
  std::optional<SharedPages> pages;  // Where it was allocated here.
  uint64_t key = 0;
  std::set<LaneId> grants;
};

class RegionTable {
 public:
  absl::StatusOr<Region> Register(const MemorySpan& memory, absl::string_view name);
  absl::StatusOr<Region> Allocate(uint64_t size_bytes, absl::string_view name);
  absl::Status Release(RegionId id);
  absl::Status Renew(RegionId id, Contents contents);

  // kNotFound: no such region.
  absl::StatusOr<OwnRegion*> Find(RegionId id);
  // Null where no region has the key, or the lane was not granted it.
  OwnRegion* FindGranted(uint64_t key, LaneId lane);
  void ForgetLane(LaneId lane);

 private:
  absl::StatusOr<Region> Add(OwnRegion region);

  uint32_t last_id_ = 0;
  std::map<RegionId, OwnRegion> regions_;
};

}  // namespace waybill::local

#endif  // WAYBILL_CORE_FABRIC_LOCAL_REGION_TABLE_H_
