// SPDX-License-Identifier: Apache-2.0

// Proves that a plan writes every byte of every receiver exactly once.
#ifndef WAYBILL_CORE_PLAN_COVER_H_
#define WAYBILL_CORE_PLAN_COVER_H_

#include "absl/status/status.h"
#include "core/plan/bundles.h"

namespace waybill {

// Checks three properties, and trusts only the receivers' manifests. (1) Every non-empty shard is
// named by one destination of one want, for one tensor of its class, and has the want's box. (2)
// The bundles of a want lie in its box, and no two of them bring the same element of the same
// tensor to the same destination. (3) Together they bring as many elements as all copies of the box
// have.
//
// kInternal: the plan is wrong; names the tensor, the receiver and the boxes.
absl::Status CheckCover(const Bundles& bundles);

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_COVER_H_
