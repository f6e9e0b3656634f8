// What the other end of a lane has to know of this one's queue pair: printable, for the control
// channel.
#ifndef WAYBILL_CORE_FABRIC_VERBS_LANE_ADDRESS_H_
#define WAYBILL_CORE_FABRIC_VERBS_LANE_ADDRESS_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace waybill::verbs {

using Gid = std::array<uint8_t, 16>;

struct LaneAddress {
  std::string rendezvous;     // Where to meet, and the secret by which to know each other.
  std::string nic;            // For people.
  uint32_t queue_pair = 0;    // 24 bits.
  uint32_t first_packet = 0;  // Its packets' first number, 24 bits.
  uint32_t mtu = 0;           // Of its port, as the enum of libibverbs has it: 1 (256) to 5 (4096).
  uint16_t lid = 0;           // 0 on Ethernet.
  Gid gid = {};

  bool operator==(const LaneAddress&) const = default;
};

std::string ToString(const LaneAddress& address);
// kInvalidArgument, with the text, where it is none.
absl::StatusOr<LaneAddress> ParseLaneAddress(absl::string_view text);

// As people write them: an IPv4 address where the GID holds one, else eight groups.
std::string ToString(const Gid& gid);

}  // namespace waybill::verbs

#endif  // WAYBILL_CORE_FABRIC_VERBS_LANE_ADDRESS_H_
