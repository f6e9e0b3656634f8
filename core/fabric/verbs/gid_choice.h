// SPDX-License-Identifier: Apache-2.0

// Which GID of a port a queue pair is bound to. A wrong one connects, and then times out: the most
// common misconfiguration of RoCE, so the rule is written down, and the choice is told.
#ifndef WAYBILL_CORE_FABRIC_VERBS_GID_CHOICE_H_
#define WAYBILL_CORE_FABRIC_VERBS_GID_CHOICE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/fabric/verbs/lane_address.h"

namespace waybill::verbs {

struct GidEntry {
  uint32_t index = 0;
  GidKind kind = GidKind::kInfiniBand;
  Gid gid = {};
  bool is_foreign = false;  // Its network interface is in another namespace.
};

struct GidChoice {
  GidEntry entry;
  std::string reason;  // "RoCE v2 with an IPv4 address".
};

// Chooses among a port's GIDs in this order, and takes the first of equal ones:
//
//   RoCE v2 with an IPv4 address       routable, and what switches are set up for
//   RoCE v2 with a global IPv6 address
//   RoCE v2 with a link-local address  one subnet only
//   RoCE v1                            one Ethernet segment only
//
// and on InfiniBand the first. Those of other network namespaces are not for this process. `forced`
// is the index that the user named. kNotFound: there is none.
absl::StatusOr<GidChoice> ChooseGid(const std::vector<GidEntry>& gids,
                                    std::optional<uint32_t> forced);

}  // namespace waybill::verbs

#endif  // WAYBILL_CORE_FABRIC_VERBS_GID_CHOICE_H_
