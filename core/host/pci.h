// SPDX-License-Identifier: Apache-2.0

// Where PCI devices are, as the kernel's files in /sys tell it.
#ifndef WAYBILL_CORE_HOST_PCI_H_
#define WAYBILL_CORE_HOST_PCI_H_

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace waybill {

// How far apart two PCI devices are, in NVML's words. Ordered: a later one is farther.
enum class PciDistance : uint8_t {
  kOneSwitch,   // PIX: one switch at most is between them.
  kSwitches,    // PXB: several switches.
  kHostBridge,  // PHB: the processor's own bridge.
  kNumaNode,    // NODE: another bridge of the same NUMA node.
  kSystem,      // SYS: the link between processors, or it is not known where one of them is.
};
// "PIX: at most one switch between them".
absl::string_view Describe(PciDistance distance);

// A PCI device. Reads the files anew with each call.
class PciDevice {
 public:
  // `link`: a symbolic link to its folder, as /sys/bus/pci/devices/0000:3b:00.0 or
  // /sys/class/infiniband/mlx5_0/device.
  explicit PciDevice(const std::filesystem::path& link);

  // Returns the first line of one of its files; empty if there is no such file.
  std::string Read(absl::string_view file) const;
  std::optional<uint32_t> numa_node() const;  // None where the kernel knows none.
  // Returns the size of its largest memory region, BAR1 on a GPU; 0 if it is not known.
  uint64_t largest_region_bytes() const;
  // Returns the address of a bridge between this device and the processor that sends what devices
  // below it say to each other up to the processor (Access Control Services, "P2P Request
  // Redirect"). None if there is none, or if this process may not read that.
  std::optional<std::string> FindRedirectingBridge() const;

  friend PciDistance DistanceBetween(const PciDevice& a, const PciDevice& b);

 private:
  std::filesystem::path folder_;  // Without symbolic links; empty if there is no such device.
};
PciDistance DistanceBetween(const PciDevice& a, const PciDevice& b);

}  // namespace waybill

#endif  // WAYBILL_CORE_HOST_PCI_H_
