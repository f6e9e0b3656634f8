// SPDX-License-Identifier: Apache-2.0

// Tokens: the job's secret, or a key that it has issued (identity.h).
#ifndef WAYBILL_CORE_CONTROL_JOB_TOKEN_H_
#define WAYBILL_CORE_CONTROL_JOB_TOKEN_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace waybill {

constexpr size_t kLeastTokenBytes = 16;

// Returns "$XDG_STATE_HOME/waybill", by default ".local/state/waybill" in $HOME, or in the user's
// home directory if $HOME is not set. Empty if the user has no home directory.
std::string StateFolder();

// Returns `given`; or if that is "@PATH", what the file holds, without white space at its end; or
// if it is empty, the user's own secret, from the file "token" in StateFolder(), which only its
// owner can read. The first process that needs that file creates it. kUnauthenticated: the token is
// shorter than kLeastTokenBytes, or a file cannot be read, created or trusted.
absl::StatusOr<std::string> JobToken(const std::string& given);

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_JOB_TOKEN_H_
