// SPDX-License-Identifier: Apache-2.0

// The address of a lane, which its other end is told: "10.0.0.1:7070/" and a secret.
#ifndef WAYBILL_CORE_FABRIC_TCP_LANE_ADDRESS_H_
#define WAYBILL_CORE_FABRIC_TCP_LANE_ADDRESS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/fabric/tcp/frames.h"
#include "core/net/tcp_socket.h"

namespace waybill::tcp {

struct LaneAddress {
  net::HostPort listener;
  Secret secret = {};
};

std::string ToString(const LaneAddress& address);
absl::StatusOr<LaneAddress> ParseLaneAddress(absl::string_view text);

absl::StatusOr<Secret> NewSecret();
// Compares in constant time.
bool Same(const Secret& a, const Secret& b);

}  // namespace waybill::tcp

#endif  // WAYBILL_CORE_FABRIC_TCP_LANE_ADDRESS_H_
