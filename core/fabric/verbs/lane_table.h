// SPDX-License-Identifier: Apache-2.0

// The lanes of one verbs endpoint, by number.
#ifndef WAYBILL_CORE_FABRIC_VERBS_LANE_TABLE_H_
#define WAYBILL_CORE_FABRIC_VERBS_LANE_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/fabric/fabric.h"
#include "core/fabric/verbs/nic_set.h"
#include "core/fabric/verbs/verbs_lane.h"

namespace waybill::verbs {

class LaneTable {
 public:
  struct Opened {
    std::unique_ptr<VerbsLane> lane;
    UsedNic* nic = nullptr;
  };

  void Add(std::unique_ptr<VerbsLane> lane, UsedNic* nic);
  // The queue pair goes, and all that is known of it.
  void Erase(const VerbsLane& lane);

  // kNotFound: no such lane.
  absl::StatusOr<VerbsLane*> Find(LaneId id) const;
  // Why it failed, or kFailedPrecondition: it is not connected.
  absl::StatusOr<VerbsLane*> FindUsable(LaneId id) const;
  // Returns null if the lane is closed or has failed. Completions and events may still name it.
  VerbsLane* FindLive(uint32_t id) const;
  std::vector<VerbsLane*> ConcernedBy(const NicTrouble& trouble) const;
  // Returns the lanes whose peer's host has not answered for longer than the timeout.
  std::vector<VerbsLane*> SilentFor(absl::Duration most) const;
  // Returns the NIC of a lane, and the index of that NIC's device.
  UsedNic& NicOf(const VerbsLane& lane) const { return *lanes_.at(lane.id()).nic; }
  size_t DeviceOf(const VerbsLane& lane) const { return NicOf(lane).device_index; }

  auto begin() const { return lanes_.begin(); }
  auto end() const { return lanes_.end(); }

 private:
  absl::flat_hash_map<uint32_t, Opened> lanes_;
};

}  // namespace waybill::verbs

#endif  // WAYBILL_CORE_FABRIC_VERBS_LANE_TABLE_H_
