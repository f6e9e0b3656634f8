// SPDX-License-Identifier: Apache-2.0

// Which blocks of a quantisation are split between senders, and who tells whom what of them.
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

// Gives each sender the tables for what it quantises or whose scales it sends, and the messages
// for the blocks that none of them holds alone. Two co-owners swap; of more, the one that writes
// the scale collects and tells all; where the block is the whole matrix, along a tree. A block's
// co-owners are those that send anything of it, and for each part of it that none of them holds one
// that does.
//
// Appends to `shipments` the witnesses: of each block whose scale somebody else writes, the scale
// that a sender used, so that the receiver sees whether they agree.
//
// kInvalidArgument: a block of which the senders hold only a part; names it.
absl::Status PlanExchanges(const SourceIndex& sources, const Demands& demands,
                           const RankClasses& receivers, std::vector<Shipment>& shipments,
                           std::vector<ExchangePattern>& exchanges);

// Returns the table of a class's shards in a quantisation, by its number in the pattern. There is
// one.
uint32_t FindScaleTable(const ExchangePattern& exchange, uint32_t tensor_class, uint32_t holding,
                        const Quantisation& quantisation);

// Returns the whole exchange of a sender whose manifest this is.
Exchange ExpandExchange(const ExchangePattern& pattern, const TensorClasses& tensors,
                        const Manifest& manifest);

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_SEAMS_H_
