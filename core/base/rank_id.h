// SPDX-License-Identifier: Apache-2.0

// The identity of a rank within a job. The rank declares it when it joins.
#ifndef WAYBILL_CORE_BASE_RANK_ID_H_
#define WAYBILL_CORE_BASE_RANK_ID_H_

#include <compare>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace waybill {

enum class Role : uint8_t { kTrainer = 1, kWorker = 2 };

constexpr absl::string_view Name(Role role) {
  return role == Role::kTrainer ? "trainer" : "worker";
}

// The group of a worker that names none.
inline constexpr absl::string_view kDefaultGroup = "all";

struct RankId {
  Role role = Role::kTrainer;
  uint32_t rank = 0;       // A worker's counts within its group.
  std::string group = {};  // Workers only. Empty where the group goes without saying.

  friend std::strong_ordering operator<=>(const RankId& a, const RankId& b) {
    return std::tie(a.role, a.group, a.rank) <=> std::tie(b.role, b.group, b.rank);
  }
  bool operator==(const RankId&) const = default;

  template <typename H>
  friend H AbslHashValue(H state, const RankId& id) {
    return H::combine(std::move(state), id.role, id.rank, id.group);
  }
};

// "trainer 3", "worker 0", "worker 1 of group \"b\""
inline std::string ToString(const RankId& id) {
  std::string text = absl::StrCat(Name(id.role), " ", id.rank);
  if (!id.group.empty() && id.group != kDefaultGroup) {
    absl::StrAppend(&text, " of group \"", id.group, "\"");
  }
  return text;
}

}  // namespace waybill

#endif  // WAYBILL_CORE_BASE_RANK_ID_H_
