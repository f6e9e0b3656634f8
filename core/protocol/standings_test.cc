// SPDX-License-Identifier: Apache-2.0

// Compares what is kept up group by group with the definition: counting all groups anew.

#include "core/protocol/standings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <utility>

namespace waybill {
namespace {

using Known = std::map<GroupNumber, Standing>;

bool Any(const Known& known, bool Standing::* flag) {
  return std::any_of(known.begin(), known.end(),
                     [&](const auto& entry) { return entry.second.*flag; });
}

Standings::Groups Those(const Known& known, bool Standing::* flag) {
  Standings::Groups groups;
  for (const auto& [group, standing] : known) {
    if (standing.*flag) groups.insert(group);
  }
  return groups;
}

void ExpectEqual(const Standings& standings, const Known& known, absl::Time now) {
  EXPECT_EQ(standings.any_takes(), Any(known, &Standing::takes));
  EXPECT_EQ(standings.any_blocks(), Any(known, &Standing::blocks));
  EXPECT_EQ(standings.any_settles(), Any(known, &Standing::settles));
  EXPECT_EQ(standings.any_complete(), Any(known, &Standing::complete));
  EXPECT_EQ(standings.any_misses_required(), Any(known, &Standing::misses_required));
  EXPECT_EQ(standings.borrowing(), Those(known, &Standing::borrows));
  EXPECT_EQ(standings.behind(), Those(known, &Standing::behind));
  absl::Time deadline = absl::InfiniteFuture(), patience = absl::InfinitePast();
  Standings::Groups due;
  Standings::Lenders lenders;
  std::set<std::pair<uint64_t, GroupNumber>> fetched;
  for (const auto& [group, standing] : known) {
    deadline = std::min(deadline, standing.deadline);
    if (standing.borrows) patience = std::max(patience, standing.loan_patience);
    if (standing.deadline <= now) due.insert(group);
    if (standing.lent_version != 0) lenders[standing.lent_version].insert(group);
    if (standing.fetched_version) fetched.emplace(*standing.fetched_version, group);
  }
  EXPECT_EQ(standings.next_deadline(), deadline);
  EXPECT_EQ(standings.loan_patience(), patience);
  EXPECT_EQ(standings.Due(now), due);
  EXPECT_EQ(standings.lenders(), lenders);
  EXPECT_EQ(standings.fetched(), fetched);
}

TEST(Standings, AreWhatAllGroupsAmountTo) {
  std::mt19937_64 random(7);
  const auto below = [&](uint64_t bound) { return random() % bound; };
  const absl::Time begin = absl::FromUnixSeconds(1000);
  Standings standings;
  Known known;
  for (int step = 0; step < 3000; ++step) {
    const GroupNumber group = 1 + below(6);
    if (below(4) == 0) {
      standings.Erase(group);
      known.erase(group);
    } else {
      const bool timed = below(2) == 0, borrows = below(3) == 0;
      const Standing standing = {
          .deadline = timed ? begin + absl::Seconds(below(4)) : absl::InfiniteFuture(),
          .takes = below(3) == 0,
          .blocks = below(3) == 0,
          .settles = below(3) == 0,
          .complete = below(3) == 0,
          .misses_required = below(3) == 0,
          .borrows = borrows,
          .loan_patience = borrows ? begin + absl::Seconds(below(4)) : absl::InfinitePast(),
          .behind = below(3) == 0,
          .lent_version = below(3),
          .fetched_version = below(3) == 0 ? std::optional(below(3)) : std::nullopt,
      };
      const bool lends_other = known[group].lent_version != standing.lent_version;
      EXPECT_EQ(standings.Set(group, standing), lends_other);
      known[group] = standing;
    }
    ExpectEqual(standings, known, begin + absl::Seconds(1));
    if (testing::Test::HasFailure()) FAIL() << "in step " << step;
  }
}

}  // namespace
}  // namespace waybill
