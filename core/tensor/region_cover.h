// SPDX-License-Identifier: Apache-2.0

// Decides whether strided arrays fill a region's bytes, each byte once.
#ifndef WAYBILL_CORE_TENSOR_REGION_COVER_H_
#define WAYBILL_CORE_TENSOR_REGION_COVER_H_

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "core/tensor/box.h"

namespace waybill {

// The bytes of one array: runs of `run_bytes`, repeated along axes of which the first has the
// largest stride. Axes that continue one another are merged.
struct ByteClaim {
  struct Axis {
    uint64_t extent;  // At least 2.
    uint64_t stride_bytes;
  };

  uint32_t owner = 0;  // The caller's number for the array.
  uint32_t axis_count = 0;
  uint64_t begin = 0;
  uint64_t run_bytes = 0;
  std::array<Axis, kMaxDimensions> axes;

  uint64_t end() const;  // Behind the last run.
};

// Returns nullopt for an array without elements. The array's last byte must lie below 2^64, and
// `element_bytes` must not be 0.
std::optional<ByteClaim> MakeByteClaim(uint32_t owner, uint64_t offset_bytes,
                                       absl::Span<const int64_t> extents,
                                       absl::Span<const int64_t> strides, uint32_t element_bytes);

// An error of a cover, in bytes [begin, end) of the region.
struct CoverFault {
  enum class Kind : uint8_t {
    kOverlap,     // They belong to both `first` and `second`.
    kHole,        // They belong to nobody. `second`, if there is one, comes next.
    kFragmented,  // Their owners, from `first` on, are interleaved in too many pieces to check.
  };
  Kind kind;
  uint64_t begin;
  uint64_t end;
  uint32_t first = 0;
  std::optional<uint32_t> second;
};

// Bounds the work of checking, whatever the arrays look like. A piece is a claim within one period,
// or a single run where no common stride explains how arrays are interleaved.
struct CoverBudget {
  uint64_t pieces_left = uint64_t{1} << 20;

  // Returns false if fewer than `pieces` are left.
  bool Take(uint64_t pieces);
};

// Returns the first fault in [0, size_bytes), or nullopt if the claims fill it exactly. Memory and
// time do not grow with the number of runs: arrays that share a stride are compared within one
// period of it.
std::optional<CoverFault> CheckRegionCover(std::vector<ByteClaim> claims, uint64_t size_bytes,
                                           CoverBudget& budget);

}  // namespace waybill

#endif  // WAYBILL_CORE_TENSOR_REGION_COVER_H_
