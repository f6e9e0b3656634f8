// SPDX-License-Identifier: Apache-2.0

#include "testing/simulation/training.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace waybill::simulation {
namespace {

constexpr int kMostAttempts = 4;  // To publish, once faults have ended.
// How long an outcome may take: one of a group that the controller does not know of never comes.
constexpr absl::Duration kOutcomeTime = absl::Seconds(3);
// How long a rank may take to come back: to find the controller, and to take a place over.
constexpr absl::Duration kReturnTime = absl::Seconds(6);

}  // namespace

void Training::EndOfFaults() {
  calm_ = true;
  // A group that is not required is skipped by versions until all are back.
  everybody_is_back_ = run_.now() + (job_.required ? absl::ZeroDuration() : kReturnTime);
}

void Training::Step(Trainers trainers) {
  bool busy = false, all_joined = true, any_joined = false;
  for (const auto& trainer : trainers) {
    if (trainer == nullptr || !trainer->joined()) {
      all_joined = false;
      continue;
    }
    any_joined = true;
    if (trainer->publishing()) busy = true;
  }
  if (!any_joined || (!all_joined && calm_)) return;
  // Those that lag behind begin when they like.
  for (const auto& trainer : trainers) {
    if (trainer == nullptr || !trainer->joined() || trainer->gone() || trainer->stopped()) continue;
    if (trainer->publishing() || trainer->done() >= version_) continue;
    busy = true;
    if (run_.Below(3) != 0) continue;
    trainer->Publish(
        version_, calm_ ? absl::Seconds(20) : absl::Milliseconds(200) + run_.UpTo(absl::Seconds(8)),
        /*selects=*/job_.selects && !calm_ && version_ % 3 == 2);
    run_.SetActive();
  }
  if (busy) undecided_until_ = run_.now() + kOutcomeTime;
  if (busy || run_.now() < next_version_at_) return;
  if (calm_ && tried_ && !MayTryAgain(trainers)) return;
  tried_ = calm_;
  if (calm_ && run_.now() >= everybody_is_back_) ++attempts_;
  // A trainer that disagrees is ahead of the others.
  version_ = std::max(version_, promises_.NewestTold()) + 1;
  run_.Note("the trainers go on to version ", version_);
  next_version_at_ = run_.now() + run_.UpTo(absl::Milliseconds(400));
}

// The attempt has ended for every trainer. Returns true if the next one may begin: this one was not
// committed everywhere, and nothing about it is open.
bool Training::MayTryAgain(Trainers trainers) {
  bool everywhere = true, decided = true;
  for (const Group& group : job_.groups) {
    const bool committed = job_.Fetches(group.name)
                               ? promises_.NewestDecided(group.name) >= version_
                               : promises_.ToldCommitted(group, version_);
    everywhere = everywhere && committed;
    decided = decided && (committed || promises_.ToldFailed(group, version_));
  }
  if (everywhere) {
    recovered_ = true;
    return false;
  }
  const bool any_failed = std::any_of(trainers.begin(), trainers.end(), [](const auto& trainer) {
    return trainer != nullptr && trainer->failed();
  });
  // It is SENT, and the outcome is on its way.
  if (!decided && !any_failed && run_.now() < undecided_until_) return false;
  if (attempts_ >= kMostAttempts) {
    run_.Violate(absl::StrCat("recovers: version ", version_, " is attempt ", attempts_,
                              " since faults have ended, and was not committed"));
    return false;
  }
  return true;
}

absl::Time Training::next_event() const {
  if (next_version_at_ > run_.now()) return next_version_at_;
  return undecided_until_ > run_.now() ? undecided_until_ : absl::InfiniteFuture();
}

}  // namespace waybill::simulation
