// SPDX-License-Identifier: Apache-2.0

// How much memory this process may still take, before it takes it: the kernel promises pages of a
// file in memory without counting them, and kills when they are not there.
#ifndef WAYBILL_CORE_FABRIC_AVAILABLE_MEMORY_H_
#define WAYBILL_CORE_FABRIC_AVAILABLE_MEMORY_H_

#include <cstdint>
#include <string>

namespace waybill {

struct AvailableMemory {
  uint64_t size_bytes = ~uint64_t{0};
  std::string
      limit;  // The limit that was found: the host's MemAvailable, or a control group's memory.max.
};

// The least of what the host and the control groups (version 2) around this process have left;
// without a limit where nothing tells. `root` is before each path that is read, for tests.
AvailableMemory FindAvailableMemory(const std::string& root = "");

}  // namespace waybill

#endif  // WAYBILL_CORE_FABRIC_AVAILABLE_MEMORY_H_
