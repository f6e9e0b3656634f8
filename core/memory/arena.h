// All regions of a manifest in one piece of memory that the fabric owns.
#ifndef WAYBILL_CORE_MEMORY_ARENA_H_
#define WAYBILL_CORE_MEMORY_ARENA_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/fabric/fabric.h"
#include "core/tensor/manifest.h"

namespace waybill {

// Where each region of the manifest begins, and how many bytes they take together.
struct ArenaLayout {
  std::vector<uint64_t> offsets;
  uint64_t size_bytes = 0;

  // Every region on a page of its own.
  static ArenaLayout For(const Manifest& manifest);
};

struct Arena {
  Region region;
  ArenaLayout layout;
};

// Reserves the memory for all of it, zeroed: a lack of it is kResourceExhausted now. Padding needs
// no more than this.
absl::StatusOr<Arena> AllocateArena(Fabric* fabric, const Manifest& manifest,
                                    absl::string_view name);

}  // namespace waybill

#endif  // WAYBILL_CORE_MEMORY_ARENA_H_
