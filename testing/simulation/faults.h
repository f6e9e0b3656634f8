// SPDX-License-Identifier: Apache-2.0

// The faults of a run: their kinds, when they strike, and those that a seed draws.
#ifndef WAYBILL_TESTING_SIMULATION_FAULTS_H_
#define WAYBILL_TESTING_SIMULATION_FAULTS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace waybill::simulation {

enum class FaultKind : uint8_t {
  kCrashRank,        // A process dies; another takes its place later.
  kStopRank,         // A process stops for a while, and goes on.
  kReplaceRank,      // A process stops, another takes its place, and later the first one goes on.
  kBreakStream,      // A rank's stream to the controller ends.
  kDelayStream,      // Nothing is delivered on it for a while, then everything.
  kCrashController,  // It dies; another one with the same decision log follows.
  kFailRecord,       // A decision is not recorded, or nobody knows whether it is.
  kCutLanes,         // The lanes between two ranks die.
  kHoldPosts,        // What a rank posts to another is carried out late.
  kResize,           // The trainers go, and another number of them comes.
  kJumpClock,        // Forward or back.
  kRefuse,           // A worker's user refuses an update before it begins, or cannot use it.
  kVeto,             // Or when it has arrived.
  kSilentUser,       // Or does not answer.
  kReadLong,         // A reader holds what a worker shows for a while, or many one after another.
  kCancelPublish,
  kLeave,    // A rank leaves the job, and comes back as another process.
  kCorrupt,  // A byte of a write changes on its way.
  kLie,      // Strangers join, and say what is not true.
  kMute,     // A worker does not say that it has stopped relaying.
  kRemove,   // Somebody removes a rank's group.

  // Drawn for varied seeds.
  kLoseStream,  // A rank's stream ends, and the controller hears of it later.
  kLookAway,    // A rank does not look at its lanes for a while.
  kPause,       // A worker's user pauses it for a while; its memory may lose its contents.
  kDisagree,    // A trainer publishes its next version unlike the others.
  kDiffer,      // A trainer's next version has other bytes than its replica's.
  kNics,        // The NICs of a rank change.
  kMisdirect,   // The next plan or START that a rank gets is not for it.
  kFillLane,    // A lane does not take a post at once.
  kRepeat,      // A lane delivers an immediate twice.
  kVerify,      // The controller asks workers to verify what they show.
  kAway,        // All workers of a group are away for more than ten minutes.
};
inline constexpr size_t kFaultKinds = 32;

// Returns true for the seeds whose only fault is that replicas differ.
inline bool IsOfReplicas(uint64_t seed) { return seed % 16 == 14; }

// Returns true for the seeds that also draw what is rarer.
inline bool IsVaried(uint64_t seed) { return seed % 4 >= 2 && !IsOfReplicas(seed); }

absl::string_view Name(FaultKind kind);

// When a fault strikes: at its time, or once a message of that kind has been delivered to its rank
// or from it.
enum class Trigger : uint8_t { kTime, kPrepare, kStart, kCommit, kArrived, kShown };
inline constexpr size_t kTriggers = 6;

struct Fault {
  int64_t at_ms = 0;  // Virtual time.
  FaultKind kind = FaultKind::kCrashRank;
  Trigger trigger = Trigger::kTime;
  uint32_t who = 0;    // Picks a rank.
  uint32_t other = 0;  // Picks a second one, or a variant.
  int64_t duration_ms = 0;
};

// Faults end after this time: the job has to recover from there.
inline constexpr absl::Duration kFaultyTime = absl::Seconds(12);

// Returns the faults that a seed draws, in the order of their times.
std::vector<Fault> DrawFaults(uint64_t seed);

// Returns a line for each fault.
std::string Describe(const std::vector<Fault>& faults);

}  // namespace waybill::simulation

#endif  // WAYBILL_TESTING_SIMULATION_FAULTS_H_
