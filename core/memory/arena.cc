#include "core/memory/arena.h"

#include "core/base/narrow.h"
#include "core/base/status.h"

namespace waybill {

ArenaLayout ArenaLayout::For(const Manifest& manifest) {
  constexpr uint64_t kPageBytes = 4096;
  ArenaLayout layout;
  layout.offsets.reserve(manifest.region_count());
  for (uint32_t i = 0; i < manifest.region_count(); ++i) {
    layout.offsets.push_back(layout.size_bytes);
    layout.size_bytes += RoundUp(manifest.region_bytes(i), kPageBytes);
  }
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
