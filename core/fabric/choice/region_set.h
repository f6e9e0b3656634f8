// SPDX-License-Identifier: Apache-2.0

// The regions of a process on every member fabric at once: allocated by one, registered with the
// others, so that any of them can carry a lane.
#ifndef WAYBILL_CORE_FABRIC_CHOICE_REGION_SET_H_
#define WAYBILL_CORE_FABRIC_CHOICE_REGION_SET_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/fabric/fabric.h"

namespace waybill::choice {

class RegionSet {
 public:
  // Members in order of preference; they outlive it.
  explicit RegionSet(std::vector<Fabric*> members)
      : members_(std::move(members)), unusable_(members_.size()) {}

  absl::StatusOr<Region> Register(const MemorySpan& memory, absl::string_view name);
  absl::StatusOr<Region> RegisterSource(const MemorySpan& memory, absl::string_view name);
  absl::StatusOr<Region> Allocate(uint64_t size_bytes, absl::string_view name);
  absl::Status Release(RegionId id);
  absl::Status Renew(RegionId id, Contents contents);
  absl::StatusOr<std::string> Describe(RegionId id);

  // Returns the member's own number of the region. Fails if the member could not register it.
  absl::StatusOr<RegionId> At(size_t member, RegionId id) const;

  // Not OK: the member could not register some memory, and carries no lanes any more.
  const absl::Status& unusable(size_t member) const { return unusable_[member]; }

 private:
  struct Entry {
    size_t owner = 0;  // The member that made it.
    MemorySpan memory;
    std::string name;
    std::vector<RegionId> ids;            // Indexed by member.
    std::vector<absl::Status> whys = {};  // Of a source: why a member cannot read it.
  };

  // Makes the region with the best member that can.
  absl::StatusOr<Region> MakeByBest(absl::string_view name,
                                    const std::function<absl::StatusOr<Region>(Fabric&)>& make);
  void RegisterWithOthers(Entry& entry);
  absl::StatusOr<Region> Add(Entry entry);
  absl::StatusOr<Entry*> Find(RegionId id);

  const std::vector<Fabric*> members_;
  std::vector<absl::Status> unusable_;
  uint32_t last_id_ = 0;
  std::map<RegionId, Entry> entries_;
};

}  // namespace waybill::choice

#endif  // WAYBILL_CORE_FABRIC_CHOICE_REGION_SET_H_
