#include "tools/waybill/fabric_options.h"

#include <iostream>

#include "core/base/status.h"
#include "core/fabric/choice/make_fabric.h"
#include "core/net/tcp_socket.h"

namespace waybill {

void CommandFabricOptions::AddTo(CLI::App& app) {
  const char* group = "How peers are reached";
  app.add_option("--fabric", fabric,
                 "auto: for each peer the best that an empty write has proved; or only one of "
                 "local, verbs, tcp")
      ->envname("WAYBILL_FABRIC")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "local", "verbs", "tcp"}))
      ->group(group);
  app.add_option("--host", host,
                 "this host's numeric address for peers; default: the one on the way to the "
                 "controller")
      ->envname("WAYBILL_HOST")
      ->group(group);
  app.add_option("--nics", nics,
                 "RDMA devices to use, in the order of their rails: mlx5_0,mlx5_1 (mlx5_0:2 is a "
                 "second port); default: every active port")
      ->envname("WAYBILL_NICS")
      ->delimiter(',')
      ->group(group);
  app.add_option("--gid-index", gid_index,
                 "of every port, instead of the rule that `waybill doctor` explains")
      ->envname("WAYBILL_GID_INDEX")
      ->group(group);
  app.add_option("--ack-timeout", ack_timeout,
                 "of queue pairs, 1 to 31: a lost packet is sent again after 4.096 us * 2^N; "
                 "default: 14, and 18 on SoftRoCE")
      ->envname("WAYBILL_ACK_TIMEOUT")
      ->check(CLI::Range(1, 31))
      ->group(group);
  app.add_option("--traffic-class", traffic_class, "of RoCE packets: DSCP * 4 + ECN")
      ->envname("WAYBILL_TRAFFIC_CLASS")
      ->check(CLI::Range(0, 255))
      ->group(group);
}

absl::StatusOr<std::unique_ptr<Fabric>> CommandFabricOptions::Make(
    const std::string& controller) const {
  FabricOptions options;
  WAYBILL_ASSIGN_OR_RETURN(options.forced, ParseFabricKind(fabric));
  options.host = host;
  if (host.empty()) {
    WAYBILL_ASSIGN_OR_RETURN(const net::HostPort address, net::ParseHostPort(controller));
    WAYBILL_ASSIGN_OR_RETURN(options.host, net::OwnAddressTowards(address.host));
  }
  options.verbs.nics = nics;
  if (gid_index >= 0) options.verbs.gid_index = static_cast<uint32_t>(gid_index);
  options.verbs.ack_timeout = static_cast<uint8_t>(ack_timeout);
  options.verbs.traffic_class = static_cast<uint8_t>(traffic_class);
  options.verbs.log = [](absl::string_view line) { std::cerr << "verbs: " << line << "\n"; };
  return MakeFabric(options);
}

}  // namespace waybill
