// SPDX-License-Identifier: Apache-2.0

#include "testing/simulation/promises.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace waybill::simulation {

bool Promises::Contains(const VersionsOfGroups& versions, const std::string& group,
                        uint64_t version) {
  const auto found = versions.find(group);
  return found != versions.end() && found->second.contains(version);
}

bool Promises::ToldCommitted(const Group& group, uint64_t version) const {
  return Contains(told_committed_, group.name, version);
}

bool Promises::ToldFailed(const Group& group, uint64_t version) const {
  return Contains(told_failed_, group.name, version);
}

uint64_t Promises::NewestDecided(const std::string& group) const {
  uint64_t newest = 0;
  for (const Decision& d : decisions_) {
    if (group.empty() || d.group == group) newest = std::max(newest, d.version);
  }
  return newest;
}

uint64_t Promises::NewestTold() const {
  uint64_t newest = 0;
  for (const VersionsOfGroups* told : {&told_committed_, &told_failed_}) {
    for (const auto& [group, versions] : *told) newest = std::max(newest, *versions.rbegin());
  }
  return newest;
}

bool Promises::FailedEverywhere(uint64_t version) const {
  const bool failed = std::any_of(told_failed_.begin(), told_failed_.end(),
                                  [&](const auto& told) { return told.second.contains(version); });
  return failed && std::none_of(decisions_.begin(), decisions_.end(), [&](const Decision& d) {
           return d.version == version && !controller_.IsCatchUp(d);
         });
}

bool Promises::CaughtUp(const std::string& group, uint64_t version) const {
  return std::any_of(decisions_.begin(), decisions_.end(), [&](const Decision& d) {
    return d.group == group && d.version == version && controller_.IsCatchUp(d);
  });
}

void Promises::OnOutcome(uint64_t version, const std::string& group, bool committed, bool good) {
  (committed ? told_committed_ : told_failed_)[group].insert(version);
  if (CaughtUp(group, version)) return;
  if (good && Contains(unusable_, group, version)) {
    run_.Violate(absl::StrCat("truthful: version ", version, " of group ", group,
                              " is reported as shown, and a worker's user could not use it"));
  }
  if (committed && Contains(told_failed_, group, version)) {
    run_.Violate(absl::StrCat("truthful: version ", version, " of group ", group,
                              " was reported as failed and as committed"));
  }
  if (!committed && Contains(shown_, group, version)) {
    run_.Violate(absl::StrCat("truthful: version ", version, " of group ", group,
                              " is reported as failed, and was shown"));
  }
}

void Promises::OnShown(const Process& process, uint64_t before, uint64_t version) {
  const std::string& group = process.id().group;
  shown_[group].insert(version);
  std::erase_if(unusable_[group], [&](uint64_t earlier) { return earlier < version; });
  if (Contains(told_failed_, group, version) && !CaughtUp(group, version)) {
    run_.Violate(absl::StrCat("truthful: ", process.name(), " shows version ", version,
                              ", which was reported as failed"));
  }
  if (FailedEverywhere(version) && process.fetches()) {
    run_.Violate(absl::StrCat("truthful: ", process.name(), " has fetched version ", version,
                              ", which was reported as failed"));
  }
  if (WaitsForWord(version) && !let_be_shown_.contains(version)) {
    run_.Violate(absl::StrCat("asked: ", process.name(), " shows version ", version,
                              ", and no trainer has let it"));
  }
  const auto sent = compositions_.find(version);
  if (sent != compositions_.end() && process.shows_exactly() != (sent->second == 0)) {
    run_.Violate(absl::StrCat("composed: ", process.name(), " takes version ", version,
                              process.shows_exactly() ? ", which is not exact, for exact"
                                                      : ", which is exact, for another one"));
  }
  // Nothing that was decided while it was a member is left out.
  for (size_t i = process.born(); i < decisions_.size() && !process.was_replaced(); ++i) {
    const Decision& d = decisions_[i];
    if (d.group == group && d.version > before && d.version < version) {
      run_.Violate(absl::StrCat("truthful: ", process.name(), " shows version ", version,
                                " and never showed version ", d.version, ", which is committed"));
    }
  }
  const bool recorded = std::any_of(decisions_.begin(), decisions_.end(), [&](const Decision& d) {
    return d.group == group && d.version == version;
  });
  if (!recorded) {
    run_.Violate(absl::StrCat("together: ", process.name(), " shows version ", version,
                              ", and no decision is recorded"));
  }
}

void Promises::CheckAtEnd(const std::vector<const Process*>& processes) {
  const std::string& group = processes.front()->id().group;
  // Only a controller that has just started, and finds in its records the version that trainers
  // publish, tells them of what a group fetches: such a group is further by its decisions.
  const auto told = told_committed_.find(group);
  const uint64_t newest = told != told_committed_.end() && !processes.front()->fetches()
                              ? *told->second.rbegin()
                              : NewestDecided(group);
  std::string shown;
  for (const Process* process : processes) {
    const WorkerRank& worker = process->worker();
    if (worker.shown_version() == newest) {
      if (worker.dirty()) {
        run_.Violate(absl::StrCat("whole: ", process->name(), " is dirty at the end"));
      }
      return;
    }
    absl::StrAppend(&shown, process->name(), " shows version ", worker.shown_version(), ", ");
  }
  run_.Violate(absl::StrCat("together: ", shown, "version ", newest, " was reported as committed"));
}

}  // namespace waybill::simulation
