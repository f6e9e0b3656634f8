// SPDX-License-Identifier: Apache-2.0

// Command-line options that say how a rank reaches its peers.
#ifndef WAYBILL_TOOLS_WAYBILL_RANK_FABRIC_OPTIONS_H_
#define WAYBILL_TOOLS_WAYBILL_RANK_FABRIC_OPTIONS_H_

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/fabric/fabric.h"

namespace waybill {

struct CommandFabricOptions {
  std::string fabric = "auto";
  std::string host;  // Empty: the address from which this host reaches the controller.
  std::vector<std::string> nics;
  int gid_index = -1;
  uint32_t ack_timeout = 0;
  uint32_t traffic_class = 0;
  uint64_t rate_limit = 0;  // In bytes a second; 0: none.

  // Adds the options. They default to WAYBILL_FABRIC, WAYBILL_HOST, WAYBILL_NICS and so on.
  void AddTo(CLI::App& app);

  // Makes the fabric. Prints which NICs it chose to standard error, a line for each.
  absl::StatusOr<std::unique_ptr<Fabric>> Make(const std::string& controller) const;
};

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_RANK_FABRIC_OPTIONS_H_
