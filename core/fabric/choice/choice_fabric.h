// SPDX-License-Identifier: Apache-2.0

// A fabric made of fabrics: each lane is carried by the best that reaches its peer, proved by an
// empty write in both directions, and by the next one where that fails. A NIC on whose path to a
// peer connected lanes have failed repeatedly is avoided for some minutes.
#ifndef WAYBILL_CORE_FABRIC_CHOICE_CHOICE_FABRIC_H_
#define WAYBILL_CORE_FABRIC_CHOICE_CHOICE_FABRIC_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/steady_now.h"
#include "core/fabric/fabric.h"

namespace waybill {

struct ChoiceMember {
  std::unique_ptr<Fabric> fabric;
  // It cannot leave this host: that it does not reach a peer is nothing to report.
  bool within_host = false;
};

struct ChoiceOptions {
  // How long better fabrics may take to connect when a worse one is up, of the time in which the
  // progress thread polled.
  absl::Duration patience = absl::Seconds(10);
  // How often lanes of one NIC to one peer may fail because of the path (path_failure.h) before the
  // others carry such lanes, and for how long since the last failure they do.
  uint32_t most_path_failures = 2;
  absl::Duration avoid_path_for = absl::Minutes(5);
  // In bytes a second, over all lanes that leave this host; 0: no limit. HasRoom() is false until
  // the limit lets the next post begin.
  uint64_t rate_limit = 0;
  std::function<absl::Time()> now = SteadyNow;
};

// Makes a fabric of `members`, best first. Each one must have a wait_descriptor(). `missing` says
// which fabrics are left out and why, for DescribeLane(). kUnavailable: there are no members.
absl::StatusOr<std::unique_ptr<Fabric>> MakeChoiceFabric(std::vector<ChoiceMember> members,
                                                         std::string missing,
                                                         const ChoiceOptions& options = {});

}  // namespace waybill

#endif  // WAYBILL_CORE_FABRIC_CHOICE_CHOICE_FABRIC_H_
