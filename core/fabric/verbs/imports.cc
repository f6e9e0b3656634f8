// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/verbs/imports.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace waybill::verbs {
namespace {

absl::Status NotGranted(const VerbsLane& lane) {
  return absl::FailedPreconditionError(
      absl::StrCat("a region of ", lane.peer(),
                   " is not granted on this lane, or was renewed since it was described"));
}

absl::Status CheckRange(absl::string_view what, uint64_t offset, uint64_t size,
                        absl::string_view name, uint64_t region_bytes) {
  if (offset <= region_bytes && size <= region_bytes - offset) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat(what, " of ", size, " bytes at offset ", offset,
                                            " of \"", name, "\", which has ", region_bytes));
}

}  // namespace

std::string DescribeKey(uint64_t key) { return absl::StrCat(absl::Hex(key, absl::kZeroPad16)); }

absl::StatusOr<RemoteRegionId> Imports::Add(const VerbsLane& lane, absl::string_view descriptor) {
  uint64_t key = 0;
  if (descriptor.size() != 16 || !absl::SimpleHexAtoi(descriptor, &key)) {
    return absl::InvalidArgumentError(
        absl::StrCat("import a region: \"", descriptor.substr(0, 100), "\""));
  }
  const auto granted = lane.granted_by_peer.find(key);
  if (granted == lane.granted_by_peer.end()) return NotGranted(lane);
  return imports_.Add(LaneId{lane.id()}, {key, granted->second});
}

absl::Status Imports::Check(RemoteRegionId id) const { return imports_.Find(id).status(); }

void Imports::Revoke(const VerbsLane& lane, uint64_t key) {
  imports_.ForEachOn(LaneId{lane.id()}, [&](Import& import) {
    if (import.key == key) import.revoked = true;
  });
}

absl::StatusOr<RemoteWrite> Imports::Resolve(const VerbsLane& lane, size_t device, Regions& regions,
                                             const Write& write) const {
  WAYBILL_ASSIGN_OR_RETURN(const Import* found,
                           imports_.FindOn(LaneId{lane.id()}, write.destination));
  const Import& to = *found;
  if (to.revoked) return NotGranted(lane);
  WAYBILL_ASSIGN_OR_RETURN(const OwnRegion* from, regions.FindUsable(write.source));
  WAYBILL_RETURN_IF_ERROR(CheckRange("read", write.source_offset_bytes, write.size_bytes,
                                     from->name, from->memory.size_bytes));
  WAYBILL_RETURN_IF_ERROR(CheckRange("write", write.destination_offset_bytes, write.size_bytes,
                                     to.region.name, to.region.size_bytes));
  RemoteWrite resolved{
      .local_address = reinterpret_cast<uintptr_t>(from->memory.data) + write.source_offset_bytes,
      .remote_address = to.region.address + write.destination_offset_bytes,
      .size_bytes = write.size_bytes,
      .remote_key = to.region.remote_key,
      .may_inline = from->memory.kind != MemoryKind::kDevice};
  if (!from->bounced) resolved.local_key = from->registrations[device]->lkey;
  if (write.size_bytes > 0) {
    if (from->bounced) resolved.copied_from = from->memory.data + write.source_offset_bytes;
    resolved.bounced = to.region.bounced;
    resolved.bounced_key = to.key;
  }
  return resolved;
}

}  // namespace waybill::verbs
