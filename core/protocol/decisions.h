// SPDX-License-Identifier: Apache-2.0

// The decisions of a job's groups, as far as somebody may still ask for them. Pure; not
// thread-safe.
#ifndef WAYBILL_CORE_PROTOCOL_DECISIONS_H_
#define WAYBILL_CORE_PROTOCOL_DECISIONS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "core/protocol/decision.h"
#include "core/protocol/messages.pb.h"

namespace waybill {

// The last kDecisionsKept decisions of one group, oldest first.
class GroupDecisions {
 public:
  bool empty() const { return kept_.empty(); }
  // 0 if there is none.
  uint64_t newest_version() const { return empty() ? 0 : kept_.back().version; }
  // Returns what the group decided in that round, or null.
  const Decision* Find(const proto::Round& round) const;
  bool Contains(const proto::Round& round, uint64_t version) const;
  bool Contains(uint64_t version) const;
  // Returns true if a decision for that version would be among those that are kept.
  bool Reaches(uint64_t version) const { return !empty() && version > kept_.front().version; }
  const std::vector<Decision>& kept() const { return kept_; }

 private:
  friend class Decisions;

  std::vector<Decision> kept_;
};

class Decisions {
 public:
  // Returns true if the version is newer than any that a group has committed before.
  bool Add(const Decision& decision);
  // The reference stays valid until the group is forgotten.
  const GroupDecisions& Of(const std::string& group) { return groups_[group].decisions; }
  // Somebody of the group is here, or expected.
  void OnHere(const std::string& group) { groups_[group].away_since = absl::InfiniteFuture(); }
  // Nobody of the group is here or expected any more. Its decisions are kept for a while, in which
  // its workers may come back and ask what became of their votes.
  void OnAway(const std::string& group, absl::Time now);
  // Forgets groups that have been away for ten minutes, and of them for a minute after a call that
  // found them away for nine. Keeps the one with the newest version of all: a controller without
  // any decision would take any version for the newest. Returns their names.
  std::vector<std::string> Forget(absl::Time now);

  // The newest version that any group has committed; 0 if there is none.
  uint64_t newest_version() const { return newest_version_; }

 private:
  struct Group {
    GroupDecisions decisions;
    absl::Time away_since = absl::InfiniteFuture();
  };

  // Groups by their away_since; some are back.
  using Queue = std::deque<std::pair<absl::Time, std::string>>;

  // Removes from the queue what is older than `time`. Returns the groups among it that are away.
  std::vector<std::string> TakeThoseAwaySince(absl::Time time, Queue& queue) const;

  std::map<std::string, Group> groups_;
  Queue away_;
  Queue in_last_minute_;
  uint64_t newest_version_ = 0;
  std::string newest_group_;  // The first that committed it.
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PROTOCOL_DECISIONS_H_
