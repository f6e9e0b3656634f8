// SPDX-License-Identifier: Apache-2.0

#include "core/control/changes_choice.h"

namespace waybill {
namespace {

// Trying the slower way takes at most one part in so many of the time of all updates.
constexpr int64_t kPartOfTries = 20;
constexpr uint32_t kLeastUpdates = 8;  // Between two tries.

constexpr size_t Index(Sent sent) { return static_cast<size_t>(sent); }
constexpr Sent Other(Sent sent) {
  return sent == Sent::kChanges ? Sent::kEverything : Sent::kChanges;
}

}  // namespace

Sent ChangesChoice::Next() {
  for (const Sent sent : {Sent::kChanges, Sent::kEverything}) {
    if (!took_[Index(sent)]) return sent;
  }
  const Sent faster = *took_[Index(Sent::kChanges)] <= *took_[Index(Sent::kEverything)]
                          ? Sent::kChanges
                          : Sent::kEverything;
  const absl::Duration lost = *took_[Index(Other(faster))] - *took_[Index(faster)];
  ++updates_;
  const bool try_other =
      updates_ >= kLeastUpdates && kPartOfTries * lost <= updates_ * *took_[Index(faster)];
  if (!try_other) return faster;
  updates_ = 0;
  return Other(faster);
}

void ChangesChoice::Record(Sent sent, absl::Duration took) {
  std::optional<absl::Duration>& mean = took_[Index(sent)];
  mean = mean ? (*mean + took) / 2 : took;
}

}  // namespace waybill
