// How a rank reaches its peers, on the command line.
#ifndef WAYBILL_TOOLS_WAYBILL_FABRIC_OPTIONS_H_
#define WAYBILL_TOOLS_WAYBILL_FABRIC_OPTIONS_H_

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/fabric/fabric.h"

namespace waybill {

struct CommandFabricOptions {
  std::string fabric = "auto";
  std::string host;  // Empty: as the host of `controller` sees this one.
  std::vector<std::string> nics;
  int gid_index = -1;
  uint32_t ack_timeout = 0;
  uint32_t traffic_class = 0;

  // Options, or WAYBILL_FABRIC, WAYBILL_HOST, WAYBILL_NICS, WAYBILL_GID_INDEX.
  void AddTo(CLI::App& app);

  // What was chosen, a line for each NIC, goes to standard error.
  absl::StatusOr<std::unique_ptr<Fabric>> Make(const std::string& controller) const;
};

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_FABRIC_OPTIONS_H_
