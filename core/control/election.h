// SPDX-License-Identifier: Apache-2.0

// The rules by which the controllers of a job agree on one that leads.
//
// The leader of a job writes its *beat* to etcd every kBeatPeriod, and the others, the *standbys*,
// read it as often. No clock is compared with another one's: a standby counts its own reads.
//
// Pure: what was read goes in, and what to do comes out.
#ifndef WAYBILL_CORE_CONTROL_ELECTION_H_
#define WAYBILL_CORE_CONTROL_ELECTION_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/time/time.h"

namespace waybill {

inline constexpr absl::Duration kBeatPeriod = absl::Milliseconds(250);
// How many reads in a row must find the same beat before a standby takes the leadership.
inline constexpr int kReadsOfDeadLeader = 6;

// What etcd says about the leader of a job, all of it at one time.
struct Leadership {
  std::string leader;         // Its identity; empty if there never was a leader.
  int64_t beat_revision = 0;  // Changes with each beat; 0 if there never was one.
};

// One standby's view of the election. Not thread-safe.
class Election {
 public:
  enum class Step : uint8_t {
    kWait = 1,
    // Write this identity and a beat, if the beat is still the one that was read. Exactly one of
    // several standbys that try this succeeds. Go on reading if it fails, or if its answer is lost.
    kTakeOver = 2,
    kLead = 3,  // This standby is the leader: an earlier attempt to take over has succeeded.
  };

  // `identity` is one that nobody else has, and that was in no election before.
  explicit Election(std::string identity) : identity_(std::move(identity)) {}

  // Takes what a read has found. Reads are at least kBeatPeriod apart.
  Step OnRead(const Leadership& found) {
    if (found.leader == identity_) return Step::kLead;
    if (found.leader.empty()) return Step::kTakeOver;
    if (found.beat_revision != beat_revision_) reads_ = 0;
    beat_revision_ = found.beat_revision;
    if (++reads_ < kReadsOfDeadLeader) return Step::kWait;
    return Step::kTakeOver;
  }

  // A read has failed. While etcd is away nobody can beat, so counting begins anew.
  void OnReadFailed() { reads_ = 0; }

 private:
  const std::string identity_;
  int64_t beat_revision_ = 0;
  int reads_ = 0;  // In a row that found beat_revision_.
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_ELECTION_H_
