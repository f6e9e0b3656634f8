// The networks that drills run on, as they are where the test runs: real processes find the same.
#ifndef WAYBILL_TESTING_FAULT_DRILLS_NETWORK_H_
#define WAYBILL_TESTING_FAULT_DRILLS_NETWORK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/fabric/fabric.h"

namespace waybill::drills {

// What the fabrics here are told: how long a peer's host may be silent.
constexpr absl::Duration kDeadPeer = absl::Seconds(2);
constexpr absl::Duration kConnect = absl::Seconds(6);

// Beside SoftRoCE devices: verbs, and tcp across the same links. Elsewhere: tcp and local.
std::vector<std::string> NetworksHere();
bool InGuest();

// How much later than promised something may be seen to happen: a second and, in the guest, where
// code runs twenty times slower, time for the test itself.
absl::Duration Slack();

// A new endpoint on that node, from 0. In the guest a node's address is on its own link.
std::unique_ptr<Fabric> MakeFabric(const std::string& network, uint32_t node);

}  // namespace waybill::drills

#endif  // WAYBILL_TESTING_FAULT_DRILLS_NETWORK_H_
