// SPDX-License-Identifier: Apache-2.0

// Examines whether a host has what RDMA and large memory need, and explains what is missing.
#ifndef WAYBILL_CORE_HOST_EXAMINE_HOST_H_
#define WAYBILL_CORE_HOST_EXAMINE_HOST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/fabric/verbs/survey.h"
#include "core/host/finding.h"

namespace waybill {

// Replaces the host's own files and limits, for tests.
struct HostView {
  std::string root;                  // Before /sys, /proc.
  uint64_t locked_memory_bytes = 0;  // RLIMIT_MEMLOCK; ~0: unlimited.
  uint64_t open_files = 0;           // The hard limit of RLIMIT_NOFILE.
};
HostView ThisHost();

std::vector<Finding> ExamineRdma(const absl::StatusOr<std::vector<SurveyedPort>>& ports);
// PCIe links and NUMA nodes of those devices, and limits.
std::vector<Finding> ExamineHost(const HostView& host, const std::vector<SurveyedPort>& ports);
// Whether a controller could listen on that port of `own_address`, and be reached there.
// What others make of this host's name, which stands for `address` here.
Finding ExamineHostName(const std::string& name, const std::string& address);
Finding ExamineControlPort(const std::string& own_address, uint16_t port);

// All of these and ExamineGpus() of this host: `own_address` is where the controller would be
// reached (empty: as seen from outside), `gid_index` of each port instead of the rule.
std::vector<Finding> ExamineThisHost(std::optional<uint32_t> gid_index, std::string own_address,
                                     uint16_t control_port);

absl::string_view Name(Finding::Level level);  // "good", "note", "bad".
// [{"subject", "level", "found", "remedy"}]
std::string FindingsToJson(const std::vector<Finding>& findings);

}  // namespace waybill

#endif  // WAYBILL_CORE_HOST_EXAMINE_HOST_H_
