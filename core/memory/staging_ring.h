// SPDX-License-Identifier: Apache-2.0

// The memory of a trainer's staging slots. Its size bounds how many bytes a trainer prepares ahead
// of the network.
#ifndef WAYBILL_CORE_MEMORY_STAGING_RING_H_
#define WAYBILL_CORE_MEMORY_STAGING_RING_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/fabric/fabric.h"

namespace waybill {

// Which slot is in use is the caller's to know. Any thread may fill a slot's bytes.
class StagingRing {
 public:
  // Allocates ring_bytes / slot_bytes slots from the fabric, which outlives the ring.
  //
  // kInvalidArgument: not even one slot; kResourceExhausted: no memory for them.
  static absl::StatusOr<StagingRing> Create(Fabric* fabric, uint64_t ring_bytes,
                                            uint64_t slot_bytes);

  RegionId region() const { return region_.id; }
  absl::Span<std::byte> bytes() const { return {region_.memory.data, slot_count_ * slot_bytes_}; }
  uint64_t OffsetOf(uint32_t slot) const { return slot * slot_bytes_; }
  std::byte* BytesOf(uint32_t slot) const { return region_.memory.data + OffsetOf(slot); }
  uint32_t slot_count() const { return slot_count_; }
  uint64_t slot_bytes() const { return slot_bytes_; }

 private:
  Region region_;
  uint64_t slot_bytes_ = 0;
  uint32_t slot_count_ = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_MEMORY_STAGING_RING_H_
