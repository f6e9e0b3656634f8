// SPDX-License-Identifier: Apache-2.0

// The rules by which the controllers of a job elect a leader.
//
// The leader of a job writes its *beat* to etcd every kBeatPeriod, and the others, the *standbys*,
// read it as often. Clocks of different hosts are never compared: a standby counts its own reads.
//
// Pure: results of reads go in, and the next step comes out.
#ifndef WAYBILL_CORE_CONTROL_ELECTION_H_
#define WAYBILL_CORE_CONTROL_ELECTION_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/time/time.h"

namespace waybill {

inline constexpr absl::Duration kBeatPeriod = absl::Milliseconds(250);
// The number of successive reads that must find the same beat before a standby takes over.
inline constexpr int kReadsOfDeadLeader = 6;

// The state of a job's leadership in etcd, from one read.
struct Leadership {
  std::string leader;         // The leader's identity; empty if there never was a leader.
  int64_t beat_revision = 0;  // Changes with each beat; 0 if there never was one.
};

// One standby's view of the election. Not thread-safe.
class Election {
 public:
  enum class Step : uint8_t {
    kWait = 1,
    // Write this identity and a beat in one transaction, on condition that the beat has not changed
    // since the read. If several standbys try this, exactly one succeeds. If the transaction fails,
    // or its answer is lost, continue to read.
    kTakeOver = 2,
    kLead = 3,  // This standby is the leader: an earlier attempt to take over has succeeded.
  };

  // `identity` must be unique, and must not have been used in an earlier election.
  explicit Election(std::string identity) : identity_(std::move(identity)) {}

  // Handles the result of a read, and returns the next step. Reads must be at least kBeatPeriod
  // apart.
  Step OnRead(const Leadership& found) {
    if (found.leader == identity_) return Step::kLead;
    if (found.leader.empty()) return Step::kTakeOver;
    if (found.beat_revision != beat_revision_) reads_ = 0;
    beat_revision_ = found.beat_revision;
    if (++reads_ < kReadsOfDeadLeader) return Step::kWait;
    return Step::kTakeOver;
  }

  // Handles a failed read. While etcd is unreachable the leader cannot write beats either, so
  // counting starts again.
  void OnReadFailed() { reads_ = 0; }

 private:
  const std::string identity_;
  int64_t beat_revision_ = 0;
  int reads_ = 0;  // The number of successive reads that found beat_revision_.
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_ELECTION_H_
