// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/observe/process_usage.h"

#include <time.h>

#include <fstream>
#include <string>

namespace waybill {

ProcessMemory ReadProcessMemory() {
  ProcessMemory memory;
  std::ifstream status("/proc/self/status");
  for (std::string key; status >> key;) {
    uint64_t kilobytes = 0;
    if (key == "RssAnon:" && status >> kilobytes) memory.anonymous_bytes = kilobytes << 10;
    if (key == "RssShmem:" && status >> kilobytes) memory.shared_bytes = kilobytes << 10;
    if (key == "RssFile:" && status >> kilobytes) memory.file_bytes = kilobytes << 10;
  }
  return memory;
}

absl::Duration ProcessCpu() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return absl::DurationFromTimespec(now);
}

}  // namespace waybill
