// SPDX-License-Identifier: Apache-2.0

// Finds which boxes the receivers need from which sources, before senders are assigned.
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

// One receiver of a want, with its shards of the class's tensors.
struct Recipient {
  uint32_t receiver = 0;
  uint32_t holding = 0;  // The index of its shard in TensorClasses::wanted().
};

// A box of each tensor of a class that some receivers want, in shards of equal memory layout.
struct Want {
  uint32_t tensor_class = 0;
  Content content = Content::kPlain;
  uint32_t shard = 0;  // The shard of the class's first tensor at the first destination.
  uint32_t first_destination = 0;  // An index in Demands::destinations.
  uint32_t last_destination = 0;   // One past the last.
};

// The part of a want that lies in one source. It is needed once per tensor of the class and
// destination of the want.
struct Demand {
  uint32_t want = 0;
  uint32_t source = 0;      // The number of the source in the index.
  uint64_t size_bytes = 0;  // For one tensor and one destination.
  Box box;                  // Within the tensor, or within its grid if the shard holds scales.
  Extents2 block = {};      // The box may be cut only at multiples of these extents.
  // The box contains a part of a block that the source holds only in part, or the scale of such a
  // block.
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

// Cuts all wants at the edges of the sources. The boxes of a want's demands are disjoint and fill
// the want. A scale belongs to the source in which its block begins.
//
// kInvalidArgument: see MakePlan().
absl::StatusOr<Demands> FindDemands(const SourceIndex& sources, const RankClasses& receivers);

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_DEMANDS_H_
