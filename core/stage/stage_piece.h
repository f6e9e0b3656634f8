// From a tensor to bytes: one piece of a route, with its digest, in one pass over memory.
#ifndef WAYBILL_CORE_STAGE_STAGE_PIECE_H_
#define WAYBILL_CORE_STAGE_STAGE_PIECE_H_

#include <cstddef>
#include <cstdint>

#include "core/plan/route_table.h"

namespace waybill {

enum class Digests : uint8_t { kOff, kOn };

// Writes bytes [begin, end) of a route, one after the other, to `slot`; transforms and transposes
// as the shape says. `source` is the route's first element in the trainer's memory. `begin` is a
// multiple of kCutBytes. Any thread; allocates nothing.
//
// Returns the piece's part of the route's digest (to be added to the others' and finished), 0 where
// digests are off.
uint64_t StagePacked(const RouteShape& shape, const std::byte* source, uint64_t begin, uint64_t end,
                     std::byte* slot, Digests digests);

// The same, but stores every byte at its final address: `destination` is the route's first element
// in the worker's memory, mapped here. The stores may pass the cache by: kernels::StreamFence()
// before telling of them.
uint64_t StageInPlace(const RouteShape& shape, const std::byte* source, uint64_t begin,
                      uint64_t end, std::byte* destination, Digests digests);

// The digest of a route's bytes as they lie in the worker's memory: those of [begin, end), as
// above.
uint64_t DigestInPlace(const RouteShape& shape, const std::byte* destination, uint64_t begin,
                       uint64_t end);

}  // namespace waybill

#endif  // WAYBILL_CORE_STAGE_STAGE_PIECE_H_
