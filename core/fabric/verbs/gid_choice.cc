// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/verbs/gid_choice.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace waybill::verbs {
namespace {

bool IsIpv4(const Gid& gid) {
  return std::all_of(gid.begin(), gid.begin() + 10, [](uint8_t b) { return b == 0; }) &&
         gid[10] == 0xFF && gid[11] == 0xFF;
}

bool IsLinkLocal(const Gid& gid) { return gid[0] == 0xFE && (gid[1] & 0xC0) == 0x80; }

constexpr int kForeign = 5;

// Smaller is better.
int RankOf(const GidEntry& entry) {
  if (entry.is_foreign) return kForeign;
  switch (entry.kind) {
    case GidKind::kInfiniBand:
      return 0;
    case GidKind::kRoceV2:
      return IsIpv4(entry.gid) ? 1 : IsLinkLocal(entry.gid) ? 3 : 2;
    case GidKind::kRoceV1:
      return 4;
  }
  return kForeign;
}

constexpr absl::string_view kReasons[] = {
    "the port's first, on InfiniBand",
    "RoCE v2 with an IPv4 address",
    "RoCE v2 with a global IPv6 address: there is none with an IPv4 address",
    "RoCE v2 with a link-local address, which reaches one subnet only: there is no other",
    "RoCE v1, which reaches one Ethernet segment only: there is no RoCE v2",
};

}  // namespace

absl::StatusOr<GidChoice> ChooseGid(const std::vector<GidEntry>& gids,
                                    std::optional<uint32_t> forced) {
  if (forced) {
    for (const GidEntry& entry : gids) {
      if (entry.index == *forced) return GidChoice{entry, "as it was asked for"};
    }
    return absl::NotFoundError(
        absl::StrCat("the port has no GID of index ", *forced, "; it has ", gids.size(), " GIDs"));
  }
  const auto best =
      std::min_element(gids.begin(), gids.end(),
                       [](const GidEntry& a, const GidEntry& b) { return RankOf(a) < RankOf(b); });
  if (best == gids.end()) {
    return absl::NotFoundError("the port has no GID: its network interface has no address");
  }
  if (best->is_foreign) {
    return absl::NotFoundError(absl::StrCat(
        "the port has ", gids.size(),
        " GIDs, all of interfaces in other network namespaces: give this container an interface "
        "of the NIC with an address, or run it in the host's network"));
  }
  return GidChoice{*best, std::string(kReasons[RankOf(*best)])};
}

}  // namespace waybill::verbs
