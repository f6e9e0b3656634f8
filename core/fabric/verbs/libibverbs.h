// libibverbs of this host, found when it is first asked for: one build serves hosts with and
// without it.
#ifndef WAYBILL_CORE_FABRIC_VERBS_LIBIBVERBS_H_
#define WAYBILL_CORE_FABRIC_VERBS_LIBIBVERBS_H_

#include "absl/status/statusor.h"
#include "core/fabric/verbs/verbs.h"

namespace waybill::verbs {

// Lives as long as the process. kUnavailable, with the remedy: the library is not there, or too
// old. Thread-safe.
absl::StatusOr<Verbs*> LoadLibibverbs();

}  // namespace waybill::verbs

#endif  // WAYBILL_CORE_FABRIC_VERBS_LIBIBVERBS_H_
