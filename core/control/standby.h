// SPDX-License-Identifier: Apache-2.0

// Answers calls in place of a controller that does not lead.
#ifndef WAYBILL_CORE_CONTROL_STANDBY_H_
#define WAYBILL_CORE_CONTROL_STANDBY_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace waybill {

// Ends each call with kUnavailable, so that ranks try the next address, with an error that says
// that this is a standby, and which controller leads. Serves from construction to destruction.
// Thread-safe.
class Standby {
 public:
  // `address` and `token` are those of the controller that this process becomes if it leads.
  static absl::StatusOr<std::unique_ptr<Standby>> Start(const std::string& address,
                                                        const std::string& token,
                                                        const std::string& job);
  virtual ~Standby() = default;

  // Sets the leader's address; empty if nobody leads or the leader is unknown.
  virtual void SetLeader(const std::string& address) = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_STANDBY_H_
