// SPDX-License-Identifier: Apache-2.0

// Requests that people and tools send to a controller over the network.
#ifndef WAYBILL_CORE_CONTROL_ASK_CONTROLLER_H_
#define WAYBILL_CORE_CONTROL_ASK_CONTROLLER_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/protocol/messages.pb.h"
#include "core/tensor/manifest.h"

namespace waybill {

// `address` may be several addresses, separated by commas, which are tried in turn. All functions
// return kUnavailable if no controller answers within `timeout`, and kUnauthenticated if the
// controller has another token.

absl::StatusOr<proto::StatusReply> FetchStatus(const std::string& address, const std::string& token,
                                               absl::Duration timeout,
                                               const proto::StatusRequest& request = {});

// Returns a manifest with the tensors that the job's trainers declare, each once, and nothing else.
// Blocks until all trainers have sent their manifests. kDeadlineExceeded: names the trainers whose
// manifests are missing after `timeout`.
absl::StatusOr<Manifest> FetchTensors(const std::string& address, const std::string& token,
                                      absl::Duration timeout);

// Dismisses the workers of a group. Later publishes go on without the group, even if it was
// required. Returns the number of dismissed workers. kNotFound: the job has no such group.
absl::StatusOr<uint32_t> RemoveGroup(const std::string& address, const std::string& token,
                                     const std::string& group, absl::Duration timeout);

// Asks the workers of a group, or of all groups if its name is empty, to verify their shown
// versions, and returns each worker's answer. The answer of a worker that does not reply within
// `patience` says so. kNotFound: no such worker has joined; kUnavailable: also if another such
// request is going on.
absl::StatusOr<std::vector<proto::Verified>> VerifyWorkers(const std::string& address,
                                                           const std::string& token,
                                                           const std::string& group,
                                                           absl::Duration patience);

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_ASK_CONTROLLER_H_
