// SPDX-License-Identifier: Apache-2.0

// The regions that peers granted and this end imported, and the lookup of both ends of a write.
#ifndef WAYBILL_CORE_FABRIC_VERBS_IMPORTS_H_
#define WAYBILL_CORE_FABRIC_VERBS_IMPORTS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/fabric/fabric.h"
#include "core/fabric/import_table.h"
#include "core/fabric/verbs/regions.h"
#include "core/fabric/verbs/send_queue.h"
#include "core/fabric/verbs/verbs_lane.h"

namespace waybill::verbs {

class Imports {
 public:
  // kFailedPrecondition: not granted on this lane; kInvalidArgument: no descriptor.
  absl::StatusOr<RemoteRegionId> Add(const VerbsLane& lane, absl::string_view descriptor);
  // kInvalidArgument: was not imported.
  absl::Status Check(RemoteRegionId id) const;
  // kInvalidArgument: was not imported.
  absl::Status End(RemoteRegionId id) { return imports_.Remove(id).status(); }
  void ForgetLane(LaneId lane) { imports_.ForgetLane(lane); }
  // The peer took its grant back.
  void Revoke(const VerbsLane& lane, uint64_t key);

  // The write with its addresses and keys, on a lane of the device of that index, after every check
  // that this end can make.
  absl::StatusOr<RemoteWrite> Resolve(const VerbsLane& lane, size_t device, Regions& regions,
                                      const Write& write) const;

 private:
  struct Import {
    uint64_t key = 0;
    PeerRegion region;
    bool revoked = false;
  };
  ImportTable<Import> imports_;
};

// A region's description, for peers.
std::string DescribeKey(uint64_t key);

}  // namespace waybill::verbs

#endif  // WAYBILL_CORE_FABRIC_VERBS_IMPORTS_H_
