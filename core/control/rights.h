// SPDX-License-Identifier: Apache-2.0

// The rights of a key's holder in a job.
#ifndef WAYBILL_CORE_CONTROL_RIGHTS_H_
#define WAYBILL_CORE_CONTROL_RIGHTS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/protocol/messages.pb.h"

namespace waybill {

enum class KeyRole : uint8_t {
  kAuthority,   // Everything, in every job: the holder of the secret from which keys are issued.
  kController,  // Proves to ranks that it is their controller; asks nothing itself.
  kTrainer,     // Joins as a trainer; asks for the status and the job's tensors.
  kWorker,      // Joins as a worker of one group; asks for the job's tensors.
  kObserver,    // Asks for the status.
  kOperator,    // Asks everything, and removes groups.
};

// Returns "authority", "controller", "trainer", "worker", "observer" or "operator".
absl::string_view Name(KeyRole role);

struct Rights {
  KeyRole role = KeyRole::kAuthority;
  std::string job = {};    // Empty for an authority.
  std::string group = {};  // Workers only.

  bool operator==(const Rights&) const = default;
};

// "a worker of group \"a\" in job \"j\"", "an authority"
std::string ToString(const Rights& rights);

// The form of rights in a certificate, as a URI of its subject's alternative names:
// "waybill://JOB/ROLE" or "waybill://JOB/worker/GROUP", where all bytes but letters, digits and
// "-._~" are percent-encoded (RFC 3986, section 2.1).
std::string ToUri(const Rights& rights);
// kInvalidArgument: the text is no such URI.
absl::StatusOr<Rights> ParseUri(absl::string_view uri);

// Return kPermissionDenied if the rights do not suffice in a job, and say what they suffice for.
absl::Status CheckJob(const Rights& rights, const std::string& job);
absl::Status CheckJoin(const Rights& rights, const std::string& job, const proto::Join& join);
absl::Status CheckQuestion(const Rights& rights, const std::string& job,
                           const proto::Question& question);

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_RIGHTS_H_
