// The identity of a rank within a job. The rank declares it when it joins.
#ifndef WAYBILL_CORE_BASE_RANK_ID_H_
#define WAYBILL_CORE_BASE_RANK_ID_H_

#include <compare>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace waybill {

enum class Role : uint8_t { kTrainer = 1, kWorker = 2 };

constexpr absl::string_view Name(Role role) {
  return role == Role::kTrainer ? "trainer" : "worker";
}

struct RankId {
  Role role = Role::kTrainer;
  uint32_t rank = 0;

  auto operator<=>(const RankId&) const = default;

  template <typename H>
  friend H AbslHashValue(H state, const RankId& id) {
    return H::combine(std::move(state), id.role, id.rank);
  }
};

// "trainer 3"
inline std::string ToString(RankId id) { return absl::StrCat(Name(id.role), " ", id.rank); }

}  // namespace waybill

#endif  // WAYBILL_CORE_BASE_RANK_ID_H_
