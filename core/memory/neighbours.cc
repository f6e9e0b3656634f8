// SPDX-License-Identifier: Apache-2.0

#include "core/memory/neighbours.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace waybill {
namespace {

// Less than a page: between two pieces there is no page that neither of them has.
constexpr std::ptrdiff_t kMostBetween = 512;

}  // namespace

JoinedMemory JoinNeighbours(
    absl::Span<const MemorySpan> pieces,
    const std::function<bool(const MemorySpan& before, const MemorySpan& after)>& may_join) {
  std::vector<uint32_t> order(pieces.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return pieces[a].data < pieces[b].data; });
  JoinedMemory joined;
  joined.places.resize(pieces.size());
  const MemorySpan* before = nullptr;
  for (const uint32_t i : order) {
    const MemorySpan& piece = pieces[i];
    JoinedMemory::Range* range = joined.ranges.empty() ? nullptr : &joined.ranges.back();
    const bool joins =
        range != nullptr && range->memory.kind == piece.kind &&
        piece.data - (range->memory.data + range->memory.size_bytes) <= kMostBetween &&
        (piece.kind == MemoryKind::kHost || may_join(*before, piece));
    if (!joins) {
      joined.ranges.push_back({.memory = piece, .first = i});
      range = &joined.ranges.back();
    }
    const auto offset = static_cast<uint64_t>(piece.data - range->memory.data);
    range->memory.size_bytes = std::max(range->memory.size_bytes, offset + piece.size_bytes);
    ++range->count;
    joined.places[i] = {.range = static_cast<uint32_t>(joined.ranges.size() - 1),
                        .offset_bytes = offset};
    before = &piece;
  }
  return joined;
}

}  // namespace waybill
