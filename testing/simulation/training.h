// SPDX-License-Identifier: Apache-2.0

// The training loop: every trainer publishes the same version, and the next one once all calls have
// ended. Checks "recovers".
#ifndef WAYBILL_TESTING_SIMULATION_TRAINING_H_
#define WAYBILL_TESTING_SIMULATION_TRAINING_H_

#include <cstdint>
#include <memory>
#include <span>

#include "absl/time/time.h"
#include "testing/simulation/job.h"
#include "testing/simulation/process.h"
#include "testing/simulation/promises.h"
#include "testing/simulation/run.h"

namespace waybill::simulation {

class Training {
 public:
  using Trainers = std::span<const std::unique_ptr<Process>>;  // Null: none at present.

  // The pointers outlive this.
  Training(Run* run, const Job* job, const Promises* promises)
      : run_(*run), job_(*job), promises_(*promises) {}

  // Does what the users of trainers do now.
  void Step(Trainers trainers);

  // From now on, or once every rank has had time to come back, a version has to commit within a few
  // attempts.
  void EndOfFaults();
  // Returns true once one has.
  bool recovered() const { return recovered_; }
  // Returns the version that trainers publish now.
  uint64_t version() const { return version_; }
  // Returns when the next version may begin.
  absl::Time next_event() const;

 private:
  bool MayTryAgain(Trainers trainers);

  Run& run_;
  const Job& job_;
  const Promises& promises_;
  bool calm_ = false;  // Faults have ended.
  uint64_t version_ = 0;
  absl::Time next_version_at_ = Run::kStart;
  absl::Time undecided_until_ = absl::InfiniteFuture();  // Then an outcome is not waited for.
  int attempts_ = 0;                                     // Since every rank is back.
  absl::Time everybody_is_back_;
  bool tried_ = false;  // Since faults ended.
  bool recovered_ = false;
};

}  // namespace waybill::simulation

#endif  // WAYBILL_TESTING_SIMULATION_TRAINING_H_
