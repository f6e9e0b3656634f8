// SPDX-License-Identifier: Apache-2.0

// Stages one piece of a route and computes its digest, in one pass over memory.
#ifndef WAYBILL_CORE_STAGE_STAGE_PIECE_H_
#define WAYBILL_CORE_STAGE_STAGE_PIECE_H_

#include <cstddef>
#include <cstdint>

#include "core/plan/route_table.h"

namespace waybill {

enum class Digests : uint8_t { kOff, kOn };

// [any thread] Writes bytes [begin, end) of a route, one after the other, to `slot`. Transforms and
// transposes them as the shape says. `source` is the route's first element in the trainer's memory.
// `begin` is a multiple of kCutBytes. Does not allocate.
//
// Returns the piece's part of the route's digest, or 0 if digests are off. Add the parts of all
// pieces, then finish the sum.
uint64_t StagePacked(const RouteShape& shape, const std::byte* source, uint64_t begin, uint64_t end,
                     std::byte* slot, Digests digests);

// As StagePacked(), but stores every byte at its final address. `destination` is the route's first
// element in the worker's memory, which is mapped in this process. The stores may bypass the cache:
// call kernels::StreamFence() before announcing them.
uint64_t StageInPlace(const RouteShape& shape, const std::byte* source, uint64_t begin,
                      uint64_t end, std::byte* destination, Digests digests);

// Returns the digest part of bytes [begin, end) of a direct route as they lie in the trainer's
// memory; see IsDirect().
uint64_t DigestSource(const RouteShape& shape, const std::byte* source, uint64_t begin,
                      uint64_t end);

// Returns the digest part of bytes [begin, end) of a route as they lie in the worker's memory.
uint64_t DigestInPlace(const RouteShape& shape, const std::byte* destination, uint64_t begin,
                       uint64_t end);

}  // namespace waybill

#endif  // WAYBILL_CORE_STAGE_STAGE_PIECE_H_
