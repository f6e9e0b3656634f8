// Finds what the workers need from which source, before it is decided who sends it.
#ifndef WAYBILL_CORE_PLAN_DEMANDS_H_
#define WAYBILL_CORE_PLAN_DEMANDS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/plan/source_index.h"
#include "core/tensor/manifest.h"
#include "core/tensor/quantisation.h"

namespace waybill {

// A part of a worker's shard that lies in one source.
struct Demand {
  uint32_t worker = 0;
  uint32_t destination_shard = 0;
  uint32_t source = 0;  // The number of the source in the index.
  uint64_t size_bytes = 0;
  Box box;              // Within the tensor, or within its grid if the shard holds scales.
  Extents2 block = {};  // It may be cut at multiples of these extents.
  // It has a part of a block that its source does not hold whole, or such a block's scale.
  bool at_seam = false;
};

// Cuts every shard of every worker at the sources' edges: the boxes of a shard's demands are
// disjoint and fill it. In the order of workers and shards. A scale is in the source in which its
// block begins.
//
// kInvalidArgument: as MakePlan() has it.
absl::StatusOr<std::vector<Demand>> FindDemands(const SourceIndex& sources,
                                                absl::Span<const Manifest* const> trainers,
                                                absl::Span<const Manifest* const> workers);

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_DEMANDS_H_
