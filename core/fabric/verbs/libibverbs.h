// SPDX-License-Identifier: Apache-2.0

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

// Returns false if a GID's address is of no interface in this process's network namespace. The
// library returns those of all namespaces if they share the device.
bool IsOfOwnNamespace(const ibv_gid_entry& gid);

}  // namespace waybill::verbs

#endif  // WAYBILL_CORE_FABRIC_VERBS_LIBIBVERBS_H_
