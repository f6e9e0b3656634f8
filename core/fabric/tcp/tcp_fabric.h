// SPDX-License-Identifier: Apache-2.0

// The fabric between hosts without RDMA, and the fallback where RDMA fails: plain TCP.
//
// A lane is one connection. The receiver checks each write's key and bounds and reads its bytes
// from the socket to where they belong; the sender sends them from where they lie. A lane's address
// holds a secret, so nobody connects to it who was not told by the control channel; but nothing is
// encrypted, and the network is trusted not to change bytes.
#ifndef WAYBILL_CORE_FABRIC_TCP_TCP_FABRIC_H_
#define WAYBILL_CORE_FABRIC_TCP_TCP_FABRIC_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/fabric/fabric.h"

namespace waybill {

struct TcpOptions {
  // A numeric address of this host: where to listen, and what peers are told.
  std::string host = "127.0.0.1";
  // From ConnectLane() until both ends are there; else the lane fails with kDeadlineExceeded.
  absl::Duration connect_timeout = absl::Seconds(20);
  // How long a peer's host may acknowledge nothing. Whole seconds, at least one.
  absl::Duration dead_peer_timeout = absl::Seconds(10);
  // How long somebody who connects may take to say which lane it wants, and how many may.
  absl::Duration stranger_timeout = absl::Seconds(5);
  size_t most_strangers = 1024;
};

absl::StatusOr<std::unique_ptr<Fabric>> MakeTcpFabric(const TcpOptions& options = {});

}  // namespace waybill

#endif  // WAYBILL_CORE_FABRIC_TCP_TCP_FABRIC_H_
