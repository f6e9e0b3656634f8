// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/running_job/lane_table.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace waybill {
namespace {

// A NIC's port has a digit or two, one that the system gave to a listener has more: "mlx5_0:1",
// "10.0.0.1:41234", "[fd00::1]:41234".
std::string WithoutPorts(absl::string_view path) {
  constexpr size_t kLeastDigits = 4;
  std::string text;
  while (!path.empty()) {
    size_t digits = 0;
    if (path[0] == ':') {
      while (1 + digits < path.size() && absl::ascii_isdigit(path[1 + digits])) ++digits;
    }
    const bool behind_an_address =
        !text.empty() && (absl::ascii_isdigit(text.back()) || text.back() == ']');
    if (behind_an_address && digits >= kLeastDigits) {
      path.remove_prefix(1 + digits);
    } else {
      text.push_back(path[0]);
      path.remove_prefix(1);
    }
  }
  return text;
}

}  // namespace

std::string LaneTable(absl::Span<const std::string> paths, LaneDetail detail) {
  std::map<std::string, uint32_t> counts;
  for (const std::string& path : paths) {
    ++counts[detail == LaneDetail::kAll ? path : WithoutPorts(path)];
  }
  std::string table;
  for (const auto& [path, count] : counts) {
    absl::StrAppend(&table, absl::StrFormat("%6d  %s\n", count, path));
  }
  return table;
}

}  // namespace waybill
