// A whole job on a virtual clock: the production controller, sessions and engines, one thread, a
// simulated network with real (small) buffers, and faults. Everything follows from one seed.
#ifndef WAYBILL_TESTING_SIMULATION_SIMULATION_H_
#define WAYBILL_TESTING_SIMULATION_SIMULATION_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

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
  kJumpClock,
  kRefuse,      // A worker's user refuses an update before it begins.
  kVeto,        // Or when it has arrived.
  kSilentUser,  // Or does not answer.
  kReadLong,    // A reader holds what a worker shows for a while.
  kCancelPublish,
  kLeave,    // A rank leaves the job, and comes back as another process.
  kCorrupt,  // A byte of a write changes on its way.
};
inline constexpr size_t kFaultKinds = 17;
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

struct Result {
  std::string violation;                       // Empty if every invariant held.
  std::vector<std::string> story;              // What happened, if it was asked for.
  std::array<uint64_t, kFaultKinds> faults{};  // That struck.
  uint64_t committed = 0;                      // Versions, in all groups.
  uint64_t steps = 0;
};

// The faults that a seed draws.
std::vector<Fault> DrawFaults(uint64_t seed);

enum class Story : bool { kNotTold, kTold };

// Runs the job of a seed under `faults`. The same arguments give the same result.
Result RunJob(uint64_t seed, const std::vector<Fault>& faults, Story story);

// Leaves out the faults of a failing seed that it fails without; returns those that are left.
std::vector<Fault> Shrink(uint64_t seed, std::vector<Fault> faults);

std::string Describe(const std::vector<Fault>& faults);

}  // namespace waybill::simulation

#endif  // WAYBILL_TESTING_SIMULATION_SIMULATION_H_
