// SPDX-License-Identifier: Apache-2.0

// A group's attempts to get a version that it has missed.
#ifndef WAYBILL_CORE_PROTOCOL_CATCH_UP_ATTEMPTS_H_
#define WAYBILL_CORE_PROTOCOL_CATCH_UP_ATTEMPTS_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"

namespace waybill {

// Counts how often a group has asked other groups, which lend what they show, and the trainers that
// hold a version. Each is asked three times: it may show another version by the time it hears of
// it. Not thread-safe.
class CatchUpAttempts {
 public:
  bool MayAsk(const std::string& lender) const {
    const auto asked = lenders_.find(lender);
    return asked == lenders_.end() || asked->second < kMost;
  }
  bool MayAskTrainers(uint64_t version) const {
    return trainers_version_ != version || trainers_ < kMost;
  }

  void OnAsked(const std::string& lender) { ++lenders_[lender]; }
  // The lender has failed to bring its version, and is not asked again.
  void OnLenderFailed(const std::string& lender, absl::Status why) {
    lenders_[lender] = kMost;
    last_trouble_ = std::move(why);
  }
  void OnTrainersFailed(uint64_t version, absl::Status why) {
    if (std::exchange(trainers_version_, version) != version) trainers_ = 0;
    ++trainers_;
    last_trouble_ = std::move(why);
  }

  // Allows all lenders again: the group has other workers, or some group has committed a version.
  void ForgetLenders() { lenders_.clear(); }
  // Allows the trainers again: the group has other workers, or one of them asks.
  void ForgetTrainers() { trainers_ = 0; }
  void OnCaughtUp() { last_trouble_ = absl::OkStatus(); }

  // Returns why the last attempt failed, or OK if none did since the group last caught up.
  const absl::Status& last_trouble() const { return last_trouble_; }

 private:
  static constexpr int kMost = 3;

  std::map<std::string, int> lenders_;
  uint64_t trainers_version_ = 0;
  int trainers_ = 0;  // For that version.
  absl::Status last_trouble_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PROTOCOL_CATCH_UP_ATTEMPTS_H_
