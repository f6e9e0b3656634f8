// SPDX-License-Identifier: Apache-2.0

// The fabric over RDMA: InfiniBand, RoCE and SoftRoCE, through libibverbs of this host.
//
// A lane is a reliable-connected queue pair on one NIC, with a TCP connection beside it for grants
// and for word of the peer's death. Writes go straight from the source region to their final
// address; the receiving process takes no part but for immediates.
#ifndef WAYBILL_CORE_FABRIC_VERBS_VERBS_FABRIC_H_
#define WAYBILL_CORE_FABRIC_VERBS_VERBS_FABRIC_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/steady_now.h"
#include "core/fabric/fabric.h"
#include "core/fabric/verbs/bounce_limits.h"

namespace waybill {

namespace verbs {
class Verbs;
}  // namespace verbs

struct ChosenNics {
  std::vector<std::string> names;
  std::string why;  // "nearest to the GPU at 0000:3b:00.0". Appears in the paths of lanes.
};

struct VerbsOptions {
  // This host's address, where peers reach the connections beside the queue pairs.
  std::string host = "127.0.0.1";
  // "mlx5_0", or "mlx5_0:2" for the second port. Their order numbers the rails. Empty: every port
  // that is active; then all ports of the host number the rails, by name, so that a port that is
  // down shifts no other. "mlx5_0=3" says which GID index is used on that port.
  std::vector<std::string> nics;
  // If none is named: returns which of the active ports are used, as those that are near to a GPU.
  // They keep their rails.
  std::function<ChosenNics(const std::vector<std::string>& active)> choose = {};
  // The GID index to use on each other port, instead of the rule in gid_choice.h.
  std::optional<uint32_t> gid_index;

  uint32_t queue_depth = 256;  // Work requests outstanding on a lane.
  uint32_t chain = 16;         // Work requests handed to the NIC at once.
  // A lost packet is sent again after 4.096 us * 2^ack_timeout. 0: 14 (67 ms), and on SoftRoCE 18
  // (1 s), where a smaller one can fire on a request that is only slow.
  uint8_t ack_timeout = 0;
  uint8_t traffic_class = 0;
  // After so long without a call of Poll(), as when this process was stopped, the fabric reads what
  // peers have revoked before it posts what waits.
  absl::Duration long_pause = absl::Milliseconds(10);
  // Of the time in which the progress thread polls.
  absl::Duration connect_timeout = absl::Seconds(30);
  // A peer whose host does not answer for as long is dead.
  absl::Duration dead_peer_timeout = absl::Seconds(10);

  // Limits the rings through which regions are copied that cannot be registered because no more
  // memory may be locked. Each lane that needs a ring has its own.
  verbs::BounceLimits bounce;

  std::function<void(absl::string_view)> log;  // Receives one line for each NIC that is chosen.
  std::function<absl::Time()> now = SteadyNow;
  verbs::Verbs* library = nullptr;  // Replaces this host's libibverbs in tests.
};

// kUnavailable, with the remedy: this host has no libibverbs, no device, or no active port.
// kNotFound: no NIC by one of the names.
absl::StatusOr<std::unique_ptr<Fabric>> MakeVerbsFabric(const VerbsOptions& options);

}  // namespace waybill

#endif  // WAYBILL_CORE_FABRIC_VERBS_VERBS_FABRIC_H_
