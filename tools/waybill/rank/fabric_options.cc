// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/rank/fabric_options.h"

#include <iostream>

#include "core/base/status.h"
#include "core/control/controller_addresses.h"
#include "core/fabric/choice/make_fabric.h"
#include "tools/waybill/command_line/printable.h"

namespace waybill {

void CommandFabricOptions::AddTo(CLI::App& app) {
  // begin generated from capi/options.toml: flags of network by app.
  app.add_option("--fabric", fabric,
                 "how the rank reaches its peers: \"local\", \"verbs\" or \"tcp\"; or \"auto\", "
                 "which takes for each peer the best one that has carried an empty write")
      ->envname("WAYBILL_FABRIC")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "local", "verbs", "tcp"}))
      ->group("Network options");
  app.add_option(
         "--host", host,
         "this host's numeric address; default: the one from which it reaches the controller")
      ->envname("WAYBILL_HOST")
      ->group("Network options");
  app.add_option(
         "--nics", nics,
         "RDMA NICs to use, in the order of their rails: \"mlx5_0\", or \"mlx5_0:2\" for its "
         "second port, or \"mlx5_0=3\" with its GID index 3; default: every active port")
      ->envname("WAYBILL_NICS")
      ->delimiter(',')
      ->group("Network options");
  app.add_option(
         "--gid-index", gid_index,
         "GID index of every port; default: chosen by the rule that `waybill doctor` explains")
      ->envname("WAYBILL_GID_INDEX")
      ->group("Network options");
  app.add_option("--ack-timeout", ack_timeout,
                 "timeout N of queue pairs, 1 to 31: a lost packet is sent again after 4.096 us "
                 "times 2^N; default: 14, or 18 on SoftRoCE")
      ->envname("WAYBILL_ACK_TIMEOUT")
      ->check(CLI::Range(1, 31))
      ->group("Network options");
  app.add_option("--traffic-class", traffic_class,
                 "traffic class of RoCE packets: DSCP times 4, plus ECN")
      ->envname("WAYBILL_TRAFFIC_CLASS")
      ->check(CLI::Range(0, 255))
      ->group("Network options");
  app.add_option("--rate-limit", rate_limit,
                 "most bytes a second that the rank sends over NICs, to leave room for other "
                 "traffic; default: no limit")
      ->envname("WAYBILL_RATE_LIMIT")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->group("Network options");
  // end generated
}

absl::StatusOr<std::unique_ptr<Fabric>> CommandFabricOptions::Make(
    const std::string& controller) const {
  FabricOptions options;
  WAYBILL_ASSIGN_OR_RETURN(options.forced, ParseFabricKind(fabric));
  options.host = host;
  if (host.empty()) {
    WAYBILL_ASSIGN_OR_RETURN(options.host, OwnAddressTowardsControllers(controller));
  }
  options.rate_limit = rate_limit;
  options.verbs.nics = nics;
  if (gid_index >= 0) options.verbs.gid_index = static_cast<uint32_t>(gid_index);
  options.verbs.ack_timeout = static_cast<uint8_t>(ack_timeout);
  options.verbs.traffic_class = static_cast<uint8_t>(traffic_class);
  options.verbs.log = [](absl::string_view line) {
    std::cerr << "verbs: " + Printable(line) + "\n";
  };
  return MakeFabric(options);
}

}  // namespace waybill
