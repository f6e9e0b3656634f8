// SPDX-License-Identifier: Apache-2.0

// The regions of peers that a fabric has imported. No import outlives its lane.
#ifndef WAYBILL_CORE_FABRIC_IMPORT_TABLE_H_
#define WAYBILL_CORE_FABRIC_IMPORT_TABLE_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/status.h"
#include "core/fabric/fabric.h"

namespace waybill {

// `Target` is what a fabric knows of a region at its peer.
template <typename Target>
class ImportTable {
 public:
  struct Import {
    LaneId lane = LaneId::kNone;
    Target target;
  };

  // Numbers are never used again.
  RemoteRegionId Add(LaneId lane, Target target) {
    const RemoteRegionId id{++last_id_};
    imports_.emplace(id, Import{lane, std::move(target)});
    ids_of_lane_[lane].push_back(id);
    return id;
  }

  // kInvalidArgument: the region was not imported, or its lane is closed.
  absl::StatusOr<const Import*> Find(RemoteRegionId id) const {
    const auto found = imports_.find(id);
    if (found == imports_.end()) {
      return absl::InvalidArgumentError("a remote region was not imported, or its lane is closed");
    }
    return &found->second;
  }

  // For a write on `lane`. kInvalidArgument: the region was not imported on this lane.
  absl::StatusOr<const Target*> FindOn(LaneId lane, RemoteRegionId id) const {
    const auto found = imports_.find(id);
    if (found == imports_.end() || found->second.lane != lane) {
      return absl::InvalidArgumentError("a write's destination was not imported on its lane");
    }
    return &found->second.target;
  }

  template <typename Visit>
  void ForEachOn(LaneId lane, Visit visit) {
    const auto ids = ids_of_lane_.find(lane);
    if (ids == ids_of_lane_.end()) return;
    for (const RemoteRegionId id : ids->second) visit(imports_.at(id).target);
  }

  // Forgets an import, and returns it. kInvalidArgument: as Find().
  absl::StatusOr<Import> Remove(RemoteRegionId id) {
    WAYBILL_RETURN_IF_ERROR(Find(id).status());
    auto node = imports_.extract(id);
    std::erase(ids_of_lane_.at(node.mapped().lane), id);
    return std::move(node.mapped());
  }

  // The lane is closed.
  void ForgetLane(LaneId lane) {
    const auto ids = ids_of_lane_.find(lane);
    if (ids == ids_of_lane_.end()) return;
    for (const RemoteRegionId id : ids->second) imports_.erase(id);
    ids_of_lane_.erase(ids);
  }

  size_t size() const { return imports_.size(); }

 private:
  uint32_t last_id_ = 0;
  absl::flat_hash_map<RemoteRegionId, Import> imports_;
  std::map<LaneId, std::vector<RemoteRegionId>> ids_of_lane_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_FABRIC_IMPORT_TABLE_H_
