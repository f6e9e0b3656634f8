// SPDX-License-Identifier: Apache-2.0

// Describes where the elements of a box lie in two ranks' memory, as one walk through both.
#ifndef WAYBILL_CORE_PLAN_GEOMETRY_H_
#define WAYBILL_CORE_PLAN_GEOMETRY_H_

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/plan/route_table.h"
#include "core/tensor/manifest.h"

namespace waybill {

// Byte offset of `box`'s first element within the region of `shard`; `box` lies in the shard's box.
uint64_t OffsetWithin(const ShardView& shard, const Box& box);

// The axes of `box` between the two shards, as RouteShape describes them; written into `axes`, and
// the part that is used is returned.
//
// With `quantises`, the axes are the box's dimensions, since blocks are found by rows and columns.
absl::Span<const Axis> MakeAxes(const ShardView& source, const ShardView& destination,
                                const Box& box, bool quantises, std::array<Axis, kMaxAxes>& axes);

// kInvalidArgument: rows of `box` that are not neighbours in both, or in another order, which
// quantising on the way does not do.
absl::Status CheckRowsAreNeighbours(const ShardView& source, const ShardView& destination,
                                    const Box& box);

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_GEOMETRY_H_
