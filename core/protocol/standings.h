// SPDX-License-Identifier: Apache-2.0

// What the groups of a job amount to together. Each group's part is kept up as the group changes,
// so that a message costs as much as it changes, however many groups there are.
#ifndef WAYBILL_CORE_PROTOCOL_STANDINGS_H_
#define WAYBILL_CORE_PROTOCOL_STANDINGS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "absl/time/time.h"

namespace waybill {

// Identifies a group. A coordinator never gives a number twice.
using GroupNumber = uint64_t;

// What one group contributes.
struct Standing {
  // When the passing of time changes something for the group.
  absl::Time deadline = absl::InfiniteFuture();
  bool takes = false;            // Versions go to it, or wait for it because it is required.
  bool fetches = false;          // It is ready, and fetches versions later.
  bool pushed_to = false;        // Somebody of it is here, and it does not fetch versions.
  bool blocks = false;           // It is required and not ready: no version goes to any group.
  bool settles = false;          // Its lanes are being made: publishes wait for it a little.
  bool complete = false;         // All ranks of its term are here.
  bool misses_required = false;  // It is required, and ranks of its term are missing.
  bool borrows = false;          // Its term is for a loan.
  absl::Time loan_patience = absl::InfinitePast();  // Publishes wait for the loan until then.
  bool behind = false;        // It would take a version that it has missed from another group.
  uint64_t lent_version = 0;  // The version that it can lend; 0 if none.
  // The oldest version that a worker of it shows, if it is required and fetches.
  std::optional<uint64_t> fetched_version;

  bool operator==(const Standing&) const = default;
};

// Not thread-safe.
class Standings {
 public:
  using Groups = std::set<GroupNumber>;

  // Replaces what is known of a group. Returns true if what it can lend has changed.
  bool Set(GroupNumber group, const Standing& standing);
  void Erase(GroupNumber group) { Set(group, Standing()), of_.erase(group); }

  absl::Time next_deadline() const {
    return deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
  }
  // Returns the groups whose deadline is over.
  Groups Due(absl::Time now) const;

  // Return true if any group is so.
  bool any_takes() const { return takes_ > 0; }
  bool any_fetches() const { return fetches_ > 0; }
  bool any_pushed_to() const { return pushed_to_ > 0; }
  bool any_blocks() const { return blocks_ > 0; }
  bool any_settles() const { return settles_ > 0; }
  bool any_complete() const { return complete_ > 0; }
  bool any_misses_required() const { return misses_required_ > 0; }
  // Returns until when publishes wait for loans at most; InfinitePast if there are none.
  absl::Time loan_patience() const {
    return patience_.empty() ? absl::InfinitePast() : *patience_.rbegin();
  }

  const Groups& borrowing() const { return borrowing_; }
  const Groups& behind() const { return behind_; }
  // The groups that can lend, by the version, newest first.
  using Lenders = std::map<uint64_t, Groups, std::greater<>>;
  const Lenders& lenders() const { return lenders_; }
  // The groups with a fetched version, by it.
  const std::set<std::pair<uint64_t, GroupNumber>>& fetched() const { return fetched_; }

 private:
  std::unordered_map<GroupNumber, Standing> of_;
  std::set<std::pair<absl::Time, GroupNumber>> deadlines_;  // The finite ones.
  size_t takes_ = 0, fetches_ = 0, pushed_to_ = 0, blocks_ = 0, settles_ = 0, complete_ = 0,
         misses_required_ = 0;
  std::multiset<absl::Time> patience_;
  Groups borrowing_, behind_;
  Lenders lenders_;
  std::set<std::pair<uint64_t, GroupNumber>> fetched_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PROTOCOL_STANDINGS_H_
