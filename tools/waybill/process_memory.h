// What memory this process has, by kind, from /proc/self/status.
#ifndef WAYBILL_TOOLS_WAYBILL_PROCESS_MEMORY_H_
#define WAYBILL_TOOLS_WAYBILL_PROCESS_MEMORY_H_

#include <cstdint>

namespace waybill {

struct ProcessMemory {
  uint64_t anonymous_bytes = 0;  // The process's own.
  uint64_t shared_bytes = 0;     // memfds: arenas created here, and maps of others'.
  uint64_t file_bytes = 0;       // Clean pages of mapped files.
};

ProcessMemory ReadProcessMemory();

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_PROCESS_MEMORY_H_
