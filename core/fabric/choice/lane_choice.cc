// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/choice/lane_choice.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace waybill::choice {

LaneChoice::LaneChoice(std::vector<std::string> ways, bool leads, absl::Duration patience)
    : leads_(leads), patience_(patience) {
  for (std::string& name : ways) ways_.push_back({.name = std::move(name)});
}

void LaneChoice::OnUp(size_t way, absl::Time now) {
  ways_[way].up = true;
  if (!give_up_at_) give_up_at_ = now + patience_;
  Decide();
}

void LaneChoice::OnFailed(size_t way, const absl::Status& why) {
  if (!open() || failed(way)) return;
  ways_[way].why = why;
  if (to_propose_ == way) to_propose_.reset();
  Decide();
}

void LaneChoice::OnProposal(size_t way) {
  if (!open() || failed(way)) return;
  if (leads_) {
    if (ways_[way].proposed) chosen_ = way;
  } else if (!ways_[way].proposed) {
    ways_[way].proposed = true;
    to_propose_ = way;
  }
}

// The answer has arrived, so the end that leads knows.
void LaneChoice::OnProposalSent(size_t way) {
  if (open() && !leads_ && !failed(way)) chosen_ = way;
}

void LaneChoice::OnTime(absl::Time now) {
  if (!open() || !give_up_at_ || now < *give_up_at_) return;
  // The proposed fabric has had its time as well.
  give_up_at_ = now + patience_;
  for (size_t i = 0; i < ways_.size(); ++i) {
    if (failed(i)) continue;
    if (ways_[i].up && !ways_[i].proposed) break;  // The next to be asked for.
    OnFailed(i, absl::DeadlineExceededError(
                    absl::StrCat(ways_[i].up ? "an empty write got no answer" : "did not connect",
                                 " within ", absl::FormatDuration(patience_))));
    if (!open()) return;
    if (to_propose_) return;
  }
}

std::optional<size_t> LaneChoice::TakeToPropose() {
  return std::exchange(to_propose_, std::nullopt);
}

void LaneChoice::Decide() {
  if (!leads_ || !open()) return;
  for (size_t i = 0; i < ways_.size(); ++i) {
    if (failed(i)) continue;
    if (ways_[i].up && !ways_[i].proposed) {
      ways_[i].proposed = true;
      to_propose_ = i;
    }
    return;  // A better one may still come up, or is being asked for.
  }
}

absl::Status LaneChoice::status() const {
  std::string reasons;
  for (const Way& way : ways_) {
    if (way.why.ok()) return absl::OkStatus();
    absl::StrAppend(&reasons, reasons.empty() ? "" : "; ", way.name, ": ", way.why.message());
  }
  return absl::UnavailableError(absl::StrCat("no fabric reaches it: ", reasons));
}

std::string LaneChoice::WhyNoBetter() const {
  std::string reasons;
  for (size_t i = 0; i < ways_.size() && i != chosen_; ++i) {
    absl::StrAppend(
        &reasons, reasons.empty() ? "" : "; ", ways_[i].name, ": ",
        ways_[i].why.ok() ? absl::string_view("the other end chose") : ways_[i].why.message());
  }
  return reasons;
}

}  // namespace waybill::choice
