// SPDX-License-Identifier: Apache-2.0

// Stages one piece of a route that quantises, and computes its digest.
#ifndef WAYBILL_CORE_STAGE_QUANTISE_PIECE_H_
#define WAYBILL_CORE_STAGE_QUANTISE_PIECE_H_

#include <cstddef>
#include <cstdint>

#include "core/plan/route_table.h"
#include "core/stage/scale_values.h"
#include "core/stage/stage_piece.h"
#include "core/tensor/box.h"

namespace waybill {

// [any thread] Do what StagePacked() and StageInPlace() do, for a route whose transform is
// kQuantise and whose box is `box`. They compute the scales that are not known yet. They do not
// allocate.
uint64_t QuantisePacked(const RouteShape& shape, const Box& box, ScaleValues& scales,
                        const std::byte* source, uint64_t begin, uint64_t end, std::byte* slot,
                        Digests digests);
uint64_t QuantiseInPlace(const RouteShape& shape, const Box& box, ScaleValues& scales,
                         const std::byte* source, uint64_t begin, uint64_t end,
                         std::byte* destination, Digests digests);

}  // namespace waybill

#endif  // WAYBILL_CORE_STAGE_QUANTISE_PIECE_H_
