// A bounded ring of staging slots: how many bytes a trainer may prepare ahead of the network is a
// promise, not a habit.
#ifndef WAYBILL_CORE_MEMORY_STAGING_RING_H_
#define WAYBILL_CORE_MEMORY_STAGING_RING_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/fabric/fabric.h"

namespace waybill {

// Not thread-safe: lives on the progress thread. The slots' bytes may be filled by any.
class StagingRing {
 public:
  static constexpr uint32_t kNoSlot = ~uint32_t{0};

  // Allocates ring_bytes / slot_bytes slots from the fabric, which outlives the ring.
  //
  // kInvalidArgument: not even one slot; kResourceExhausted: no memory for them.
  static absl::StatusOr<StagingRing> Create(Fabric* fabric, uint64_t ring_bytes,
                                            uint64_t slot_bytes);

  // kNoSlot where all are taken.
  uint32_t Take();
  void Return(uint32_t slot);
  void ReturnAll();

  RegionId region() const { return region_.id; }
  absl::Span<std::byte> bytes() const { return {region_.memory.data, slot_count_ * slot_bytes_}; }
  uint64_t OffsetOf(uint32_t slot) const { return slot * slot_bytes_; }
  std::byte* BytesOf(uint32_t slot) const { return region_.memory.data + OffsetOf(slot); }
  uint32_t slot_count() const { return slot_count_; }
  uint64_t slot_bytes() const { return slot_bytes_; }
  // The most bytes of slots that were ever taken at a time.
  uint64_t high_water_bytes() const { return high_water_ * slot_bytes_; }

 private:
  Region region_;
  uint64_t slot_bytes_ = 0;
  uint32_t slot_count_ = 0;
  uint64_t high_water_ = 0;
  std::vector<uint32_t> free_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_MEMORY_STAGING_RING_H_
