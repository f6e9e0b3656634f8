// SPDX-License-Identifier: Apache-2.0

#include "core/memory/arena.h"

#include <algorithm>
#include <bit>

#include "core/base/narrow.h"
#include "core/base/status.h"

namespace waybill {

ArenaLayout ArenaLayout::For(const Manifest& manifest) {
  constexpr uint64_t kPageBytes = 4096;
  constexpr uint64_t kLeastBytes = 256;
  ArenaLayout layout;
  layout.offsets.reserve(manifest.region_count());
  for (uint32_t i = 0; i < manifest.region_count(); ++i) {
    const uint64_t size_bytes = manifest.region_bytes(i);
    // Norms and biases are small, and a model of experts has a hundred thousand of them.
    const uint64_t alignment = std::clamp(std::bit_ceil(size_bytes), kLeastBytes, kPageBytes);
    layout.size_bytes = RoundUp(layout.size_bytes, alignment);
    layout.offsets.push_back(layout.size_bytes);
    layout.size_bytes += size_bytes;
  }
  layout.size_bytes = RoundUp(layout.size_bytes, kPageBytes);
  return layout;
}

absl::StatusOr<Arena> AllocateArena(Fabric* fabric, const Manifest& manifest,
                                    absl::string_view name) {
  Arena arena{.layout = ArenaLayout::For(manifest)};
  if (arena.layout.size_bytes == 0) return arena;  // A worker that holds nothing.
  WAYBILL_ASSIGN_OR_RETURN(arena.region, fabric->Allocate(arena.layout.size_bytes, name));
  return arena;
}

}  // namespace waybill
