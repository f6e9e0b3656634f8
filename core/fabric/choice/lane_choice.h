// SPDX-License-Identifier: Apache-2.0

// How two ends agree on one of several ways between them: the best that is up. The rule alone,
// without any network.
//
// Both ends try all ways at once. The end that leads proposes the best way that is up, once every
// better one has failed, by an empty write on it; the other end answers by another on the same way.
// The first immediate on a way is therefore never the user's.
#ifndef WAYBILL_CORE_FABRIC_CHOICE_LANE_CHOICE_H_
#define WAYBILL_CORE_FABRIC_CHOICE_LANE_CHOICE_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace waybill::choice {

class LaneChoice {
 public:
  // `ways` are the names of the ways, best first. `leads` is true at exactly one of the two ends.
  // `patience` is how long better ways may take once a worse one is up. Call OnFailed() for each
  // way that this end or the other does not have.
  LaneChoice(std::vector<std::string> ways, bool leads, absl::Duration patience);

  // Report what happened. Each call may change the results of the functions below.
  void OnUp(size_t way, absl::Time now);
  void OnFailed(size_t way, const absl::Status& why);
  void OnProposal(size_t way);      // The way's first immediate: a proposal, or the answer to ours.
  void OnProposalSent(size_t way);  // Our own empty write is complete.
  void OnTime(absl::Time now);

  // The way on which an empty write is to be sent now, once each.
  std::optional<size_t> TakeToPropose();
  // The way that was chosen; final.
  std::optional<size_t> chosen() const { return chosen_; }
  // Not OK: all failed, and why each did.
  absl::Status status() const;
  // Why none better was: "verbs: ...". Empty where the best was.
  std::string WhyNoBetter() const;
  // Ways that were tried, and failed.
  bool failed(size_t way) const { return !ways_[way].why.ok(); }

 private:
  struct Way {
    std::string name;
    bool up = false;
    bool proposed = false;  // By this end, or answered.
    absl::Status why;       // Not OK: failed.
  };

  void Decide();
  bool open() const { return !chosen_.has_value(); }

  std::vector<Way> ways_;
  const bool leads_;
  const absl::Duration patience_;
  std::optional<absl::Time> give_up_at_;  // On those that are better than one that is up.
  std::optional<size_t> to_propose_;
  std::optional<size_t> chosen_;
};

}  // namespace waybill::choice

#endif  // WAYBILL_CORE_FABRIC_CHOICE_LANE_CHOICE_H_
