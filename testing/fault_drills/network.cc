// SPDX-License-Identifier: Apache-2.0

#include "testing/fault_drills/network.h"

#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/fabric/local/local_fabric.h"
#include "core/fabric/tcp/tcp_fabric.h"
#include "core/fabric/verbs/verbs_fabric.h"

namespace waybill::drills {
namespace {

// The devices of a node: {"rxe3", "rxe4"}.
std::vector<std::string> DevicesOf(uint32_t node) {
  const std::vector<std::string> nodes =
      absl::StrSplit(std::getenv("WAYBILL_RXE_NODES"), ';', absl::SkipEmpty());
  return absl::StrSplit(nodes.at(node), ',');
}

std::string AddressOf(uint32_t node) {
  if (!InGuest()) return "127.0.0.1";
  return absl::StrCat("10.9.0.", DevicesOf(node).front().substr(3));
}

absl::StatusOr<std::unique_ptr<Fabric>> Make(const std::string& network, uint32_t node) {
  if (network == "local") return MakeLocalFabric();
  if (network == "tcp") {
    return MakeTcpFabric(
        {.host = AddressOf(node), .connect_timeout = kConnect, .dead_peer_timeout = kDeadPeer});
  }
  VerbsOptions options;
  options.host = AddressOf(node);
  options.nics = DevicesOf(node);
  options.connect_timeout = kConnect;
  options.dead_peer_timeout = kDeadPeer;
  return MakeVerbsFabric(options);
}

}  // namespace

bool InGuest() { return std::getenv("WAYBILL_RXE_NODES") != nullptr; }

std::vector<std::string> NetworksHere() {
  if (InGuest()) return {"verbs", "tcp"};
  return {"tcp", "local"};
}

absl::Duration Slack() { return InGuest() ? absl::Seconds(10) : absl::Seconds(1); }

std::unique_ptr<Fabric> MakeFabric(const std::string& network, uint32_t node) {
  absl::StatusOr<std::unique_ptr<Fabric>> fabric = Make(network, node);
  if (!fabric.ok()) {
    std::fprintf(stderr, "%s on node %u: %s\n", network.c_str(), node,
                 fabric.status().ToString().c_str());
    std::abort();
  }
  return *std::move(fabric);
}

}  // namespace waybill::drills
