// SPDX-License-Identifier: Apache-2.0

// The storage in which a controller records its decisions to commit.
#ifndef WAYBILL_CORE_CONTROL_DECISION_STORE_H_
#define WAYBILL_CORE_CONTROL_DECISION_STORE_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/protocol/decision.h"

namespace waybill {

// One controller at a time records in a store. Not thread-safe.
class DecisionStore {
 public:
  virtual ~DecisionStore() = default;

  // Records a decision. kDurable: every later controller reads it. kNotRecorded: no controller ever
  // reads it. kUnknown: either may be true, and nothing can be recorded any more. Waits for a disk
  // or a network, for a bounded time.
  virtual std::pair<Recorded, absl::Status> Append(const Decision& decision) = 0;

  // Drops the decisions of a group. A later controller may still read them if the store fails
  // meanwhile.
  virtual void Forget(const std::string& group) = 0;

  // Returns the decisions that the store held when it was opened: the last few of each group, in
  // the order in which they were made. Call it before the first Append().
  virtual const std::vector<Decision>& decisions() const = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_DECISION_STORE_H_
