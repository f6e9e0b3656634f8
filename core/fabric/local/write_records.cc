// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/local/write_records.h"

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "kernels/copy.h"

namespace waybill::local {
namespace {

bool Within(const MemorySpan& memory, uint64_t offset_bytes, uint64_t size_bytes) {
  return offset_bytes <= memory.size_bytes && size_bytes <= memory.size_bytes - offset_bytes;
}

absl::Status EndReading(LocalLane& lane) {
  if (lane.peer_permit->EndReading()) return absl::OkStatus();
  return absl::AbortedError("the peer closed the lane during a write");
}

}  // namespace

absl::StatusOr<WriteRecord> MakeRecord(RegionTable& regions, LaneId lane, const Write& write,
                                       uint64_t destination_key) {
  WAYBILL_ASSIGN_OR_RETURN(const OwnRegion* source, regions.Find(write.source));
  if (write.size_bytes > kMaxWriteBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("write of ", write.size_bytes, " bytes, at most ", kMaxWriteBytes));
  }
  const bool readable = source->pages || source->memory.kind == MemoryKind::kDevice;
  if (!readable || !source->grants.contains(lane)) {
    return absl::FailedPreconditionError(
        absl::StrCat("write from \"", source->name,
                     "\": on the local fabric the source is a region allocated by it and granted "
                     "to the lane, or a GPU's"));
  }
  WAYBILL_RETURN_IF_ERROR(regions.FindSource(write).status());
  return WriteRecord{.source_key = source->key,
                     .source_offset_bytes = write.source_offset_bytes,
                     .destination_key = destination_key,
                     .destination_offset_bytes = write.destination_offset_bytes,
                     .size_bytes = write.size_bytes};
}

absl::Status CarryOutRecord(RegionTable& regions, GpuReader& gpu, LaneId id, LocalLane& lane,
                            const WriteRecord& record) {
  PeerRegion* source = lane.FindGrantedByPeer(record.source_key);
  if (source == nullptr) {
    return absl::PermissionDeniedError("a write from a region that is not granted on its lane");
  }
  WAYBILL_ASSIGN_OR_RETURN(
      const Destination to,
      regions.FindDestination(id, record.destination_key, record.destination_offset_bytes,
                              record.size_bytes));
  WAYBILL_ASSIGN_OR_RETURN(const MemorySpan from, source->Memory(gpu.receiver()));
  if (!Within(from, record.source_offset_bytes, record.size_bytes)) {
    return absl::OutOfRangeError(absl::StrCat("write of ", record.size_bytes, " bytes from offset ",
                                              record.source_offset_bytes, " of a region of ",
                                              from.size_bytes));
  }
  const bool by_gpu = to.kind == MemoryKind::kDevice || from.kind == MemoryKind::kDevice;
  if (!by_gpu && gpu.has_queued()) WAYBILL_RETURN_IF_ERROR(FinishRecords(gpu, lane));
  if (!gpu.has_queued() && !lane.peer_permit->BeginReading()) {
    return absl::AbortedError("the peer closed the lane");
  }
  if (by_gpu) {
    return gpu.Copy(to.data, from.data + record.source_offset_bytes, record.size_bytes,
                    {record.source_key, record.destination_key});
  }
  kernels::Copy(to.data, from.data + record.source_offset_bytes, record.size_bytes,
                kernels::Stores::kStreaming);
  return EndReading(lane);
}

absl::Status FinishRecords(GpuReader& gpu, LocalLane& lane) {
  if (!gpu.has_queued()) return absl::OkStatus();
  absl::Status status = gpu.Finish();
  status.Update(EndReading(lane));
  return status;
}

}  // namespace waybill::local
