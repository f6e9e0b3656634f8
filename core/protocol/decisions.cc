// SPDX-License-Identifier: Apache-2.0

#include "core/protocol/decisions.h"

#include <algorithm>

namespace waybill {
namespace {

// A worker that has voted tries to come back every two seconds.
constexpr absl::Duration kKeptFor = absl::Minutes(10);
// The last part of that time begins when it is noticed that the rest is over: a controller that was
// stopped meanwhile, alone or with its host, has heard nobody.
constexpr absl::Duration kLastMinute = absl::Minutes(1);

}  // namespace

const Decision* GroupDecisions::Find(const proto::Round& round) const {
  const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const Decision& decision) {
    return decision.epoch == round.epoch() && decision.sequence == round.sequence();
  });
  return found == kept_.end() ? nullptr : &*found;
}

bool GroupDecisions::Contains(const proto::Round& round, uint64_t version) const {
  const Decision* const decision = Find(round);
  return decision != nullptr && decision->version == version;
}

bool GroupDecisions::Contains(uint64_t version) const {
  return std::any_of(kept_.begin(), kept_.end(),
                     [&](const Decision& decision) { return decision.version == version; });
}

bool Decisions::Add(const Decision& decision) {
  std::vector<Decision>& kept = groups_[decision.group].decisions.kept_;
  kept.push_back(decision);
  if (kept.size() > kDecisionsKept) kept.erase(kept.begin());
  if (decision.version <= newest_version_) return false;
  newest_version_ = decision.version;
  newest_group_ = decision.group;
  return true;
}

void Decisions::OnAway(const std::string& group, absl::Time now) {
  const auto found = groups_.find(group);
  if (found == groups_.end()) return;
  if (found->second.decisions.empty()) {
    groups_.erase(found);
    return;
  }
  found->second.away_since = now;
  away_.emplace_back(now, group);
}

std::vector<std::string> Decisions::Forget(absl::Time now) {
  for (const std::string& group : TakeThoseAwaySince(now - (kKeptFor - kLastMinute), away_)) {
    groups_.at(group).away_since = now;
    in_last_minute_.emplace_back(now, group);
  }
  std::vector<std::string> forgotten;
  for (std::string& group : TakeThoseAwaySince(now - kLastMinute, in_last_minute_)) {
    if (group == newest_group_) {
      OnAway(group, now);
      continue;
    }
    groups_.erase(group);
    forgotten.push_back(std::move(group));
  }
  return forgotten;
}

std::vector<std::string> Decisions::TakeThoseAwaySince(absl::Time time, Queue& queue) const {
  std::vector<std::string> taken;
  for (; !queue.empty() && queue.front().first <= time; queue.pop_front()) {
    auto& [since, group] = queue.front();
    const auto found = groups_.find(group);
    if (found == groups_.end() || found->second.away_since != since) continue;
    taken.push_back(std::move(group));
  }
  return taken;
}

}  // namespace waybill
