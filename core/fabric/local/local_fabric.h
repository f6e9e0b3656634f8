// SPDX-License-Identifier: Apache-2.0

// The fabric between processes of one host: memory is shared, sockets carry the rest.
//
// A region that was allocated here is a sealed memfd. A peer to which it is granted maps it and
// stores at the final address. A region that was only registered is filled by its owner: the peer
// posts writes from a granted region of its own, and the owner's Poll() checks them and copies.
// Which of the two it is depends on the region, and Map() tells. No rights over other processes are
// needed.
//
// Memory of a GPU can be registered, in which case its owner copies with that GPU, and it can be a
// source, which the peer opens.
#ifndef WAYBILL_CORE_FABRIC_LOCAL_LOCAL_FABRIC_H_
#define WAYBILL_CORE_FABRIC_LOCAL_LOCAL_FABRIC_H_

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/fabric/fabric.h"

namespace waybill {

struct LocalOptions {
  // How long somebody who connects may take to say which lane it wants, and how many may.
  absl::Duration stranger_timeout = absl::Seconds(5);
  size_t most_strangers = 128;
};

absl::StatusOr<std::unique_ptr<Fabric>> MakeLocalFabric(const LocalOptions& options = {});

}  // namespace waybill

#endif  // WAYBILL_CORE_FABRIC_LOCAL_LOCAL_FABRIC_H_
