// SPDX-License-Identifier: Apache-2.0

// Chooses whether a group is sent what changed or everything, by how long updates took lately.
#ifndef WAYBILL_CORE_CONTROL_CHANGES_CHOICE_H_
#define WAYBILL_CORE_CONTROL_CHANGES_CHOICE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/time/time.h"

namespace waybill {

enum class Sent : uint8_t { kEverything, kChanges };

// Sending what changed costs processor time on both sides and spares the network. Which way is
// faster depends on both hosts, on what else they do, and on how much changes. So the way that was
// faster goes on, and the other one is tried again now and then.
class ChangesChoice {
 public:
  // Returns what the next update sends.
  Sent Next();
  // Records how long an update took until the group showed the version.
  void Record(Sent sent, absl::Duration took);

 private:
  std::array<std::optional<absl::Duration>, 2> took_;  // By Sent; the mean of the last ones.
  uint32_t updates_ = 0;                               // Since the slower way was tried.
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_CHANGES_CHOICE_H_
