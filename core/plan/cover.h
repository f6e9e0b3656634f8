// The proof that a plan writes every byte of every worker exactly once.
#ifndef WAYBILL_CORE_PLAN_COVER_H_
#define WAYBILL_CORE_PLAN_COVER_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/plan/plan.h"
#include "core/tensor/manifest.h"

namespace waybill {

// Looks at the finished routes only: those that bring something to one shard lie in its box, do not
// meet one another, and hold as many elements as the box.
//
// kInternal: the plan is wrong; names the tensor, the worker and the boxes.
absl::Status CheckCover(const Plan& plan, absl::Span<const Manifest* const> workers);

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_COVER_H_
