// SPDX-License-Identifier: Apache-2.0

// Finds what the receivers need from which source, before it is decided who sends it.
#ifndef WAYBILL_CORE_PLAN_DEMANDS_H_
#define WAYBILL_CORE_PLAN_DEMANDS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/plan/source_index.h"
#include "core/plan/tensor_classes.h"
#include "core/tensor/format.h"
#include "core/tensor/manifest.h"
#include "core/tensor/quantisation.h"

namespace waybill {

// Where one receiver wants a box of each tensor of a class.
struct Recipient {
  uint32_t receiver = 0;
  uint32_t holding = 0;  // The place of its shard in TensorClasses::wanted().
};

// A box that some receivers want of each tensor of a class, in shards that lie in memory alike.
struct Want {
  uint32_t tensor_class = 0;
  Content content = Content::kPlain;
  uint32_t shard = 0;              // The first destination's shard of the class's first tensor.
  uint32_t first_destination = 0;  // Of Demands::destinations.
  uint32_t last_destination = 0;   // One past the last.
};

// A part of a want that lies in one source. It is needed once for each of the class's tensors and
// each of the want's destinations.
struct Demand {
  uint32_t want = 0;
  uint32_t source = 0;      // The number of the source in the index.
  uint64_t size_bytes = 0;  // For one tensor and one destination.
  Box box;                  // Within the tensor, or within its grid if the shard holds scales.
  Extents2 block = {};      // It may be cut at multiples of these extents.
  // It has a part of a block that its source does not hold whole, or such a block's scale.
  bool at_seam = false;
};

struct Demands {
  std::vector<Recipient> destinations;
  std::vector<Want> wants;
  std::vector<Demand> demands;

  absl::Span<const Recipient> DestinationsOf(const Want& want) const {
    return absl::MakeConstSpan(destinations)
        .subspan(want.first_destination, want.last_destination - want.first_destination);
  }
  const Want& WantOf(const Demand& demand) const { return wants[demand.want]; }
  // Returns the receiver of the first destination.
  uint32_t ReceiverOf(const Demand& demand) const {
    return destinations[WantOf(demand).first_destination].receiver;
  }
};

// Cuts everything that receivers want at the sources' edges: the boxes of a want's demands are
// disjoint and fill it. A scale is in the source in which its block begins.
//
// kInvalidArgument: as MakePlan() has it.
absl::StatusOr<Demands> FindDemands(const SourceIndex& sources, const RankClasses& receivers);

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_DEMANDS_H_
