// SPDX-License-Identifier: Apache-2.0

// One run of a seed: its virtual time, its random choices, and its result so far.
#ifndef WAYBILL_TESTING_SIMULATION_RUN_H_
#define WAYBILL_TESTING_SIMULATION_RUN_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "testing/simulation/simulation.h"

namespace waybill::simulation {

class Run {
 public:
  static constexpr absl::Time kStart = absl::FromUnixSeconds(1'000'000);

  Run(uint64_t seed, Story story) : random_(seed), told_(story) {}

  // --- time ---

  absl::Time now() const { return now_; }
  void Advance(absl::Duration time) { now_ += time; }

  // --- choices ---

  std::mt19937_64& random() { return random_; }
  uint64_t Below(uint64_t bound) { return random_() % bound; }
  absl::Duration UpTo(absl::Duration most) {
    return absl::Microseconds(
        static_cast<int64_t>(Below(static_cast<uint64_t>(absl::ToInt64Microseconds(most)) + 1)));
  }
  // Returns a number that no other process or stream of this run has.
  uint64_t NextNumber() { return ++last_number_; }

  // --- steps ---

  void BeginStep() {
    ++result_.steps;
    active_ = false;
  }
  uint64_t steps() const { return result_.steps; }
  // Something has happened in this step. Time may be skipped only after steps without any activity.
  void SetActive() { active_ = true; }
  bool active() const { return active_; }

  // --- what users and networks do wrong ---

  // Something other than the bytes of a version may be sent as that version from now on.
  void SetDamaged() { damaged_ = true; }
  bool damaged() const { return damaged_; }

  // --- result ---

  // Tells a line of the story.
  template <typename... Words>
  void Note(Words... words) {
    if (told_ == Story::kNotTold) return;
    result_.story.push_back(absl::StrFormat("%9.3f s  %s", absl::ToDoubleSeconds(now_ - kStart),
                                            absl::StrCat(words...)));
  }
  // Reports that an invariant does not hold. Only the first report counts; it ends the run.
  void Violate(const std::string& what) {
    if (violated()) return;
    result_.violation = what;
    Note("VIOLATION: ", what);
  }
  bool violated() const { return !result_.violation.empty(); }
  void CountFault(FaultKind kind) { ++result_.faults[static_cast<size_t>(kind)]; }
  void CountCommit() { ++result_.committed; }
  void CountCatchUp() { ++result_.caught_up; }
  void CountContinued() { ++result_.continued; }
  void CountRelayed() { ++result_.relayed; }
  Result TakeResult() { return std::move(result_); }

 private:
  std::mt19937_64 random_;
  const Story told_;
  absl::Time now_ = kStart;
  uint64_t last_number_ = 0;
  bool active_ = false;
  bool damaged_ = false;
  Result result_;
};

}  // namespace waybill::simulation

#endif  // WAYBILL_TESTING_SIMULATION_RUN_H_
