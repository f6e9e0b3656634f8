// SPDX-License-Identifier: Apache-2.0

// What people and tools ask of a controller, over the network.
#ifndef WAYBILL_CORE_CONTROL_ASK_CONTROLLER_H_
#define WAYBILL_CORE_CONTROL_ASK_CONTROLLER_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/protocol/messages.pb.h"
#include "core/tensor/manifest.h"

namespace waybill {

// `address` may be several, with commas: they are tried in turn. All fail with kUnavailable if
// nobody answers until `timeout` is over, and with kUnauthenticated if the controller has another
// token.

absl::StatusOr<proto::StatusReply> FetchStatus(const std::string& address, const std::string& token,
                                               absl::Duration timeout,
                                               const proto::StatusRequest& request = {});

// Returns the tensors that the job's trainers declare, each once, in a manifest that has nothing
// else. Blocks until the manifests of all trainers are there. kDeadlineExceeded: names the trainers
// whose manifests are missing after `timeout`.
absl::StatusOr<Manifest> FetchTensors(const std::string& address, const std::string& token,
                                      absl::Duration timeout);

// Dismisses the workers of a group, and publishes without it even if it was required. Returns how
// many workers it had. kNotFound: the job has no such group.
absl::StatusOr<uint32_t> RemoveGroup(const std::string& address, const std::string& token,
                                     const std::string& group, absl::Duration timeout);

// Asks the workers of a group, or of all groups if its name is empty, to verify what they show, and
// returns what each has answered. Those that do not answer within `patience` are named. kNotFound:
// no such worker has joined; kUnavailable: also if they are being asked already.
absl::StatusOr<std::vector<proto::Verified>> VerifyWorkers(const std::string& address,
                                                           const std::string& token,
                                                           const std::string& group,
                                                           absl::Duration patience);

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_ASK_CONTROLLER_H_
