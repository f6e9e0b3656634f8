// SPDX-License-Identifier: Apache-2.0

// The memory and the processor time that this process uses.
#ifndef WAYBILL_TOOLS_WAYBILL_OBSERVE_PROCESS_USAGE_H_
#define WAYBILL_TOOLS_WAYBILL_OBSERVE_PROCESS_USAGE_H_

#include <cstdint>

#include "absl/time/time.h"

namespace waybill {

// Resident memory by kind, from /proc/self/status.
struct ProcessMemory {
  uint64_t anonymous_bytes = 0;  // The process's own.
  uint64_t shared_bytes = 0;     // memfds: this process's arenas, and mappings of peers' arenas.
  uint64_t file_bytes = 0;       // Clean pages of mapped files.
};

ProcessMemory ReadProcessMemory();

// Returns the processor time of all threads since the process began.
absl::Duration ProcessCpu();

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_OBSERVE_PROCESS_USAGE_H_
