// SPDX-License-Identifier: Apache-2.0

#include "core/host/nearest_nics.h"

#include "absl/strings/str_cat.h"

namespace waybill {

NearestNics FindNearestNics(absl::string_view gpu_pci_address, absl::Span<const std::string> ports,
                            absl::string_view root) {
  const PciDevice gpu(absl::StrCat(root, "/sys/bus/pci/devices/", gpu_pci_address));
  NearestNics nearest;
  for (const std::string& port : ports) {
    const std::string device = port.substr(0, port.find(':'));
    const PciDevice nic(absl::StrCat(root, "/sys/class/infiniband/", device, "/device"));
    const PciDistance distance = DistanceBetween(gpu, nic);
    if (distance > nearest.distance) continue;
    if (distance < nearest.distance) nearest.names.clear();
    nearest.distance = distance;
    nearest.names.push_back(port);
  }
  if (nearest.distance != PciDistance::kSystem) {
    nearest.why = absl::StrCat("nearest to the GPU at ", gpu_pci_address, " (",
                               Describe(nearest.distance), ")");
  }
  return nearest;
}

}  // namespace waybill
