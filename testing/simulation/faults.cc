// SPDX-License-Identifier: Apache-2.0

#include "testing/simulation/faults.h"

#include <algorithm>
#include <iterator>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace waybill::simulation {

absl::string_view Name(FaultKind kind) {
  constexpr absl::string_view kNames[] = {"crash",
                                          "stop",
                                          "replace",
                                          "break the stream of",
                                          "delay the stream of",
                                          "crash the controller",
                                          "fail a record",
                                          "cut a lane of",
                                          "hold posts of",
                                          "another number of trainers",
                                          "jump the clock",
                                          "refuse at",
                                          "veto at",
                                          "silent user of",
                                          "read long at",
                                          "cancel at",
                                          "leave",
                                          "damage a write of",
                                          "lies",
                                          "mute",
                                          "remove the group of",
                                          "lose the stream of",
                                          "look away",
                                          "pause",
                                          "disagree",
                                          "replicas differ",
                                          "other NICs of",
                                          "misdirect a message to",
                                          "fill a lane of",
                                          "repeat an immediate to",
                                          "verify",
                                          "long absence of the group of"};
  static_assert(std::size(kNames) == kFaultKinds);
  return kNames[static_cast<size_t>(kind)];
}

namespace {

constexpr auto kFirstRareKind = static_cast<size_t>(FaultKind::kLoseStream);

// Returns the faults that only varied seeds have.
std::vector<Fault> DrawRareFaults(uint64_t seed) {
  std::mt19937_64 random(seed ^ 0xD1B54A32D192ED03u);
  std::vector<Fault> faults(1 + random() % 4);
  for (Fault& fault : faults) {
    fault.at_ms = static_cast<int64_t>(random() % 10000);
    fault.kind = static_cast<FaultKind>(kFirstRareKind + random() % (kFaultKinds - kFirstRareKind));
    fault.trigger =
        random() % 2 == 0 ? Trigger::kTime : static_cast<Trigger>(1 + random() % (kTriggers - 1));
    fault.who = static_cast<uint32_t>(random() % 1000);
    fault.other = static_cast<uint32_t>(random() % 1000);
    fault.duration_ms = static_cast<int64_t>(random() % 1500);
    if (fault.kind == FaultKind::kDiffer) fault.kind = FaultKind::kDisagree;
  }
  const auto add = [&](FaultKind kind, Trigger trigger, int64_t duration_ms) {
    Fault fault = faults[0];
    if (kind == FaultKind::kReadLong) faults[0].at_ms = fault.at_ms /= 4;
    fault.kind = kind;
    fault.trigger = trigger;
    fault.duration_ms = duration_ms;
    faults.push_back(fault);
  };
  // Some do more together.
  switch (random() % 4) {
    case 0:  // A worker leaves before a reader lets it show what is committed.
      add(FaultKind::kReadLong, Trigger::kArrived,
          static_cast<int64_t>(random() % 2 * 11000 + random() % 4000));
      add(FaultKind::kLeave, Trigger::kCommit, 100);
      break;
    case 1:  // Trainers hear from another controller that a worker cannot use a version.
      add(FaultKind::kRefuse, Trigger::kArrived, 0);
      add(FaultKind::kCrashController, Trigger::kCommit, 100);
      break;
    case 2:  // Another trainer brings what was to come by lanes that are slow, and die.
      add(FaultKind::kHoldPosts, Trigger::kPrepare, 600);
      add(FaultKind::kHoldPosts, Trigger::kStart, 600);
      add(FaultKind::kCutLanes, Trigger::kStart, 0);
      break;
    default:
      break;
  }
  return faults;
}

}  // namespace

std::vector<Fault> DrawFaults(uint64_t seed) {
  // Alone: without its replica, nobody can tell that a trainer's bytes are other ones.
  if (IsOfReplicas(seed)) {
    return {{.at_ms = static_cast<int64_t>(seed % 1000),
             .kind = FaultKind::kDiffer,
             .who = static_cast<uint32_t>(seed / 16)}};
  }
  std::mt19937_64 random(seed ^ 0x9E3779B97F4A7C15u);
  std::vector<Fault> faults(1 + random() % 8);
  for (Fault& fault : faults) {
    fault.at_ms = static_cast<int64_t>(
        random() % static_cast<uint64_t>(absl::ToInt64Milliseconds(kFaultyTime) - 1500));
    fault.kind = static_cast<FaultKind>(random() % kFirstRareKind);
    fault.who = static_cast<uint32_t>(random() % 1000);
    fault.other = static_cast<uint32_t>(random() % 1000);
    // Most are short; some outlast deadlines.
    fault.duration_ms = static_cast<int64_t>(random() % 4 == 0 ? random() % 6000 : random() % 600);
    const bool moment = fault.kind <= FaultKind::kResize && random() % 2 == 0;
    if (moment) fault.trigger = static_cast<Trigger>(1 + random() % (kTriggers - 1));
    // Another process has the place of one that is silent for two seconds, perhaps amid its writes.
    if (fault.kind == FaultKind::kReplaceRank && random() % 2 == 0) {
      fault.duration_ms += 4000;
      fault.trigger = Trigger::kStart;
    }
  }
  // Others of its group have then got all of their bytes by lanes that they keep, and may not know.
  for (Fault& fault : faults) {
    const bool ends_a_term =
        fault.kind == FaultKind::kCrashRank || fault.kind == FaultKind::kBreakStream ||
        fault.kind == FaultKind::kLeave || fault.kind == FaultKind::kReplaceRank;
    if (ends_a_term && random() % 2 == 0) fault.trigger = Trigger::kArrived;
  }
  // Half of the time the trainers change while a worker has still to show a version: its readers
  // keep it from copying, or its user does not answer.
  for (size_t i = 0, drawn = faults.size(); i < drawn; ++i) {
    if (faults[i].kind != FaultKind::kResize || random() % 2 == 0) continue;
    faults[i].trigger = Trigger::kCommit;
    faults.push_back({.at_ms = faults[i].at_ms,
                      .kind = FaultKind::kReadLong,
                      .trigger = Trigger::kArrived,
                      .who = faults[i].who,
                      .duration_ms = 2000});
  }
  if (IsVaried(seed)) {
    const std::vector<Fault> rare = DrawRareFaults(seed);
    faults.insert(faults.end(), rare.begin(), rare.end());
  }
  std::sort(faults.begin(), faults.end(),
            [](const Fault& a, const Fault& b) { return a.at_ms < b.at_ms; });
  return faults;
}

std::string Describe(const std::vector<Fault>& faults) {
  constexpr const char* kWhen[] = {"at",
                                   "at the first PREPARE from",
                                   "at the first START from",
                                   "at the first COMMIT from",
                                   "at the first ARRIVED from",
                                   "at the first SHOWN from"};
  static_assert(std::size(kWhen) == kTriggers);
  std::string text;
  for (const Fault& fault : faults) {
    absl::StrAppend(&text, absl::StrFormat("  %s %.3f s: %s (rank %d, peer %d, %d ms)\n",
                                           kWhen[static_cast<size_t>(fault.trigger)],
                                           static_cast<double>(fault.at_ms) / 1e3,
                                           std::string(Name(fault.kind)), fault.who, fault.other,
                                           fault.duration_ms));
  }
  return text;
}

}  // namespace waybill::simulation
