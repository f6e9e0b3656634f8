// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/available_memory.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace waybill {
namespace {

// The number behind the word `name` at the beginning of a line.
std::optional<uint64_t> NumberBehind(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (line.compare(0, name.size(), name) != 0) continue;
    uint64_t number = 0;
    bool any = false;
    for (size_t i = name.size(); i < line.size(); ++i) {
      const char c = line[i];
      if (c >= '0' && c <= '9') {
        number = number * 10 + static_cast<uint64_t>(c - '0');
        any = true;
      } else if (any || c != ' ') {
        break;
      }
    }
    if (any) return number;
  }
  return std::nullopt;
}

void Lower(AvailableMemory& memory, uint64_t size_bytes, std::string limit) {
  if (size_bytes >= memory.size_bytes) return;
  memory = {size_bytes, std::move(limit)};
}

// "0::/a/b" is the line of version 2.
std::string ControlGroup(const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    if (line.compare(0, 3, "0::") == 0) return line.substr(3);
  }
  return "";
}

}  // namespace

AvailableMemory FindAvailableMemory(const std::string& root) {
  AvailableMemory memory;
  if (const auto kilobytes = NumberBehind(root + "/proc/meminfo", "MemAvailable:")) {
    Lower(memory, *kilobytes * 1024, "MemAvailable");
  }
  // A group is bound by its parents too.
  for (std::string group = ControlGroup(root); !group.empty();
       group.resize(group.find_last_of('/') == std::string::npos ? 0 : group.find_last_of('/'))) {
    const std::string folder = absl::StrCat(root, "/sys/fs/cgroup", group);
    const auto most = NumberBehind(folder + "/memory.max", "");
    const auto taken = NumberBehind(folder + "/memory.current", "");
    if (!most || !taken) continue;
    // Pages of files count as taken, but give way.
    const uint64_t cached = NumberBehind(folder + "/memory.stat", "inactive_file ").value_or(0) +
                            NumberBehind(folder + "/memory.stat", "active_file ").value_or(0);
    Lower(memory, *most - std::min(*most, *taken - std::min(*taken, cached)),
          "memory.max of control group " + group);
  }
  return memory;
}

}  // namespace waybill
