// SPDX-License-Identifier: Apache-2.0

// Describes the memory layout of a box on two ranks, as one walk through both memories.
#ifndef WAYBILL_CORE_PLAN_GEOMETRY_H_
#define WAYBILL_CORE_PLAN_GEOMETRY_H_

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/plan/route_table.h"
#include "core/tensor/manifest.h"

namespace waybill {

// Returns the byte offset of `box`'s first element in the region of `shard`. `box` must lie in the
// shard's box.
uint64_t OffsetWithin(const ShardView& shard, const Box& box);

// Computes the axes of a route of `box` between the two shards (see RouteShape). Writes them to
// `axes` and returns the used part.
//
// With `quantises`, the axes are the box's dimensions, because blocks are located by rows and
// columns.
absl::Span<const Axis> MakeAxes(const ShardView& source, const ShardView& destination,
                                const Box& box, bool quantises, std::array<Axis, kMaxAxes>& axes);

// Checks that a route that quantises can be made. kInvalidArgument: the elements of a row of `box`
// are not contiguous in both memories, or the order of dimensions differs.
absl::Status CheckRowsAreNeighbours(const ShardView& source, const ShardView& destination,
                                    const Box& box);

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_GEOMETRY_H_
