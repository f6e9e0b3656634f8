// SPDX-License-Identifier: Apache-2.0

// The fabrics of this host, put together for one rank.
#ifndef WAYBILL_CORE_FABRIC_CHOICE_MAKE_FABRIC_H_
#define WAYBILL_CORE_FABRIC_CHOICE_MAKE_FABRIC_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/fabric/fabric.h"
#include "core/fabric/tcp/tcp_fabric.h"
#include "core/fabric/verbs/verbs_fabric.h"

namespace waybill {

enum class FabricKind : uint8_t { kLocal = 1, kVerbs = 2, kTcp = 3 };

struct FabricOptions {
  // The only one to be used. None: for each peer the best that works, in the order of the enum.
  std::optional<FabricKind> forced;
  // The address by which peers reach this host. Replaces `verbs.host` and `tcp.host`.
  std::string host = "127.0.0.1";
  // See ChoiceOptions.
  uint64_t rate_limit = 0;
  VerbsOptions verbs;
  TcpOptions tcp;
};

// Parses "local", "verbs", "tcp" or "auto", which is nullopt. kInvalidArgument lists these names.
absl::StatusOr<std::optional<FabricKind>> ParseFabricKind(absl::string_view text);

// Makes the fabric of one rank, and raises this process's soft limit of open files to its hard one.
// If no kind is forced, a host without RDMA uses the other kinds, and
// DescribeLane() says why. Fails if the forced kind, or a NIC that `verbs` names, is not there.
absl::StatusOr<std::unique_ptr<Fabric>> MakeFabric(const FabricOptions& options);

}  // namespace waybill

#endif  // WAYBILL_CORE_FABRIC_CHOICE_MAKE_FABRIC_H_
