// SPDX-License-Identifier: Apache-2.0

// The networks on which drills run. They depend on where the test runs.
#ifndef WAYBILL_TESTING_FAULT_DRILLS_NETWORK_H_
#define WAYBILL_TESTING_FAULT_DRILLS_NETWORK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/fabric/fabric.h"

namespace waybill::drills {

// How long a peer's host may be silent before the fabrics report it as dead.
constexpr absl::Duration kDeadPeer = absl::Seconds(2);
constexpr absl::Duration kConnect = absl::Seconds(6);

// Returns verbs and tcp over the same links if there are SoftRoCE NICs, otherwise tcp and local.
std::vector<std::string> NetworksHere();
bool InGuest();

// How much later than promised an event may be observed: one second, plus time for the test itself
// in the guest, where code runs twenty times slower.
absl::Duration Slack();

// Makes an endpoint on a node, counted from 0. In the guest a node's address is on its own link.
std::unique_ptr<Fabric> MakeFabric(const std::string& network, uint32_t node);

}  // namespace waybill::drills

#endif  // WAYBILL_TESTING_FAULT_DRILLS_NETWORK_H_
