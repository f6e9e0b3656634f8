// SPDX-License-Identifier: Apache-2.0

// The proof that a plan writes every byte of every receiver exactly once.
#ifndef WAYBILL_CORE_PLAN_COVER_H_
#define WAYBILL_CORE_PLAN_COVER_H_

#include "absl/status/status.h"
#include "core/plan/bundles.h"

namespace waybill {

// Trusts only the receivers' manifests. Every shard that is not empty is named by one destination
// of one want, for one tensor of its class, and has the want's box. The bundles that bring
// something to a want lie in its box; no two of them bring the same element of the same tensor to
// the same destination; and together they bring as many elements as all copies of the box have.
//
// kInternal: the plan is wrong; names the tensor, the receiver and the boxes.
absl::Status CheckCover(const Bundles& bundles);

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_COVER_H_
