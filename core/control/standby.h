// SPDX-License-Identifier: Apache-2.0

// Answers in the place of a controller that does not lead.
#ifndef WAYBILL_CORE_CONTROL_STANDBY_H_
#define WAYBILL_CORE_CONTROL_STANDBY_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace waybill {

// Ends each call with kUnavailable, so that ranks try the next address, and says that this is a
// standby and who leads. Serves from construction to destruction. Thread-safe.
class Standby {
 public:
  // `address` and `token` are those of the controller that this process will be.
  static absl::StatusOr<std::unique_ptr<Standby>> Start(const std::string& address,
                                                        const std::string& token,
                                                        const std::string& job);
  virtual ~Standby() = default;

  // An empty address: nobody leads, or it is not known who does.
  virtual void SetLeader(const std::string& address) = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_STANDBY_H_
