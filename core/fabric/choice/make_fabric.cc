// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/choice/make_fabric.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/fabric/choice/choice_fabric.h"
#include "core/fabric/local/local_fabric.h"
#include "core/net/tcp_socket.h"

namespace waybill {

absl::StatusOr<std::optional<FabricKind>> ParseFabricKind(absl::string_view text) {
  if (text == "auto") return std::nullopt;
  if (text == "local") return FabricKind::kLocal;
  if (text == "verbs") return FabricKind::kVerbs;
  if (text == "tcp") return FabricKind::kTcp;
  return absl::InvalidArgumentError(
      absl::StrCat("fabric \"", text, "\": there are auto, local, verbs, tcp"));
}

absl::StatusOr<std::unique_ptr<Fabric>> MakeFabric(const FabricOptions& options) {
  const auto wanted = [&](FabricKind kind) { return options.forced.value_or(kind) == kind; };
  (void)net::RaiseLimitOfOpenFiles();  // A lane takes up to four until it is connected.
  std::vector<ChoiceMember> members;
  std::string missing;
  if (wanted(FabricKind::kLocal)) {
    WAYBILL_ASSIGN_OR_RETURN(std::unique_ptr<Fabric> local, MakeLocalFabric());
    members.push_back({.fabric = std::move(local), .within_host = true});
  }
  if (wanted(FabricKind::kVerbs)) {
    VerbsOptions verbs = options.verbs;
    verbs.host = options.host;
    absl::StatusOr<std::unique_ptr<Fabric>> fabric = MakeVerbsFabric(verbs);
    const bool needed = options.forced.has_value() || !verbs.nics.empty();
    if (fabric.ok()) {
      members.push_back({.fabric = *std::move(fabric)});
    } else if (needed || !absl::IsUnavailable(fabric.status())) {
      return fabric.status();
    } else {
      missing = absl::StrCat("verbs: ", fabric.status().message());
    }
  }
  if (wanted(FabricKind::kTcp)) {
    TcpOptions tcp = options.tcp;
    tcp.host = options.host;
    WAYBILL_ASSIGN_OR_RETURN(std::unique_ptr<Fabric> fabric, MakeTcpFabric(tcp));
    members.push_back({.fabric = std::move(fabric)});
  }
  return MakeChoiceFabric(std::move(members), std::move(missing),
                          {.rate_limit = options.rate_limit});
}

}  // namespace waybill
