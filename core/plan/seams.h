// SPDX-License-Identifier: Apache-2.0

// Finds the quantisation blocks that are split between senders, and plans the exchange of their
// maxima.
#ifndef WAYBILL_CORE_PLAN_SEAMS_H_
#define WAYBILL_CORE_PLAN_SEAMS_H_

#include <vector>

#include "absl/status/status.h"
#include "core/plan/assignment.h"
#include "core/plan/demands.h"
#include "core/plan/exchange.h"
#include "core/plan/rank_classes.h"
#include "core/plan/source_index.h"
#include "core/plan/tensor_classes.h"

namespace waybill {

// Plans each sender's exchange: the scale tables of the shards that it quantises or whose scales it
// sends, and the messages for blocks that no sender holds alone. Two co-owners swap their maxima.
// With more co-owners, the sender that writes the scale collects the maxima and sends the result to
// all; if the block is the whole matrix, this goes along a tree. The co-owners of a block are all
// senders that send any part of it, plus one holder for each part that none of these holds.
//
// Appends witnesses to `shipments`: for each block whose scale another sender writes, the scale
// that a sender used, so that the receiver can check that they agree.
//
// kInvalidArgument: the senders hold only a part of a block; names the block.
absl::Status PlanExchanges(const SourceIndex& sources, const Demands& demands,
                           const RankClasses& receivers, std::vector<Shipment>& shipments,
                           std::vector<ExchangePattern>& exchanges);

// Returns the number, in the pattern, of the scale table for a class's shards and a quantisation.
// The table must exist.
uint32_t FindScaleTable(const ExchangePattern& exchange, uint32_t tensor_class, uint32_t holding,
                        const Quantisation& quantisation);

// Returns the exchange, for all tensors, of the sender with this manifest.
Exchange ExpandExchange(const ExchangePattern& pattern, const TensorClasses& tensors,
                        const Manifest& manifest);

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_SEAMS_H_
