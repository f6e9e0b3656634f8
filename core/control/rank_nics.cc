// SPDX-License-Identifier: Apache-2.0

#include "core/control/rank_nics.h"

#include <unistd.h>

#include <utility>

namespace waybill {
namespace {

// The host is only a hint for preferences. Whether a peer can be reached is tested by connecting.
std::string OwnHostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

}  // namespace

EncodedManifest EncodeWithNics(Manifest manifest, const Fabric& fabric) {
  if (manifest.host().empty()) manifest.set_host(OwnHostName());
  for (const FabricNic& nic : fabric.Nics()) {
    manifest.nics().push_back({nic.name, nic.rail, nic.numa_node, nic.bytes_per_second});
  }
  return EncodeInParts(manifest);
}

proto::Nics ListNics(const Fabric& fabric) {
  proto::Nics nics;
  for (const FabricNic& nic : fabric.Nics()) {
    proto::UsableNic* out = nics.add_nics();
    out->set_name(nic.name);
    out->set_rail(nic.rail);
    out->set_numa_node(nic.numa_node);
    out->set_bytes_per_second(nic.bytes_per_second);
  }
  return nics;
}

}  // namespace waybill
