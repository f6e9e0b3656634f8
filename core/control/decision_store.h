// SPDX-License-Identifier: Apache-2.0

// Where a controller records its decisions to commit.
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

  // Records a decision. kDurable: every later controller finds it. kNotRecorded: no controller ever
  // finds it. kUnknown: neither can be said; nothing can be recorded any more. May wait for a disk
  // or a network, but not without end.
  virtual std::pair<Recorded, absl::Status> Append(const Decision& decision) = 0;

  // Drops the decisions of a group. They may be found again if the store fails meanwhile.
  virtual void Forget(const std::string& group) = 0;

  // Returns the decisions that were found when the store was opened: the last few of each group, in
  // the order in which they were made. Call it before the first Append().
  virtual const std::vector<Decision>& decisions() const = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_DECISION_STORE_H_
