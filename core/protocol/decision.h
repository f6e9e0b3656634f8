// SPDX-License-Identifier: Apache-2.0

// A decision to commit, and what became of recording it.
#ifndef WAYBILL_CORE_PROTOCOL_DECISION_H_
#define WAYBILL_CORE_PROTOCOL_DECISION_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace waybill {

// How many decisions of each group the controller and its log keep.
inline constexpr size_t kDecisionsKept = 4;

// A group commits a version. Final once it is recorded.
struct Decision {
  uint64_t epoch = 0;
  uint32_t sequence = 0;
  uint64_t version = 0;
  std::string group;

  bool operator==(const Decision&) const = default;
};

enum class Recorded : uint8_t {
  kDurable = 1,      // Outlives the controller.
  kNotRecorded = 2,  // Certainly nothing was written.
  // It may or may not be found by the next controller. Nothing can be decided any more.
  kUnknown = 3,
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PROTOCOL_DECISION_H_
