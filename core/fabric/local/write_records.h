// SPDX-License-Identifier: Apache-2.0

// A write, at the end that asks for it and at the one that carries it out.
#ifndef WAYBILL_CORE_FABRIC_LOCAL_WRITE_RECORDS_H_
#define WAYBILL_CORE_FABRIC_LOCAL_WRITE_RECORDS_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/fabric/fabric.h"
#include "core/fabric/local/frames.h"
#include "core/fabric/local/gpu_reader.h"
#include "core/fabric/local/local_lane.h"
#include "core/fabric/region_table.h"

namespace waybill::local {

inline constexpr uint64_t kMaxWriteBytes = uint64_t{16} << 20;

// Makes the record that asks the peer to carry out `write` into its region `destination_key`. Fails
// if this end can tell that the write is wrong.
absl::StatusOr<WriteRecord> MakeRecord(RegionTable& regions, LaneId lane, const Write& write,
                                       uint64_t destination_key);

// Copies what the peer of the lane asked for. kPermissionDenied, kOutOfRange: it may not have it;
// kAborted: it closed the lane. What `gpu` copies is only queued: FinishRecords() has to follow the
// last record, whatever came of it.
absl::Status CarryOutRecord(RegionTable& regions, GpuReader& gpu, LaneId id, LocalLane& lane,
                            const WriteRecord& record);
absl::Status FinishRecords(GpuReader& gpu, LocalLane& lane);

}  // namespace waybill::local

#endif  // WAYBILL_CORE_FABRIC_LOCAL_WRITE_RECORDS_H_
