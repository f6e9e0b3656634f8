// SPDX-License-Identifier: Apache-2.0

#include "core/protocol/standings.h"

#include <utility>

namespace waybill {
namespace {

void Count(bool before, bool after, size_t& count) {
  count += after ? 1 : 0;
  count -= before ? 1 : 0;
}

void Keep(GroupNumber group, bool in, Standings::Groups& names) {
  in ? (void)names.insert(group) : (void)names.erase(group);
}

}  // namespace

bool Standings::Set(GroupNumber group, const Standing& standing) {
  Standing& now = of_[group];
  if (now == standing) return false;
  const Standing before = std::exchange(now, standing);
  if (before.deadline != now.deadline) {
    if (before.deadline != absl::InfiniteFuture()) deadlines_.erase({before.deadline, group});
    if (now.deadline != absl::InfiniteFuture()) deadlines_.insert({now.deadline, group});
  }
  Count(before.takes, now.takes, takes_);
  Count(before.fetches, now.fetches, fetches_);
  Count(before.pushed_to, now.pushed_to, pushed_to_);
  Count(before.blocks, now.blocks, blocks_);
  Count(before.settles, now.settles, settles_);
  Count(before.complete, now.complete, complete_);
  Count(before.misses_required, now.misses_required, misses_required_);
  if (before.borrows) patience_.erase(patience_.find(before.loan_patience));
  if (now.borrows) patience_.insert(now.loan_patience);
  Keep(group, now.borrows, borrowing_);
  Keep(group, now.behind, behind_);
  if (before.fetched_version) fetched_.erase({*before.fetched_version, group});
  if (now.fetched_version) fetched_.insert({*now.fetched_version, group});
  if (before.lent_version == now.lent_version) return false;
  if (const auto lenders = lenders_.find(before.lent_version); lenders != lenders_.end()) {
    lenders->second.erase(group);
    if (lenders->second.empty()) lenders_.erase(lenders);
  }
  if (now.lent_version != 0) lenders_[now.lent_version].insert(group);
  return true;
}

Standings::Groups Standings::Due(absl::Time now) const {
  Groups due;
  for (const auto& [deadline, group] : deadlines_) {
    if (deadline > now) break;
    due.insert(group);
  }
  return due;
}

}  // namespace waybill
