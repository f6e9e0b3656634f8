// SPDX-License-Identifier: Apache-2.0

// Joins pieces of memory that lie side by side, so that many tensors are registered and granted as
// one region.
#ifndef WAYBILL_CORE_MEMORY_NEIGHBOURS_H_
#define WAYBILL_CORE_MEMORY_NEIGHBOURS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/types/span.h"
#include "core/fabric/fabric.h"

namespace waybill {

struct JoinedMemory {
  struct Range {
    MemorySpan memory;
    uint32_t first = 0;  // The index of the piece with which it begins.
    uint32_t count = 0;  // The number of its pieces.
  };
  struct Place {
    uint32_t range = 0;
    uint64_t offset_bytes = 0;
  };
  std::vector<Range> ranges;  // By address.
  std::vector<Place> places;  // Indexed by piece.
};

// Joins pieces of one kind that overlap or between which there are at most 512 bytes, which is as
// far as allocators round up. `may_join` says of two pieces of a device's memory whether they are
// of one allocation.
JoinedMemory JoinNeighbours(
    absl::Span<const MemorySpan> pieces,
    const std::function<bool(const MemorySpan& before, const MemorySpan& after)>& may_join);

}  // namespace waybill

#endif  // WAYBILL_CORE_MEMORY_NEIGHBOURS_H_
