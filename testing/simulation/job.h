// SPDX-License-Identifier: Apache-2.0

// The job that a seed draws, and the bytes of each of its versions.
#ifndef WAYBILL_TESTING_SIMULATION_JOB_H_
#define WAYBILL_TESTING_SIMULATION_JOB_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "core/base/rank_id.h"
#include "core/protocol/update.h"
#include "core/tensor/manifest.h"

namespace waybill::simulation {

struct Group {
  std::string name;
  uint32_t size = 0;  // How many workers it has.
};

// A job with one tensor, which trainers hold by rows and workers by columns.
struct Job {
  uint32_t trainers = 1;
  uint32_t replicas = 1;  // Trainers t and t + trainers / replicas hold the same.
  std::vector<Group> groups;
  Mode mode = Mode::kShadow;
  bool can_map = false;
  bool asked = false;     // Users answer the notices of updates.
  bool required = false;  // No version is published without every group.
  bool held = false;      // Trainers hold some versions for groups that have missed them.
  bool images = false;    // Trainers publish from images, and hold each version until the next.
  bool changes = false;   // They send what changed, to the workers that can complete it.
  bool chooses_changes = false;  // Trainers choose whether they send those.
  // Trainers take over the tensor into some versions as a selection: these count as approximate,
  // though they are all of it.
  bool selects = false;
  bool fetches = false;   // Workers of the last group get versions when they ask, and only then.
  size_t most_ranks = 0;  // That there were at a time.
  bool relays = false;  // Workers hold the whole tensor, and relay it to the others of their group.
  // Users do what others do not; see also the faults of such seeds.
  bool varied = false;
  bool quantised = false;    // Workers hold the tensor quantised, by blocks that trainers share.
  bool any_rank = false;     // The controller numbers ranks that hold the same.
  uint32_t controllers = 1;  // The number of addresses of the controller.

  const Group& GroupNamed(const std::string& name) const;
  // Returns true if versions wait while the group that fetches is too far behind.
  bool BoundsStaleness() const { return images && fetches && required; }
  bool Fetches(const std::string& group) const { return fetches && group == groups.back().name; }
  // All ranks: the trainers, then the workers by group.
  std::vector<RankId> Ranks() const;
  // How many ranks the rank has lanes to, and how many there are of its kind.
  uint32_t PeersOf(const RankId& id) const;
  uint32_t WorldOf(const RankId& id) const;
  // Returns the part of the tensor that the rank holds.
  Box BoxOf(const RankId& id) const;
  // Returns true if the rank holds what all others of its kind hold.
  bool HoldsTheSame(const RankId& id) const;
  Manifest ManifestOf(const RankId& id) const;
  // Returns the bytes of a version in each region of that manifest.
  std::vector<std::vector<std::byte>> BytesOf(const RankId& id, uint64_t version) const;
};

Job DrawJob(uint64_t seed, std::mt19937_64& random);

// Returns true for the versions that no group shows before a trainer lets it.
inline bool WaitsForWord(uint64_t version) { return version % 4 == 1; }

// Returns the manifest of a rank that holds `box` as it is.
Manifest OneShard(const Box& box);

}  // namespace waybill::simulation

#endif  // WAYBILL_TESTING_SIMULATION_JOB_H_
