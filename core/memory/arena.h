// SPDX-License-Identifier: Apache-2.0

// Puts all regions of a manifest into one piece of memory that the fabric owns.
#ifndef WAYBILL_CORE_MEMORY_ARENA_H_
#define WAYBILL_CORE_MEMORY_ARENA_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/fabric/fabric.h"
#include "core/tensor/manifest.h"

namespace waybill {

// The offset of each region of the manifest, and the number of bytes that they take together.
struct ArenaLayout {
  std::vector<uint64_t> offsets;
  uint64_t size_bytes = 0;

  // Returns the layout in which no region crosses more pages of 4 KiB than it has to, and each
  // begins at a multiple of 256 bytes.
  static ArenaLayout For(const Manifest& manifest);
};

struct Arena {
  Region region;
  ArenaLayout layout;
};

// Allocates zeroed memory for all regions. Padding needs no further initialisation.
//
// kResourceExhausted: there is not enough memory.
absl::StatusOr<Arena> AllocateArena(Fabric* fabric, const Manifest& manifest,
                                    absl::string_view name);

}  // namespace waybill

#endif  // WAYBILL_CORE_MEMORY_ARENA_H_
