// SPDX-License-Identifier: Apache-2.0

// The address of one end of a lane: what the other end must know about the queue pair. Printable,
// for the control channel.
#ifndef WAYBILL_CORE_FABRIC_VERBS_LANE_ADDRESS_H_
#define WAYBILL_CORE_FABRIC_VERBS_LANE_ADDRESS_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace waybill::verbs {

using Gid = std::array<uint8_t, 16>;

enum class GidKind : uint8_t { kInfiniBand = 0, kRoceV1 = 1, kRoceV2 = 2 };
absl::string_view Name(GidKind kind);

struct LaneAddress {
  std::string rendezvous;     // The place of the rendezvous, and the secret by which the ends
                              // recognise each other.
  std::string nic;            // Shown to people.
  uint32_t queue_pair = 0;    // 24 bits.
  uint32_t first_packet = 0;  // Its packets' first number, 24 bits.
  uint32_t mtu = 0;  // The MTU of the port, as the enum of libibverbs: 1 (256) to 5 (4096).
  uint16_t lid = 0;  // 0 on Ethernet.
  Gid gid = {};
  GidKind kind = GidKind::kInfiniBand;

  bool operator==(const LaneAddress&) const = default;
};

std::string ToString(const LaneAddress& address);
// kInvalidArgument: the text is not an address; the error quotes it.
absl::StatusOr<LaneAddress> ParseLaneAddress(absl::string_view text);

// Returns the GID as people write it: as an IPv4 address if it holds one, else as eight groups.
std::string ToString(const Gid& gid);

}  // namespace waybill::verbs

#endif  // WAYBILL_CORE_FABRIC_VERBS_LANE_ADDRESS_H_
