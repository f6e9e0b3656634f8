// One piece of a route that quantises, with its digest.
#ifndef WAYBILL_CORE_STAGE_QUANTISE_PIECE_H_
#define WAYBILL_CORE_STAGE_QUANTISE_PIECE_H_

#include <cstddef>
#include <cstdint>

#include "core/plan/route_table.h"
#include "core/stage/scale_values.h"
#include "core/stage/stage_piece.h"
#include "core/tensor/box.h"

namespace waybill {

// As StagePacked() and StageInPlace(), of a route whose transform is kQuantise: `box` is the
// route's. Works out the scales that are not known yet. Any thread; allocates nothing.
uint64_t QuantisePacked(const RouteShape& shape, const Box& box, ScaleValues& scales,
                        const std::byte* source, uint64_t begin, uint64_t end, std::byte* slot,
                        Digests digests);
uint64_t QuantiseInPlace(const RouteShape& shape, const Box& box, ScaleValues& scales,
                         const std::byte* source, uint64_t begin, uint64_t end,
                         std::byte* destination, Digests digests);

}  // namespace waybill

#endif  // WAYBILL_CORE_STAGE_QUANTISE_PIECE_H_
