// What this process takes of the machine.
#ifndef WAYBILL_TOOLS_WAYBILL_PROCESS_USAGE_H_
#define WAYBILL_TOOLS_WAYBILL_PROCESS_USAGE_H_

#include <cstdint>

#include "absl/time/time.h"

namespace waybill {

// By kind, from /proc/self/status.
struct ProcessMemory {
  uint64_t anonymous_bytes = 0;  // The process's own.
  uint64_t shared_bytes = 0;     // memfds: arenas created here, and maps of others'.
  uint64_t file_bytes = 0;       // Clean pages of mapped files.
};

ProcessMemory ReadProcessMemory();

// Processor time of all its threads since it began.
absl::Duration ProcessCpu();

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_PROCESS_USAGE_H_
