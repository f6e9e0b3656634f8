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
  // An address of this host by which peers reach it; goes into what follows.
  std::string host = "127.0.0.1";
  VerbsOptions verbs;
  TcpOptions tcp;
};

// "auto" is none; kInvalidArgument names what there is.
absl::StatusOr<std::optional<FabricKind>> ParseFabricKind(absl::string_view text);

// Where none is forced, a host without RDMA is served by the others, and lanes say why. A NIC that
// was named has to be there. kUnavailable: the forced one is not.
absl::StatusOr<std::unique_ptr<Fabric>> MakeFabric(const FabricOptions& options);

}  // namespace waybill

#endif  // WAYBILL_CORE_FABRIC_CHOICE_MAKE_FABRIC_H_
